# A sweep removes what has expired, batch by batch, beside everything else that
# goes on, and nothing that is live.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use IPC::Run;
use Test::More;

# Without autovacuum, whose transactions a sweep would give way to.
my $node = IdemkitNode->launch('main', "idemkit.notify = 'never'", 'autovacuum = off');
my $rows = 20_000;

# Records that are over, of both kinds, and live ones of both kinds.
sub fill
{
	$node->value(qq{
		TRUNCATE idemkit_records;
		INSERT INTO idemkit_records (effective_key, state, fingerprint, fingerprint_version, claim_token,
			claimed_at, lease_until, completed_at, response_body)
		SELECT 'over ' || i, CASE WHEN i % 4 = 0 THEN 'CLAIMED' ELSE 'COMPLETED' END, '', 1, 't' || i,
			now() - interval '2 d', now() - interval '1 d' + i * interval '1 ms',
			CASE WHEN i % 4 <> 0 THEN now() - interval '2 d' END, repeat('x', 100)::bytea
		FROM generate_series(1, $rows) i;
		INSERT INTO idemkit_records (effective_key, state, fingerprint, fingerprint_version, claim_token,
			claimed_at, lease_until, completed_at)
		SELECT 'live ' || i, CASE WHEN i % 2 = 0 THEN 'CLAIMED' ELSE 'COMPLETED' END, '', 1, 't' || i,
			now() - interval '2 d', now() + interval '1 d', CASE WHEN i % 2 = 1 THEN now() - interval '2 d' END
		FROM generate_series(1, 500) i});
	return;
}

# Beside claims of the very rows that are being removed, and of others.  A table
# with a trigger is swept by other means than one without, so both are tried.
$node->value(q{
	CREATE UNLOGGED TABLE wins (key text, token text, completed boolean);
	CREATE UNIQUE INDEX ON wins (key);
	CREATE FUNCTION go_on() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN OLD; END $$});
my $claims = qq{
\\set row random(1, $rows)
SELECT (our_claim_token IS NOT NULL)::int AS won, coalesce(our_claim_token, '') AS token
	FROM idemkit_claim('over ' || :row, lease_ttl_seconds => 3600) \\gset
\\set completes random(0, 1)
\\if :won
INSERT INTO wins VALUES ('over ' || :row, ':token', :completes = 1);
\\endif
\\if :won * :completes
SELECT 1 / idemkit_complete('over ' || :row, ':token', 200, expires_after_seconds => 3600)::int;
\\endif
SELECT 1 / (our_claim_token IS NULL)::int FROM idemkit_claim('live ' || (1 + :row % 500));
};
foreach my $case ('without', 'with')
{
	my $name = "a table $case a trigger";
	my ($out, $err, $removed, $sweeps) = ('', '', 0, 0);

	fill();
	$node->value('TRUNCATE wins');
	$node->value('CREATE TRIGGER go_on BEFORE DELETE ON idemkit_records FOR EACH ROW EXECUTE FUNCTION go_on()')
	  if $case eq 'with';
	my $load = IPC::Run::start(
		[
			'pgbench', '-n', '-c', '6', '-j', '1', '-t', 1000 * $IdemkitNode::long,
			'-f', $node->script($claims), $node->connstr('postgres')
		],
		'>', \$out, '2>', \$err, IPC::Run::timeout($IdemkitNode::patience));
	$node->poll_query_until('postgres', 'SELECT count(*) > 50 FROM wins') or die 'the load makes no progress';
	while ($load->pumpable)
	{
		$load->pump_nb;
		$removed += $node->value('SET client_min_messages = warning; CALL idemkit_sweep(batch_rows => 300)');
		$sweeps++;
	}
	$load->finish;
	is($load->result(0) . $err, '0', "$name: no claim fails beside a sweep") or diag($err);
	is($node->value(q{
			SELECT w.key, r FROM wins w LEFT JOIN idemkit_records r ON r.effective_key = w.key
			WHERE r.effective_key IS NULL OR r.claim_token <> w.token OR r.lease_until < clock_timestamp()
				OR (r.state = 'COMPLETED') <> w.completed}),
		'', "$name: every key that was won beside $sweeps sweeps is held or completed as it was");
	is($node->value(q{SELECT count(*) FROM idemkit_records WHERE effective_key LIKE 'live %'}),
		'500', "$name: nothing live is gone");
	is($node->value(q{SELECT count(*) FROM idemkit_records WHERE lease_until < clock_timestamp()}),
		'0', "$name: nothing expired is left");
	my $taken = $node->value('SELECT count(*) FROM wins');
	cmp_ok($removed, '>', 0, "$name: the sweeps removed $removed records, $taken were won");
	cmp_ok($removed, '<=', $rows, "$name: and not more than there were");
}

# The catalogue says that a table has triggers until it is vacuumed after the
# last has gone.
sub drop_trigger
{
	my ($trigger) = @_;

	$node->value("DROP TRIGGER $trigger ON idemkit_records");
	$node->value('VACUUM idemkit_records');
	is($node->value(q{SELECT relhastriggers FROM pg_class WHERE oid = 'idemkit_records'::regclass}),
		'f', "the table is without trigger $trigger again");
	return;
}
drop_trigger('go_on');

# Batches are committed one by one: what a batch has removed is gone for others
# while the next is at work, and stays gone when that is cancelled.
fill();
$node->value(q{
	CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END $$;
	CREATE TRIGGER wait_here BEFORE DELETE ON idemkit_records FOR EACH ROW
		WHEN (OLD.effective_key = 'over 2500') EXECUTE FUNCTION wait_here()});
my $gate    = $node->session;
my $sweeper = $node->session;
my $pid     = $sweeper->query_safe('SELECT pg_backend_pid()');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->begin_statement($sweeper, 'CALL idemkit_sweep(batch_rows => 1000)');
$node->wait_until_blocked($pid);
is($node->value(q{SELECT count(*) FROM idemkit_records WHERE effective_key LIKE 'over %'}),
	$rows - 1500, 'the batches before are committed while one is at work');
like($node->value("SELECT query FROM pg_stat_activity WHERE pid = $pid"),
	qr/idemkit_sweep.*\b1500\b/, 'pg_stat_activity shows how far it is');
is($node->value("SELECT result FROM idemkit_claim('over 1')"), 'new_claimed', 'a key of theirs can be won');
is($node->value("SET lock_timeout = '5s'; SELECT result FROM idemkit_claim('over 19999')"),
	'new_claimed', 'and one that is still to be swept');
$node->value("SELECT pg_cancel_backend($pid)");
like($node->session_sqlstate($sweeper, ''), qr/57014/, 'a sweep can be cancelled');
is($node->value(q{SELECT count(*) FROM idemkit_records WHERE effective_key LIKE 'over %'}),
	$rows - 1500 + 1, 'what its batches removed stays removed, the last batch is undone');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
drop_trigger('wait_here');
is($sweeper->query_safe('SET client_min_messages = warning; CALL idemkit_sweep()'),
	$rows - 1500 - 1, 'the next sweep does the rest, and says how much');
is($node->value('SELECT count(*) FROM idemkit_records'), '502', 'only live records are left');
is($sweeper->query_safe('CALL idemkit_sweep()'), '0', 'a sweep with nothing to do');

# It gives way to others that write: small batches then, whatever was asked for.
# A trigger that writes down the transaction of each row tells the batches apart.
$node->value(q{
	CREATE UNLOGGED TABLE batches (xid xid8);
	CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO batches VALUES (pg_current_xact_id()); RETURN NULL; END $$;
	CREATE TRIGGER note AFTER DELETE ON idemkit_records FOR EACH ROW EXECUTE FUNCTION note()});
foreach my $beside ('nobody', 'a session that writes')
{
	my ($out, $err, $writer) = ('', '');

	fill();
	$node->value('TRUNCATE batches');
	if ($beside ne 'nobody')
	{
		$writer = IPC::Run::start([ 'pgbench', '-n', '-T', '600', '-h', $node->host, '-p', $node->port,
				'-f', $node->script("SELECT pg_current_xact_id();\n"), 'postgres' ],
			'>', \$out, '2>', \$err);
		$node->wait_until('the writer to write',
			sub { $node->value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_current_xact_id%'") > 0 });
	}
	is($sweeper->query_safe('SET client_min_messages = warning; CALL idemkit_sweep(batch_rows => 5000)'),
		$rows, "a sweep beside $beside removes all");
	if (defined $writer) { $writer->kill_kill(); }
	my $batches = $node->value('SELECT count(DISTINCT xid::text) FROM batches');
	cmp_ok($batches, $beside eq 'nobody' ? '==' : '>', $beside eq 'nobody' ? 9 : 20,
		"in as many transactions as fit: $batches");
}
drop_trigger('note');

# Rows that others have locked are passed over, not waited for.
fill();
$gate->query_safe(q{BEGIN; SELECT idemkit_claim('over 1'), idemkit_claim('over 400'), idemkit_claim('over 19999')});
is($sweeper->query_safe("SET lock_timeout = '5s'; CALL idemkit_sweep(batch_rows => 100)"),
	$rows - 3, 'a sweep passes over locked rows, in every batch');
$gate->query_safe('ROLLBACK');
is($sweeper->query_safe('CALL idemkit_sweep()'), '3', 'and takes them next time');

# Two sweeps at once share the work.
fill();
$node->bench('sweeps side by side', '-c 4 -j 2 -t 2', "SET client_min_messages = warning;\nCALL idemkit_sweep(batch_rows => 50);\n");
is($node->value('SELECT count(*) FROM idemkit_records'), '500', 'leave what is live');

# The grace is for claims whose lease has ended, not for results.
fill();
is($sweeper->query_safe('CALL idemkit_sweep(lease_grace_seconds => 200000)'), $rows * 3 / 4, 'lease_grace_seconds spares lapsed claims');
is($sweeper->query_safe('CALL idemkit_sweep()'), $rows / 4, 'until it is over');
$node->value("SELECT idemkit_create_table('custom'); SELECT idemkit_claim('k', records => 'custom');"
	  . " UPDATE custom SET lease_until = now() - interval '1 d'");
is($sweeper->query_safe("CALL idemkit_sweep(records => 'custom')"), '1', 'a custom table');

# Where it cannot commit it refuses to start.
fill();
foreach my $sql (
	'BEGIN; CALL idemkit_sweep(); COMMIT',
	'SAVEPOINT s; CALL idemkit_sweep()',
	'BEGIN; DO $$ DECLARE n bigint; BEGIN CALL idemkit_sweep(n); END $$; COMMIT',
	'CREATE OR REPLACE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ DECLARE n bigint; BEGIN CALL idemkit_sweep(n); END $$; SELECT f()')
{
	my $block = $sql =~ s/^SAVEPOINT/BEGIN; SAVEPOINT/r;
	is($node->sqlstate($block), '25001', "refused: $block");
}
is($node->value('SELECT count(*) FROM idemkit_records'), $rows + 500, 'and has removed nothing');

is($node->sqlstate('DO $$ DECLARE n bigint; BEGIN CALL idemkit_sweep(n); ASSERT n = ' . $rows . '; END $$'),
	'00000', 'it runs in a DO block that is no transaction of its own');
fill();

# Others see the table at work all the time; the old rows can be vacuumed by the
# server while a sweep runs, as it holds no snapshot between batches.
$node->value(q{CREATE TRIGGER wait_here BEFORE DELETE ON idemkit_records FOR EACH ROW
	WHEN (OLD.effective_key = 'over 2500') EXECUTE FUNCTION wait_here()});
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->begin_statement($sweeper, 'CALL idemkit_sweep(batch_rows => 1000)');
$node->wait_until_blocked($pid);
my (undef, undef, $vacuum) = $node->psql('postgres', 'VACUUM (VERBOSE, INDEX_CLEANUP on) idemkit_records');
# Some of them may have been pruned in passing: their identifiers are still there.
like($vacuum, qr/\b1500 (?:dead item identifiers )?removed\b|\bremoved 1500\b/, 'the rows that its first batches removed can be vacuumed while it runs');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
like($sweeper->query(''), qr/^$rows$/m, 'and it comes to its end');

$_->quit foreach $gate, $sweeper;
$node->log_is_clean;
done_testing();
