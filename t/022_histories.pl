# The verdicts of batches are those of single calls, whatever went before: random
# histories, played once with batches and once with single calls on a table of
# its own, must agree in every answer and every row.
#
# IDEMKIT_SEED=N repeats a history, IDEMKIT_SIZE=N is the number of batches.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitHistory qw(pick);
use IdemkitNode;
use List::Util qw(shuffle);
use Test::More;

IdemkitNode::needs_version(14, 'a BackgroundPsql that loses no errors (t/022_histories.pl)');

my $seed    = IdemkitNode::seed();
my $batches = IdemkitNode::size(1_500, 10_000);
my $node    = IdemkitNode->launch('main', "idemkit.notify = 'never'", "timezone = 'UTC'");
my $session = $node->session;

my %seen;    # words at the start of an answer, and how often

# A token is told by whether it is the one now stored.  Times are compared row by
# row, see below.
my $answer = q{c.result, c.our_claim_token IS NOT NULL, c.our_claim_token = c.claim_token, c.recovered_from_corrupt,
	c.fingerprint_matches, c.effective_key, c.state, c.fingerprint, c.fingerprint_version, c.attempts, c.response_status,
	c.response_headers, c.response_body, c.completed_at IS NULL};
my $row = join(', ', map { "_.$_" } qw(effective_key state fingerprint fingerprint_version response_status
	  response_headers response_body schema_version attempts awaited));

$node->value(q{
	SELECT idemkit_create_table('batched');
	SELECT idemkit_create_table('single');
	-- The token of a key in a table as it is now, or a wrong one.
	CREATE FUNCTION tokens(keys text[], good boolean[], records regclass) RETURNS text[] LANGUAGE plpgsql AS $$
	DECLARE
		tokens text[] := '{}';
		token text;
	BEGIN
		FOR i IN 1..cardinality(keys) LOOP
			token := (SELECT claim_token FROM idemkit_get(keys[i], records));
			tokens := tokens || CASE WHEN good[i] THEN coalesce(token, 'none') ELSE 'wrong' END;
		END LOOP;
		RETURN tokens;
	END $$;
});

sub text_array
{
	return 'ARRAY[' . join(',', map { defined $_ ? "'$_'" : 'NULL' } @_) . ']';
}

# A few keys of a small set, so that histories of keys are long; some stand in a
# batch twice.  They sort differently by bytes and by most locales.
my @names = map { ("k$_", "K$_", "k-$_", "\x{e9}$_") } 1 .. 4;
utf8::encode($_) foreach @names;

sub some_keys
{
	return map { pick(@names) } 1 .. pick(1, 1, 2, 3, 5, 8, 13);
}

# Each step is a pair of statements, for the batched and for the single play,
# that should print the same.
sub claim_step
{
	my @keys         = some_keys();
	my $keys         = text_array(@keys);
	my $fingerprints = pick(1, 0) ? text_array(map { pick('f', 'f', 'g', '') } @keys) . '::text[]' : 'NULL::text[]';
	my $terms        = join(', ', pick(1, 1, 1, 2), pick(100, 200, 300), pick('true', 'true', 'false'));

	return (
		"SELECT $answer FROM idemkit_claim_many($keys, $fingerprints, $terms, 'batched') c",
		"SELECT $answer FROM ROWS FROM (unnest($keys), unnest(coalesce($fingerprints, array_fill(''::text, ARRAY[cardinality($keys)]))))"
		  . " WITH ORDINALITY k(key, fingerprint, n), LATERAL idemkit_claim(k.key, k.fingerprint, $terms, 'single') c");
}

sub complete_step
{
	my @keys     = some_keys();
	my $keys     = text_array(@keys);
	my $good     = text_array(map { pick('t', 't', 't', 'f') } @keys) . '::boolean[]';
	my $statuses = pick('NULL::int[]', text_array(map { pick(200, 404, undef) } @keys) . '::int[]');
	my $headers  = pick('NULL::jsonb[]', text_array(map { pick('{}', '{"a": 1}', undef) } @keys) . '::jsonb[]');
	my $bodies   = pick('NULL::bytea[]', text_array(map { pick('', 'body', '\x00', undef) } @keys) . '::bytea[]');
	my $ttl      = pick(0, 400, 500);

	return (
		"SELECT * FROM idemkit_complete_many($keys, tokens($keys, $good, 'batched'), $statuses, $headers, $bodies, $ttl, 'batched')",
		"SELECT idemkit_complete(key, token, status, headers, body, $ttl, 'single') FROM ROWS FROM (unnest($keys),"
		  . " unnest(tokens($keys, $good, 'single')), unnest($statuses), unnest($headers), unnest($bodies))"
		  . " k(key, token, status, headers, body)");
}

# What happens between batches: the same to both tables.
my @events = (
	q{SELECT idemkit_release('KEY', (SELECT claim_token FROM TABLE WHERE effective_key = 'KEY'), KEEP, 'TABLE')
		WHERE EXISTS (SELECT FROM TABLE WHERE effective_key = 'KEY')},
	q{SELECT idemkit_renew('KEY', (SELECT claim_token FROM TABLE WHERE effective_key = 'KEY'), 600, 'TABLE')
		WHERE EXISTS (SELECT FROM TABLE WHERE effective_key = 'KEY')},
	q{UPDATE TABLE SET lease_until = clock_timestamp() - interval '100 s' WHERE effective_key = 'KEY'},
	q{UPDATE TABLE SET lease_until = clock_timestamp() - interval '100 s' WHERE effective_key > 'KEY' COLLATE "C"},
	q{UPDATE TABLE SET schema_version = 9 WHERE effective_key = 'KEY'},
	q{UPDATE TABLE SET response_headers = '[]' WHERE effective_key = 'KEY'},
	q{UPDATE TABLE SET state = 'COMPLETED', completed_at = NULL WHERE effective_key = 'KEY'},
	q{UPDATE TABLE SET awaited = true WHERE state = 'CLAIMED' AND effective_key > 'KEY' COLLATE "C"},
	q{SELECT idemkit_vacuum(records => 'TABLE')},
	q{DELETE FROM TABLE WHERE effective_key = 'KEY'});

sub event_step
{
	my $event = pick(@events);
	my ($key, $keep) = (pick(@names), pick('true', 'false'));

	$event =~ s/KEY/$key/g;
	$event =~ s/KEEP/$keep/g;
	return ($event =~ s/\bTABLE\b/batched/gr, $event =~ s/\bTABLE\b/single/gr);
}

# Plays both and compares; returns what differs, or nothing.
sub difference
{
	my ($batched, $single) = @_;
	my @said = map {
		my $text = $session->query($_);
		$text .= $session->{stderr};
		$session->{stderr} = '';
		$text
	} $batched, $single;

	$seen{$1}++ while $said[0] =~ /^(\w+)\b/mg;
	return "answers:\n$said[0]\nand:\n$said[1]" if $said[0] ne $said[1];

	# The same rows, whose times differ by no more than the two plays take.
	my $differ = $session->query("SELECT b, s FROM batched b FULL JOIN single s ON s.effective_key = b.effective_key WHERE ("
		  . $row =~ s/_\./b./gr . ') IS DISTINCT FROM (' . $row =~ s/_\./s./gr . ')'
		  . join('', map { " OR coalesce(abs(extract(epoch FROM b.$_ - s.$_)) > 20, (b.$_ IS NULL) <> (s.$_ IS NULL))" }
			qw(claimed_at lease_until completed_at)));
	return $differ eq '' ? undef : "rows:\n$differ";
}

my ($played, $failure) = (0);
my @history;

# The session's chatter, three statements a batch, would be all there is to read.
{
	no warnings 'redefine';
	local *PostgreSQL::Test::BackgroundPsql::note    = sub { };
	local *PostgreSQL::Test::BackgroundPsql::explain = sub { };

	while ($played < $batches)
	{
		my $kind = pick('claim', 'claim', 'complete', 'event', 'event');
		my ($batched, $single) =
		    $kind eq 'claim'    ? claim_step()
		  : $kind eq 'complete' ? complete_step()
		  :                       event_step();

		push @history, $batched;
		$played++ if $kind ne 'event';
		$failure = difference($batched, $single);
		last if defined $failure;
	}
}
IdemkitNode::report("$played batches, " . (defined $failure ? 1 : 0) . ' differences');
is($failure, undef, "$played batches agree with single calls")
  or diag("IDEMKIT_SEED=$seed\nafter:\n" . join("\n", @history[ ($#history > 5 ? -6 : 0) .. -1 ]));

# The histories have been everywhere.
cmp_ok($seen{$_} // 0, '>', 10, "among their answers was: $_")
  foreach qw(new_claimed lease_reclaimed lease_lapsed already_claimed already_completed t f);

$session->quit;
$node->storage_is_sound(qw(batched single));
$node->log_is_clean;
done_testing();
