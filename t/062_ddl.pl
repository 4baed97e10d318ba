# Sessions use every function while others drop, truncate, alter, rebuild and rename
# the table under them, and the extension: each call succeeds or raises what
# PostgreSQL and the contract say, the server neither crashes nor raises an internal
# error, and afterwards everything works.
#
# IDEMKIT_SEED=N repeats the choices, IDEMKIT_SIZE=N is the number of seconds of
# each of the parts.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use IPC::Run;
use Test::More;
use Time::HiRes qw(time);

my $seed    = IdemkitNode::seed();
my $seconds = IdemkitNode::size(2, 120);
my $node    = IdemkitNode->launch('main', 'autovacuum_naptime = 1', 'max_connections = 60', 'log_min_messages = error');

# What a call may raise: its contract, a rule that a batch cannot work with, and a
# deadlock with a command that wants to lock the table more strongly.
my @may_raise = qw(22004 22023 55000 42P01 54000 IK001 25001 0A000 40P01);

# What a change may be refused with, since the one before it stopped halfway.
my @may_refuse = qw(40P01 42704 42P01 42P07 42809 2BP01 42701 42710 42P06 3F000 55006);

$node->value(q{
	CREATE TABLE seen (state text, message text, context text);
	-- Runs each verb once on a few keys, catching what it raises.
	CREATE PROCEDURE use_all(records text) LANGUAGE plpgsql AS $$
	DECLARE
		key text := 'key ' || (random() * 20)::int;
		token text := 'none';
		call text;
		message text;
		context text;
		state text;
	BEGIN
		-- In one transaction or each in its own.
		FOREACH call IN ARRAY ARRAY[
			'SELECT our_claim_token FROM idemkit_claim(%1$L, lease_ttl_seconds => 0.05, records => %3$L)',
			'SELECT idemkit_renew(%1$L, %2$L, 0.05, %3$L)::text',
			'SELECT idemkit_guard(%1$L, %2$L, %3$L)::text',
			'SELECT state FROM idemkit_get(%1$L, %3$L)',
			'SELECT max(state) FROM idemkit_subscribe(ARRAY[%1$L, %1$L || ''x''], %3$L)',
			'SELECT outcome FROM idemkit_wait(%1$L, 0.01, %3$L)',
			'SELECT idemkit_complete(%1$L, %2$L, 200, ''{}'', ''body'', 0.05, %3$L)::text',
			'SELECT max(our_claim_token) FROM idemkit_claim_many(ARRAY[%1$L, %1$L || ''x'', %1$L || ''y''], lease_ttl_seconds => 0.05, records => %3$L)',
			'SELECT max(d::int)::text FROM idemkit_complete_many(ARRAY[%1$L, %1$L || ''x''], ARRAY[%2$L, %2$L], expires_after_seconds => 0.05, records => %3$L) d',
			'SELECT idemkit_release(%1$L, %2$L, random() < 0.5, %3$L)::text',
			'SELECT idemkit_vacuum(CASE WHEN random() < 0.5 THEN 0.1 END, 0, records => %3$L)::text',
			'SELECT live_claims::text FROM idemkit_stats(%3$L)',
			'SELECT idemkit_verify_schema(%3$L)::text']
		LOOP
			BEGIN
				EXECUTE format(call, key, coalesce(token, 'none'), records) INTO message;
				IF call LIKE '%our_claim_token%' THEN
					token := message;
				END IF;
				state := '00000';
			EXCEPTION WHEN OTHERS THEN
				GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, context = PG_EXCEPTION_CONTEXT;
				state := SQLSTATE;
				INSERT INTO seen VALUES (SQLSTATE, message, context);
			END;
			IF random() < 0.5 THEN
				COMMIT;
			END IF;
		END LOOP;
	END $$});

# Runs the verbs in six sessions and changes in another, for a while.
my ($all_calls, $all_changes) = (0, 0);

sub under_change
{
	my ($name, $changes, %also) = @_;
	my $part = $node->script("CALL use_all('$also{records}');\n");
	my $running = IPC::Run::start([ 'pgbench', '-n', '-c', 6, '-T', $seconds, '-f', $part, $node->connstr('postgres') ],
		'>', \my $output, '2>', \my $errors);
	my $changer = $node->session;
	my ($changed, $refused) = (0, 0);
	my $until = time + $seconds;

	$changer->query_safe("SET client_min_messages = error; SET deadlock_timeout = '50ms'; SET search_path = public");
	# On a slow machine some changes come when the calls have ended already.
	while (time < $until || $changed < 4 && time < $until + $IdemkitNode::patience)
	{
		my $change = $changes->[ rand(@$changes) ];
		my $state  = $node->session_sqlstate($changer, $change);

		if ($state eq '00000')
		{
			$changed++;
			next;
		}
		fail("$name: $change: $state") if !grep { $_ eq $state } @may_refuse;
		$refused++;
		$changer->query('ROLLBACK');
		$changer->{stderr} = '';
	}
	$changer->quit;
	$running->finish;
	is($errors =~ s/^pgbench .*\n//r, '', "$name: every call came back");
	my ($rounds) = $output =~ /transactions actually processed: (\d+)/;
	$all_calls += 13 * $rounds;
	$all_changes += $changed;
	cmp_ok($changed, '>', 3, "$name: $changed changes were made ($refused refused) under $rounds rounds of calls");
	my $seen = $node->value('SELECT state, count(*) FROM seen GROUP BY 1 ORDER BY 1');
	note "$name: ", $seen =~ s/\n/, /gr;
	my $allowed = join(', ', map { "'$_'" } @may_raise, @{ $also{allowed} });
	my @wrong   = grep { !defined $also{pattern} || $_ !~ $also{pattern} }
	  split(/\n/, $node->value("SELECT DISTINCT state || ': ' || message FROM seen WHERE state NOT IN ($allowed)"));
	is(join("\n", @wrong), '', "$name: nothing was raised but what may be");
	$node->value('TRUNCATE seen');
	return;
}

# Afterwards, the same sessions gone or not, all verbs work again.  @parts hold the rows of
# a partitioned table.
sub works
{
	my ($name, $table, @parts) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$node->storage_is_sound(@parts ? @parts : $table);
	is($node->value("SELECT idemkit_verify_schema('$table'); TRUNCATE $table;"
			. "SELECT our_claim_token AS t FROM idemkit_claim('k', records => '$table') \\gset\n"
			. "SELECT idemkit_renew('k', :'t', records => '$table'), idemkit_complete('k', :'t', 200, records => '$table');"
			. "SELECT result FROM idemkit_claim('k', records => '$table')"),
		"\nt|t\nalready_completed", "$name: afterwards all works");
	return;
}

$node->value(q{SELECT idemkit_create_table('rebuilt')});
under_change('rebuilding', [
		'VACUUM FULL rebuilt', 'VACUUM rebuilt', 'ANALYZE rebuilt', 'REINDEX TABLE rebuilt',
		'REINDEX TABLE CONCURRENTLY rebuilt', 'REINDEX INDEX CONCURRENTLY rebuilt_pkey',
		'CLUSTER rebuilt USING rebuilt_pkey', 'CLUSTER rebuilt USING rebuilt_lease_until_idx',
		'DROP INDEX rebuilt_lease_until_idx; CREATE INDEX rebuilt_lease_until_idx ON rebuilt (lease_until)',
		'DROP INDEX CONCURRENTLY rebuilt_lease_until_idx',
		'CREATE INDEX CONCURRENTLY IF NOT EXISTS rebuilt_lease_until_idx ON rebuilt (lease_until)',
		'ALTER TABLE rebuilt DROP CONSTRAINT rebuilt_pkey, ADD PRIMARY KEY (effective_key)',
		'BEGIN; DROP INDEX IF EXISTS rebuilt_lease_until_idx; ROLLBACK',
		'ALTER TABLE rebuilt SET UNLOGGED', 'ALTER TABLE rebuilt SET LOGGED', 'ALTER TABLE rebuilt SET (fillfactor = 50)' ],
	records => 'rebuilt');
$node->value('CREATE INDEX IF NOT EXISTS rebuilt_lease_until_idx ON rebuilt (lease_until)');
works('rebuilding', 'rebuilt');

$node->value(q{
	CREATE TABLE parted (LIKE idemkit_records INCLUDING ALL) PARTITION BY HASH (effective_key);
	CREATE TABLE part_0 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE part_1 PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER 1)});
under_change('rebuilding partitions', [
		'REINDEX TABLE CONCURRENTLY part_0', 'REINDEX TABLE CONCURRENTLY part_1',
		'REINDEX INDEX CONCURRENTLY part_0_pkey', 'REINDEX TABLE part_1', 'VACUUM FULL part_0', 'ANALYZE parted' ],
	records => 'parted');
works('rebuilding partitions', 'parted', qw(part_0 part_1));

$node->value(q{SELECT idemkit_create_table('altered')});
under_change('altering', [
		'TRUNCATE altered',
		'ALTER TABLE altered ADD COLUMN IF NOT EXISTS note text', 'ALTER TABLE altered DROP COLUMN IF EXISTS note',
		"ALTER TABLE altered ADD COLUMN IF NOT EXISTS n serial NOT NULL", 'ALTER TABLE altered DROP COLUMN IF EXISTS n',
		'ALTER TABLE altered RENAME attempts TO tries; ALTER TABLE altered RENAME tries TO attempts',
		'ALTER TABLE altered DROP COLUMN awaited; ALTER TABLE altered ADD COLUMN awaited boolean NOT NULL DEFAULT false',
		'ALTER TABLE altered ALTER response_body TYPE text USING encode(response_body, $$hex$$);'
		. ' ALTER TABLE altered ALTER response_body TYPE bytea USING decode(response_body, $$hex$$)',
		'ALTER TABLE altered ALTER attempts TYPE bigint; ALTER TABLE altered ALTER attempts TYPE integer',
		'ALTER TABLE altered ALTER claim_token TYPE varchar(40); ALTER TABLE altered ALTER claim_token TYPE text',
		'ALTER TABLE altered ALTER fingerprint DROP NOT NULL; ALTER TABLE altered ALTER fingerprint SET NOT NULL',
		'ALTER TABLE altered ENABLE ROW LEVEL SECURITY; ALTER TABLE altered DISABLE ROW LEVEL SECURITY',
		'CREATE RULE r AS ON DELETE TO altered DO ALSO SELECT 1; DROP RULE r ON altered',
		'CREATE TABLE child () INHERITS (altered); DROP TABLE child',
		'CREATE TRIGGER t BEFORE UPDATE ON altered FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();'
		. ' DROP TRIGGER t ON altered',
		'BEGIN; ALTER TABLE altered DROP COLUMN attempts; ROLLBACK' ],
	records => 'altered');
$node->value(q{SELECT idemkit_create_table('altered')});
works('altering', 'altered');

# A table of that name that goes and comes.  A name that is not there is refused
# before any function is called; a call in flight finds its table gone.
$node->value(q{SELECT idemkit_create_table('coming')});
under_change('dropping', [
		q{DROP TABLE IF EXISTS coming; SELECT idemkit_create_table('coming')},
		q{DROP TABLE IF EXISTS coming; SELECT idemkit_create_table('coming', true)},
		q{BEGIN; DROP TABLE IF EXISTS coming; SELECT idemkit_create_table('coming'); COMMIT},
		q{BEGIN; DROP TABLE IF EXISTS coming; SELECT idemkit_create_table('coming'); ROLLBACK},
		q{ALTER TABLE coming RENAME TO gone; SELECT idemkit_create_table('coming'); DROP TABLE gone},
		q{CREATE SCHEMA other; ALTER TABLE coming SET SCHEMA other; ALTER TABLE other.coming SET SCHEMA public; DROP SCHEMA other},
		q{CREATE SCHEMA other; ALTER TABLE coming SET SCHEMA other; ALTER SCHEMA other RENAME TO another; DROP SCHEMA another CASCADE},
		q{DROP TABLE IF EXISTS coming; CREATE VIEW coming AS SELECT 1; DROP VIEW coming},
		q{BEGIN; DROP TABLE IF EXISTS coming; CREATE TABLE coming (LIKE idemkit_records INCLUDING ALL)}
		. q{ PARTITION BY HASH (effective_key); CREATE TABLE part PARTITION OF coming FOR VALUES WITH (MODULUS 1, REMAINDER 0); COMMIT} ],
	records => 'coming');
$node->value(q{DROP TABLE IF EXISTS coming; SELECT idemkit_create_table('coming')});
works('dropping', 'coming');

# The extension itself.  A function that is dropped between the parsing of a call and
# its execution, or the type that it returns, is an internal error of the server's,
# whatever the function: those are let through, here only.
my $dropped = qr/^XX000: (?:cache lookup failed for (?:function|type) \d+|could not open relation with OID \d+)$/;
under_change('the extension', [
		'DROP EXTENSION idemkit; CREATE EXTENSION idemkit',
		'BEGIN; DROP EXTENSION idemkit; CREATE EXTENSION idemkit; COMMIT',
		'BEGIN; DROP EXTENSION idemkit; CREATE EXTENSION idemkit; ROLLBACK',
		'CREATE SCHEMA moved; ALTER EXTENSION idemkit SET SCHEMA moved; ALTER EXTENSION idemkit SET SCHEMA public; DROP SCHEMA moved' ],
	records => 'idemkit_records', pattern => $dropped, allowed => [ '42883', '42704' ]);
works('the extension', 'idemkit_records');

IdemkitNode::report("ddl: seed $seed, 5 parts of $seconds s, $all_calls calls, $all_changes changes");
$node->log_is_clean;
done_testing();
