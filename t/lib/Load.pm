# Sessions that do everything at once to one server: claim, complete, renew,
# release, guard, batch, wait, vacuum, sweep and duplicate.  Each writes into a
# file, outside the server, what it is about to ask for and what it was told,
# for a Ledger to judge.
#
# Keys are of two tables.  In the extension's own, leases and results last longer
# than any test, so nothing in it may be lost.  In table brief they last for
# fractions of a second, so keys are taken over, expire and are removed.
package Load;

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils ();

my $files = 0;

# The keys of table brief: few, so that they are fought over.
my $brief_keys = 10;

# What a server needs for it.
sub prepare
{
	my ($node) = @_;

	$node->value(q{
		SELECT idemkit_create_table('brief');
		-- Work whose effects are rows of the same database.
		CREATE TABLE effects (effective_key text, claim_token text);
		CREATE FUNCTION micros(timestamptz) RETURNS bigint LANGUAGE sql AS
			'SELECT (extract(epoch FROM $1) * 1000000)::bigint';
		-- The result of a claim: no other claim has the same, and large ones do not compress.
		CREATE FUNCTION body(key text, token text, n int) RETURNS bytea LANGUAGE sql AS $$
			SELECT convert_to(string_agg(md5(key || token || i), ''), 'UTF8') FROM generate_series(1, n) i $$;
		CREATE FUNCTION digest(state text, status int, headers jsonb, body bytea) RETURNS text LANGUAGE sql AS $$
			SELECT CASE state WHEN 'COMPLETED'
				THEN md5(concat_ws('|', status, headers, encode(body, 'hex'))) ELSE '-' END $$;
		CREATE FUNCTION complete_all(keys text[], tokens text[], n int, retention float8, records regclass)
			RETURNS text LANGUAGE sql AS $$
			SELECT string_agg(left(d::text, 1), '') FROM idemkit_complete_many(keys, tokens,
				array_fill(200, ARRAY[cardinality(keys)]),
				array_fill(jsonb_build_object('n', n), ARRAY[cardinality(keys)]),
				ARRAY(SELECT body(key, token, n) FROM unnest(keys, tokens) u(key, token)), retention, records) d $$});
	return;
}

sub pick { return $_[ int(rand(@_)) ] }

# A table with a lease, a longer one to renew it to, and a retention.
sub terms
{
	my ($table) = @_;

	return { table => $table, lease => 3600, longer => 7200, retention => 86400 } if $table eq 'idemkit_records';
	return {
		table     => $table,
		lease     => pick(0.02, 0.1, 0.2),
		longer    => pick(0.3, 0.5),
		retention => pick(0,    0.1, 0.3)
	};
}

# Pieces of psql scripts.  Before a statement stands what is asked for, behind it
# what was told.
my $columns = q{state, claim_token, fence, micros(lease_until) AS until,
	digest(state, response_status, response_headers, response_body) AS digest};
my $told_claim = "\\echo ! claim KEY :result :claim_token :fence :until :digest\n";

sub claim
{
	my ($terms) = @_;

	return qq{SELECT result, our_claim_token IS NOT NULL AS won, $columns FROM
		idemkit_claim('KEY', lease_ttl_seconds => $terms->{lease}, records => '$terms->{table}') \\gset\n};
}

sub complete
{
	my ($terms, $n, $more) = @_;

	return qq{SELECT micros(clock_timestamp()) AS clock, idemkit_complete('KEY', :'claim_token', 200,
		'{"n": $n$more}', body('KEY', :'claim_token', $n), $terms->{retention}, '$terms->{table}') AS done \\gset\n};
}

# What an owner does with its claim.
sub settle
{
	my ($terms)  = @_;
	my $n        = pick(1, 1, 1, 1, 3, 300);
	my $keep     = pick('true', 'false');
	my $complete = "\\echo ? complete KEY :claim_token $terms->{retention}\n" . complete($terms, $n, '')
	  . "\\echo ! complete KEY :claim_token :done :clock $terms->{retention}\n";
	my $renew = "\\echo ? renew KEY :claim_token\n"
	  . "SELECT micros(clock_timestamp()) AS clock, idemkit_renew('KEY', :'claim_token', $terms->{longer}, '$terms->{table}') AS done \\gset\n"
	  . "\\echo ! renew KEY :claim_token :done :clock $terms->{longer}\n";
	my $release = "\\echo ? release KEY :claim_token\n"
	  . "SELECT micros(clock_timestamp()) AS clock, idemkit_release('KEY', :'claim_token', $keep, '$terms->{table}') AS done \\gset\n"
	  . "\\echo ! release KEY :claim_token :done :clock\n";

	return pick($complete, $complete, "$renew$complete", $renew, $release, '', '');
}

# A claim and what follows from it.
sub single_turn
{
	my ($terms) = @_;

	return "\\echo ? claim KEY\n" . claim($terms) . "$told_claim\\if :won\n" . settle($terms) . "\\endif\n";
}

# Claim, work and result in one transaction.
sub transaction_turn
{
	my ($terms) = @_;

	return "\\echo ? claim KEY\nBEGIN;\n" . claim($terms)
	  . "\\if :won\nINSERT INTO effects VALUES ('KEY', :'claim_token');\n" . complete($terms, 2, ', "effect": true')
	  . "\\endif\nCOMMIT;\n$told_claim"
	  . "\\if :won\n\\echo ! complete KEY :claim_token :done :clock $terms->{retention}\n\\endif\n";
}

# Work and result in one transaction, behind a guard.
sub guard_turn
{
	my ($terms) = @_;

	return "\\echo ? claim KEY\n" . claim($terms) . "$told_claim\\if :won\n"
	  . "\\echo ? complete KEY :claim_token $terms->{retention}\nBEGIN;\n"
	  . "SELECT idemkit_guard('KEY', :'claim_token', '$terms->{table}') \\gset\n"
	  . "INSERT INTO effects VALUES ('KEY', :'claim_token');\n" . complete($terms, 2, ', "effect": true')
	  . "COMMIT;\n\\echo ! complete KEY :claim_token :done :clock $terms->{retention}\n\\endif\n";
}

sub batch_turn
{
	my ($terms, @keys) = @_;
	my $n    = pick(1, 1, 100);
	my $list = join(',', map { "'$_'" } @keys);
	my $won  = 'FILTER (WHERE our_claim_token IS NOT NULL)';

	return "\\echo ? claim @keys\n" . qq{
SELECT count(our_claim_token) > 0 AS won, array_agg(effective_key) $won AS keys, array_agg(our_claim_token) $won AS tokens,
	string_agg(concat_ws(':', effective_key, result, claim_token, fence, micros(lease_until),
		digest(state, response_status, response_headers, response_body)), ' ') AS answers
	FROM idemkit_claim_many(ARRAY[$list], lease_ttl_seconds => $terms->{lease}, records => '$terms->{table}') \\gset
\\echo ! claims :answers
\\if :won
\\echo ? completes :keys :tokens $terms->{retention}
SELECT micros(clock_timestamp()) AS clock,
	complete_all(:'keys', :'tokens', $n, $terms->{retention}, '$terms->{table}') AS done \\gset
\\echo ! completes :keys :tokens :done :clock $terms->{retention}
\\endif\n};
}

# A wait reads the row as others have left it.
sub wait_turn
{
	my ($terms) = @_;

	return "\\echo ? wait KEY\n"
	  . "SELECT outcome, coalesce(outcome IN ('completed', 'timeout'), false) AS found, $columns FROM"
	  . " idemkit_wait('KEY', 0.02, '$terms->{table}') \\gset\n"
	  . "\\echo ! wait KEY :outcome\n\\if :found\n\\echo ! sight KEY :claim_token :fence :until :digest\n\\endif\n";
}

sub removal_turn
{
	my ($terms) = @_;
	my $grace = pick(0, 0.5, 0.5);

	return "\\echo ? removal\n"
	  . pick(
		"SELECT idemkit_vacuum(NULL, $grace, 20, '$terms->{table}') AS removed \\gset\n",
		"SELECT idemkit_vacuum(100000, $grace, NULL, '$terms->{table}') AS removed \\gset\n",
		"CALL idemkit_sweep(0, 5, $grace, '$terms->{table}') \\gset\n")
	  . "\\echo ! removal :removed\n";
}

# What one client does in a round.  All clients go through the same keys at about
# the same time.
sub script
{
	my ($round, $turns) = @_;
	my $script = "SET client_min_messages = warning;\n";

	foreach my $turn (1 .. $turns)
	{
		my $terms = terms(pick('idemkit_records', 'idemkit_records', 'brief'));
		my $lasts = $terms->{table} eq 'idemkit_records';
		my @keys  = map { $lasts ? "r$round-" . int($turn * 6 + rand(100)) : 'b' . int(rand($brief_keys)) } 1 .. 6;
		my $kind  = rand();
		my $text =
		    $kind < 0.45 ? single_turn($terms)
		  : $kind < 0.60 ? transaction_turn($terms)
		  : $kind < 0.70 ? ($lasts ? guard_turn($terms) : single_turn($terms))
		  : $kind < 0.85 ? batch_turn($terms, @keys[ 1 .. pick(2, 3, 5) ])
		  : $kind < 0.93 ? wait_turn($terms)
		  :                removal_turn($terms);

		$script .= $text =~ s/KEY/$keys[0]/gr;
	}
	return $script;
}

# Starts the clients.
sub start
{
	my ($class, $node, $round, $clients, $turns) = @_;
	my $self = bless { runs => [], outputs => [], errors => [] }, $class;

	foreach my $client (0 .. $clients - 1)
	{
		my $output = $node->basedir . '/told' . ++$files;
		my $errors = "$output.err";

		push @{ $self->{outputs} }, $output;
		push @{ $self->{errors} },  $errors;
		push @{ $self->{runs} },
		  IPC::Run::start(
			[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=sqlstate',
				'-d', $node->connstr('postgres') . ' application_name=load', '-f', $node->script(script($round, $turns)) ],
			'<', '/dev/null', '>', $output, '2>', $errors);
	}
	return $self;
}

# How many bytes the clients have written down so far.  psql writes blocks of some
# kilobytes, and the rest when it ends.
sub written
{
	my ($self) = @_;
	my $bytes = 0;

	$bytes += -s $_ // 0 foreach @{ $self->{outputs} };
	return $bytes;
}

# Waits until all clients have ended.  Returns what each has written down.
sub finish
{
	my ($self) = @_;

	$_->finish foreach @{ $self->{runs} };
	return map { PostgreSQL::Test::Utils::slurp_file($_) } @{ $self->{outputs} };
}

# What psql says where its server goes or has gone.
my $server_gone = join('|',
	'(FATAL|WARNING):  57P0[1-3]',
	'server closed the connection unexpectedly', 'terminated abnormally', 'before or while processing',
	'connection to server', 'no connection to the server', 'Is the server running',
	'could not receive data', 'could not send data');

# What the clients complained of, other than that.
sub complaints
{
	my ($self) = @_;

	return grep { !/$server_gone/ } map { split(/\n/, PostgreSQL::Test::Utils::slurp_file($_)) } @{ $self->{errors} };
}

1;
