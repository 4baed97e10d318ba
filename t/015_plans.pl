# A session's plans are as good after a day as they were at first: made on an
# empty table they still use the indexes when it has grown, and they survive
# whatever is done to the table meanwhile.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main', 'autovacuum = off', "idemkit.notify = 'never'");

# Every statement of the verbs, so that every plan is made and used.
my $verbs = q{
DO $$
DECLARE
	key text := 'verb ' || txid_current() || '-' || clock_timestamp();
	token text;
BEGIN
	FOR turn IN 1..%1$d LOOP
		token := (SELECT our_claim_token FROM idemkit_claim(key || turn, records => '%2$s'));
		ASSERT token IS NOT NULL;
		ASSERT (SELECT result FROM idemkit_claim(key || turn, records => '%2$s')) = 'already_claimed';
		ASSERT idemkit_renew(key || turn, token, 60, '%2$s');
		PERFORM idemkit_guard(key || turn, token, '%2$s');
		PERFORM idemkit_get(key || turn, '%2$s');
		ASSERT idemkit_release(key || turn, token, true, '%2$s');
		token := (SELECT our_claim_token FROM idemkit_claim(key || turn, records => '%2$s'));
		ASSERT token IS NOT NULL;
		CASE turn %% 2
			WHEN 0 THEN ASSERT idemkit_complete(key || turn, token, 200, records => '%2$s');
			ELSE ASSERT idemkit_release(key || turn, token, records => '%2$s');
		END CASE;
		token := (SELECT our_claim_token FROM idemkit_claim_many(ARRAY[key || turn, 'x'], records => '%2$s') LIMIT 1);
		PERFORM idemkit_subscribe(ARRAY[key || turn, 'x'], '%2$s'), idemkit_wait(key || turn, 0, '%2$s');
		PERFORM idemkit_complete_many(ARRAY[key || turn, 'x'], ARRAY[coalesce(token, 'x'), 'x'], records => '%2$s');
		PERFORM idemkit_vacuum(records => '%2$s'), idemkit_vacuum(3600, records => '%2$s');
	END LOOP;
END $$};

# How often the table has been scanned as a whole, by the statistics of sessions
# that have ended; $least scans of all kinds must have been counted first.
sub sequential_scans
{
	my ($table, $least) = @_;

	$node->poll_query_until('postgres',
		"SELECT idx_scan + seq_scan >= $least FROM pg_stat_user_tables WHERE relname = '$table'")
	  or die 'the statistics do not arrive';
	return $node->value("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = '$table'");
}

# Plans made on an empty table, and used when 50,000 rows have come in.
foreach my $vacuumed (0, 1)
{
	my $table = $vacuumed ? 'vacuumed' : 'empty';

	$node->value("SELECT idemkit_create_table('$table')");
	$node->value("VACUUM ANALYZE $table") if $vacuumed;
	my $session = $node->session;
	$session->query_safe(sprintf($verbs, 6, $table));
	is($session->{stderr}, '', "$table: plans are made");
	$node->value("SELECT count(idemkit_claim('other ' || i, records => '$table', lease_ttl_seconds => 3600))"
		  . ' FROM generate_series(1, 50000) i');
	my $scans = sequential_scans($table, 1);
	$session->query_safe(sprintf($verbs, 40, $table));
	is($session->query_safe("SELECT count(*) FROM (SELECT idemkit_claim('other ' || i, records => '$table') AS c"
				. ' FROM generate_series(1, 200) i) s WHERE (c).result = $$already_claimed$$'),
		'200', "$table: and used when the table has grown");
	$session->quit;
	is(sequential_scans($table, 40 * 10), $scans, "$table: without one scan of the whole table");
}

# Plans made anew by a session that starts when the table is large and its
# statistics say that it is empty.
my $scans   = sequential_scans('vacuumed', 1);
my $session = $node->session;
my $indexed = $node->value("SELECT idx_scan FROM pg_stat_user_tables WHERE relname = 'vacuumed'");
$session->query_safe(sprintf($verbs, 40, 'vacuumed'));
$session->quit;
is(sequential_scans('vacuumed', $indexed + 400), $scans, 'nor by a session that starts with stale statistics');

# What happens to a table in a long life.
$session = $node->session;
$session->query_safe(sprintf($verbs, 4, 'vacuumed'));
foreach my $event (
	'ANALYZE vacuumed',
	'VACUUM vacuumed',
	'VACUUM FULL vacuumed',
	'REINDEX TABLE vacuumed',
	'REINDEX TABLE CONCURRENTLY vacuumed',
	'CLUSTER vacuumed USING vacuumed_pkey',
	'TRUNCATE vacuumed',
	'ALTER TABLE vacuumed SET UNLOGGED',
	'ALTER TABLE vacuumed SET LOGGED',
	'ALTER TABLE vacuumed ADD COLUMN note text',
	q{ALTER TABLE vacuumed ADD COLUMN place text DEFAULT 'here', DROP COLUMN note},
	'ALTER TABLE vacuumed ALTER response_body SET STORAGE external',
	'CREATE INDEX ON vacuumed (state)',
	'ALTER TABLE vacuumed DROP CONSTRAINT vacuumed_pkey, ADD PRIMARY KEY (effective_key)',
	'DROP INDEX vacuumed_lease_until_idx; CREATE INDEX vacuumed_lease_until_idx ON vacuumed (lease_until)')
{
	$node->value($_) foreach split(/; /, $event);
	$session->query(sprintf($verbs, 4, 'vacuumed'));
	is($session->{stderr}, '', "a session with plans goes on after: $event");
	$session->{stderr} = '';
}
$session->query_safe('DISCARD ALL');
$session->query(sprintf($verbs, 4, 'vacuumed'));
is($session->{stderr}, '', 'and after DISCARD ALL');

# The same done by the session itself, between two calls in one transaction.
foreach my $event ('TRUNCATE vacuumed', 'ALTER TABLE vacuumed ADD COLUMN IF NOT EXISTS late text', 'REINDEX TABLE vacuumed')
{
	$session->query("BEGIN; SELECT idemkit_claim('before', records => 'vacuumed') \\g /dev/null");
	$session->query("$event; SELECT idemkit_claim('after', records => 'vacuumed') \\g /dev/null");
	$session->query('ROLLBACK');
	is($session->{stderr}, '', "in one transaction with: $event");
	$session->{stderr} = '';
	is($session->query("SELECT result FROM idemkit_claim('after', records => 'vacuumed'); SELECT idemkit_vacuum(0);"
			. " DELETE FROM vacuumed"),
		"new_claimed\n0", "and after its rollback: $event");
}
$session->quit;

# Nor does it matter what a session had set for queries of its own when its plans
# were made.
my $tables = 0;
foreach my $setting (
	'enable_indexscan = off',
	'enable_nestloop = off',
	'random_page_cost = 1000000',
	'jit_above_cost = 0')
{
	my $table = 'setting_' . ++$tables;

	$node->value("SELECT idemkit_create_table('$table')");
	$session = $node->session;
	$session->query_safe("SET $setting");
	$session->query_safe(sprintf($verbs, 6, $table));
	$session->query_safe('RESET ' . $setting =~ s/ .*//r);
	$node->value("SELECT count(idemkit_claim('other ' || i, records => '$table', lease_ttl_seconds => 3600))"
		  . ' FROM generate_series(1, 5000) i');
	$scans   = sequential_scans($table, 1);
	$session->query_safe(sprintf($verbs, 20, $table));
	$session->quit;
	is(sequential_scans($table, 20 * 10), $scans, "nor by a session that had set $setting");
}

$node->log_is_clean;
done_testing();
