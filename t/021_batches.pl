# Batches of eight sessions that cross each other on the same keys: no deadlock,
# no key held twice, no answer missing.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $clients = 8;
my $turns   = 250 * $IdemkitNode::long;
my $node    = IdemkitNode->launch('main', 'deadlock_timeout = 50ms');

# As in the test of the mixed load: two that hold a key at once run into the
# unique index.
$node->value(q{
	CREATE UNLOGGED TABLE wins (key text, token text, winner int, ended boolean DEFAULT false);
	CREATE UNIQUE INDEX ON wins (key) WHERE NOT ended;
	CREATE UNIQUE INDEX ON wins (token);
	CREATE INDEX ON wins (winner) WHERE NOT ended;
	CREATE UNLOGGED TABLE oddities (what text);

	-- Some keys, each as often as it comes, in any order.
	CREATE FUNCTION some_keys() RETURNS text[] LANGUAGE sql VOLATILE AS
		$$ SELECT array_agg('key ' || floor(random() * 30)::int) FROM generate_series(1, 15) $$;
});

# Claims a batch and writes down what it won, in a transaction that may also be
# rolled back.
my $claim = q{
BEGIN;
WITH k AS MATERIALIZED (SELECT some_keys() AS keys),
	c AS MATERIALIZED (SELECT c.* FROM k, LATERAL idemkit_claim_many(k.keys, lease_ttl_seconds => 600) WITH ORDINALITY c
		(result, our_claim_token, recovered_from_corrupt, fingerprint_matches, effective_key, state, fingerprint,
		fingerprint_version, claim_token, claimed_at, lease_until, completed_at, response_status, response_headers,
		response_body, attempts, remaining_seconds, fence, n)),
	w AS (INSERT INTO wins SELECT effective_key, our_claim_token, :client_id FROM c
		WHERE our_claim_token IS NOT NULL ORDER BY effective_key),
	o AS (INSERT INTO oddities SELECT format('%s answers to %s keys', (SELECT count(*) FROM c), cardinality(k.keys))
		FROM k WHERE (SELECT count(*) FROM c) <> cardinality(k.keys)
			OR (SELECT array_agg(effective_key ORDER BY n) FROM c) <> k.keys)
SELECT count(our_claim_token) AS won FROM c;
\if random(1, 5) = 1
ROLLBACK;
\else
COMMIT;
\endif
};

# Ends what it holds: completed in a batch, some with a retention that is over
# at once; or released or given up one by one. (No statement here but a batch may
# lock more than one row: it would not keep their order.)
my $end = q{
\set way random(1, 4)
\if :way <= 2
BEGIN;
WITH mine AS MATERIALIZED (SELECT key, token FROM wins WHERE winner = :client_id AND NOT ended ORDER BY random()),
	d AS MATERIALIZED (SELECT d.done FROM (SELECT array_agg(key) AS keys, array_agg(token) AS tokens FROM mine HAVING count(*) > 0) a,
		LATERAL idemkit_complete_many(a.keys, a.tokens, expires_after_seconds => (:way - 1) * 0.02) d(done)),
	e AS (UPDATE wins SET ended = true WHERE winner = :client_id AND NOT ended)
INSERT INTO oddities SELECT 'a completion failed' FROM d WHERE NOT done;
COMMIT;
\elif :way = 3
UPDATE wins SET ended = true WHERE winner = :client_id AND NOT ended;
SELECT count(idemkit_release(key, token)) FROM (SELECT key, token FROM wins WHERE winner = :client_id AND ended ORDER BY key) w;
\else
UPDATE wins SET ended = true WHERE winner = :client_id AND NOT ended;
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 ms' WHERE state = 'CLAIMED' AND claim_token =
	(SELECT token FROM wins JOIN idemkit_records ON effective_key = key AND claim_token = token
		WHERE winner = :client_id AND state = 'CLAIMED' ORDER BY key LIMIT 1);
SELECT count(idemkit_renew(key, token, 0.001)) FROM (SELECT key, token FROM wins WHERE winner = :client_id AND ended ORDER BY key) w;
\endif
};
my $single = q{
SELECT result FROM idemkit_claim('key ' || :client_id % 30, lease_ttl_seconds => 0.001);
SELECT idemkit_vacuum(lease_grace_seconds => 0);
};

$node->bench('batches that cross each other', "-c $clients -j 2 -t $turns", $claim . $end, $single);
is($node->value('SELECT what, count(*) FROM oddities GROUP BY what'), '', 'every key has its answer, in order');
cmp_ok($node->value('SELECT count(DISTINCT winner) FROM wins'), '==', $clients, 'every session won keys');
cmp_ok($node->value('SELECT count(*) FROM wins'), '>', $clients * $turns / 10, 'often');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/deadlock detected/, 'and never deadlocked');

# Ten thousand keys in one call, from two sessions in opposite orders.
my @sessions = ($node->session, $node->session);
my @orders   = ('ASC', 'DESC');
$node->value('TRUNCATE idemkit_records');
foreach my $i (0, 1)
{
	$node->begin_statement($sessions[$i],
		"SELECT count(our_claim_token), count(*) FROM idemkit_claim_many((SELECT array_agg('big ' || i ORDER BY i $orders[$i])"
		  . ' FROM generate_series(1, 10000) i))');
}
my @answers = map { scalar $_->query('') } @sessions;
like($answers[0], qr/^\d+\|10000$/, "the first has all answers: $answers[0]");
like($answers[1], qr/^\d+\|10000$/, "the second has all answers: $answers[1]");
is((map { /^(\d+)/ } @answers)[0] + (map { /^(\d+)/ } @answers)[1], 10000, 'together they won each key once');

# One that waits for another's open batch is told what became of it.
foreach my $case ([ 'COMMIT', 'already_claimed|2' ], [ 'ROLLBACK', 'new_claimed|2' ])
{
	my ($how, $expected) = @$case;
	my $pid = $sessions[1]->query_safe('SELECT pg_backend_pid()');

	$sessions[0]->query_safe("BEGIN; SELECT idemkit_claim_many(ARRAY['$how 1', '$how 2'])");
	$node->begin_statement($sessions[1],
		"SELECT result, count(*) FROM idemkit_claim_many(ARRAY['$how 2', '$how 1']) GROUP BY result");
	$node->wait_until_blocked($pid);
	$sessions[0]->query_safe($how);
	is($sessions[1]->query(''), $expected, "a batch that waited for another's $how");
}

$_->quit foreach @sessions;
$node->storage_is_sound('idemkit_records');
$node->log_is_clean;
done_testing();
