# A backend that gets no more memory ends the call with 53200, has changed nothing,
# and goes on.  Its address space is limited to what it has and a little more, in
# steps from nothing to enough, so memory runs out at one place after another.
#
# IDEMKIT_SEED=N repeats the sizes of the steps, IDEMKIT_SIZE=N makes them N times
# smaller than those of the quick form.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

plan skip_all => 'unavailable: prlimit' if system('prlimit --version >/dev/null 2>&1') != 0;

my $seed  = IdemkitNode::seed();
my $finer = IdemkitNode::size(1, 20);
my $limit = 400_000_000;                 # bytes that no call here needs

my $node = IdemkitNode->launch('main', "idemkit.notify = 'awaited'", 'max_parallel_workers_per_gather = 0');
my ($shortages, $calls, $violations) = (0, 0, 0);

# What is stored, as another session sees it.
my $watcher = $node->session;

sub stored
{
	return $watcher->query_safe(q{SELECT count(*), md5(string_agg(r::text, '|' ORDER BY effective_key)) FROM idemkit_records r});
}

# The address space of a process in bytes.
sub address_space
{
	my ($pid) = @_;

	return (split(/ /, PostgreSQL::Test::Utils::slurp_file("/proc/$pid/statm")))[0] * 4096;
}

sub set_limit
{
	my ($pid, $bytes) = @_;

	system('prlimit', '--pid', $pid, "--as=$bytes:") == 0 or die 'prlimit failed';
	return;
}

# Each call, what has to be there before it, and what it answers.
my $huge     = 6_000_000;    # bytes
my @settings = (
	[
		'claim replays a huge result',
		"SELECT idemkit_complete('k', our_claim_token, 200, '{}', repeat('body', $huge / 4)::bytea) FROM idemkit_claim('k')",
		"SELECT result, length(response_body) FROM idemkit_claim('k')",
		"already_completed|$huge"
	],
	[
		'claim wins with a huge fingerprint', '',
		"SELECT result, length(fingerprint) FROM idemkit_claim('k', repeat('f', $huge))", "new_claimed|$huge"
	],
	[
		'claim takes over with a huge fingerprint',
		"SELECT idemkit_claim('k', lease_ttl_seconds => 0.000001)",
		"SELECT result, attempts FROM idemkit_claim('k', repeat('f', $huge))", 'lease_reclaimed|2'
	],
	[
		'complete stores a huge result',
		"SELECT idemkit_claim('k')",
		"SELECT idemkit_complete('k', TOKEN, 200, jsonb_build_object('h', repeat('v', $huge / 2)), repeat('body', $huge / 4)::bytea)",
		't'
	],
	[
		'claim_many wins many',
		"SELECT idemkit_claim('k7', lease_ttl_seconds => 0.000001)",
		'SELECT count(our_claim_token) FROM idemkit_claim_many(ARRAY(SELECT $$k$$ || i FROM generate_series(1, 4000) i))', '4000'
	],
	[
		'claim_many replays many',
		"SELECT count(d) FROM (SELECT array_agg(effective_key) k, array_agg(our_claim_token) t FROM"
		  . ' idemkit_claim_many(ARRAY(SELECT $$k$$ || i FROM generate_series(1, 1000) i))) c,'
		  . " LATERAL idemkit_complete_many(k, t, NULL, NULL, array_fill(repeat('body', 1000)::bytea, ARRAY[1000])) d",
		'SELECT sum(length(response_body)) FROM idemkit_claim_many(ARRAY(SELECT $$k$$ || i FROM generate_series(1, 1000) i))',
		'4000000'
	],
	[
		'complete_many stores many',
		'SELECT count(idemkit_claim($$k$$ || i)) FROM generate_series(1, 1000) i',
		'SELECT count(*) FILTER (WHERE d) FROM (SELECT array_agg(effective_key) k, array_agg(claim_token) t FROM idemkit_records) r,'
		  . " LATERAL idemkit_complete_many(k, t, NULL, NULL, array_fill(repeat('body', 1000)::bytea, ARRAY[1000])) d",
		'1000'
	],
	[
		'subscribe reads many',
		'SELECT count(idemkit_claim($$k$$ || i, repeat($$f$$, 1000))) FROM generate_series(1, 2000) i',
		'SELECT count(*) FROM idemkit_subscribe(ARRAY(SELECT $$k$$ || i FROM generate_series(1, 2000) i))', '2000'
	],
	[
		'vacuum by age removes many',
		'SELECT count(idemkit_complete(c.effective_key, c.our_claim_token))'
		  . ' FROM generate_series(1, 4000) i, LATERAL idemkit_claim($$k$$ || i) c',
		'SELECT idemkit_vacuum(0)', '4000'
	],
	# Needs no memory to speak of.
	[
		'vacuum removes many',
		"SELECT count(idemkit_complete(c.effective_key, c.our_claim_token, expires_after_seconds => 0))"
		  . ' FROM generate_series(1, 4000) i, LATERAL idemkit_claim($$k$$ || i) c',
		'SELECT idemkit_vacuum()', '4000'
	]);

# One call with more and more room, until it is enough.
sub run_short
{
	my ($name, $setup, $call, $answer) = @_;
	my ($errors, $room) = (0, 0);
	my (@wrong, $outcome);

	$node->value("TRUNCATE idemkit_records; $setup");
	my $token   = $node->value(q{SELECT claim_token FROM idemkit_records LIMIT 1});
	my $session = $node->session;
	my $pid     = $session->query_safe('SELECT pg_backend_pid()');

	# A stack that cannot grow is not what is looked for here: let it grow now.
	$session->query_safe(q{SELECT length((repeat('[', 3000) || repeat(']', 3000))::json::text)});
	# Caches and plans.
	$session->query_safe("SELECT idemkit_claim('warm'), idemkit_claim_many(ARRAY['warm']), idemkit_release('warm', 'none')");
	$node->value(q{DELETE FROM idemkit_records WHERE effective_key = 'warm'});

	my $before = stored();
	do
	{
		die "$name needs more than $limit bytes" if $room > $limit;
		set_limit($pid, address_space($pid) + $room);
		$outcome = $node->session_sqlstate($session, $call =~ s/TOKEN/'$token'/r . ' \\g ' . $node->basedir . '/answer');
		set_limit($pid, 'unlimited');
		$calls++;
		if ($outcome eq '53200')
		{
			$errors++;
			push @wrong, "with room for $room bytes something was done" if stored() ne $before;
		}
		elsif ($outcome ne '00000') { push @wrong, "with room for $room bytes: $outcome" }
		$room += 4096 + int(rand((50_000 + $room / 4) / $finer));
	} while ($outcome ne '00000' && @wrong < 10);

	is(join("\n", @wrong), '', "$name: out of memory $errors times, and nothing was done")
	  or diag("IDEMKIT_SEED=$seed");
	cmp_ok($errors, '>', 0, "$name: memory did run out") unless $name eq 'vacuum removes many';
	is(PostgreSQL::Test::Utils::slurp_file($node->basedir . '/answer'), "$answer\n", "$name: done by the same session when there is enough");
	is($session->query_safe('SELECT pg_backend_pid()'), $pid, "$name: the session goes on");
	$session->quit;
	$shortages  += $errors;
	$violations += @wrong;
	return;
}

# The sessions' chatter would be all there is to read.
{
	no warnings 'redefine';
	local *PostgreSQL::Test::BackgroundPsql::note    = sub { };
	local *PostgreSQL::Test::BackgroundPsql::explain = sub { };

	run_short(@$_) foreach @settings;
	$watcher->quit;
}
IdemkitNode::report("$calls calls, $shortages of them out of memory, $violations violations");
is($node->value('SELECT idemkit_verify_schema()'), '', 'the table is sound');
$node->log_is_clean;
done_testing();
