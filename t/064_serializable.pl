# Claims, work and completions in transactions of every isolation level, of many
# sessions over few keys, each retried when PostgreSQL says 40001 or 40P01: it says
# nothing else, the work of each key is done once, and every duplicate is told the
# result of it.
#
# IDEMKIT_SIZE=N is the number of transactions of each session.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use IPC::Run;
use Test::More;

plan skip_all => 'unavailable: pgbench retries since PostgreSQL 15'
  if `pgbench --help` !~ /--max-tries/;

my $transactions = IdemkitNode::size(250, 20_000);
my $sessions     = 8;
my $keys         = $transactions * 2;
my $node         = IdemkitNode->launch('main', "idemkit.notify = 'awaited'", 'deadlock_timeout = 50ms');

# A key is worked on in one transaction: claimed, guarded, charged to an account (a
# read of all charges before it is what serializable transactions conflict about),
# completed.  Some are told to begin again although nothing was in their way.
$node->value(q{
	CREATE TABLE charges (key text, amount int);
	CREATE TABLE outcomes (key text, result text, status int);
	CREATE FUNCTION work(key text) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		claim idemkit_claim_result := idemkit_claim(key, 'print', lease_ttl_seconds => 60);
		charged bigint;
	BEGIN
		IF claim.our_claim_token IS NOT NULL THEN
			PERFORM idemkit_guard(key, claim.our_claim_token);
			SELECT count(*) INTO charged FROM charges;
			INSERT INTO charges VALUES (key, charged);
			IF random() < 0.2 THEN
				RAISE EXCEPTION USING ERRCODE = '40001';
			END IF;
			IF NOT idemkit_complete(key, claim.our_claim_token, charged::int, expires_after_seconds => 3600) THEN
				RAISE EXCEPTION 'the claim was lost inside its own transaction';
			END IF;
		END IF;
		INSERT INTO outcomes VALUES (key, claim.result, claim.response_status);
	END $$;
	-- The same with a batch of two keys.
	CREATE FUNCTION work_on_two(a text, b text) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		claim idemkit_claim_result;
		charged bigint;
	BEGIN
		FOR claim IN SELECT * FROM idemkit_claim_many(ARRAY[a, b], lease_ttl_seconds => 60) LOOP
			IF claim.our_claim_token IS NOT NULL THEN
				SELECT count(*) INTO charged FROM charges;
				INSERT INTO charges VALUES (claim.effective_key, charged);
				PERFORM idemkit_complete_many(ARRAY[claim.effective_key], ARRAY[claim.our_claim_token], ARRAY[charged::int]);
			END IF;
			INSERT INTO outcomes VALUES (claim.effective_key, claim.result, claim.response_status);
		END LOOP;
	END $$});

my @queries = (
	[ 'SERIALIZABLE',    q{SELECT work('key ' || :n)} ],
	[ 'REPEATABLE READ', q{SELECT work('key ' || :n)} ],
	[ 'SERIALIZABLE',    q{SELECT work_on_two('key ' || :n, 'key ' || :m)} ],
	[ 'READ COMMITTED',  q{SELECT work('key ' || :n)} ],
	[ 'READ COMMITTED',  q{SELECT work_on_two('key ' || :n, 'key ' || :m)} ]);
my @scripts = map {
	my ($level, $query) = @$_;
	('-f', $node->script("\\set n random(1, $keys)\n\\set m (:n + random(0, $keys - 2)) % $keys + 1\nBEGIN ISOLATION LEVEL $level;\n$query;\nCOMMIT;\n"))
} @queries;
IPC::Run::run(
	[
		'pgbench', '-n', '-c', $sessions, '-t', $transactions, '--max-tries=100000', @scripts, $node->connstr('postgres')
	],
	'>', \my $output, '2>', \my $errors);

is($errors =~ s/^pgbench .*\n//r, '', 'nothing but 40001 and 40P01 was raised');
like($output, qr{transactions actually processed: (\d+)/\1$}m, 'every transaction came to its end');
my ($retries) = $output =~ /total number of retries: (\d+)/;
cmp_ok($retries, '>', 10, 'many had to begin again');
is($node->value('SELECT key, count(*) FROM charges GROUP BY key HAVING count(*) > 1'), '', 'the work of each key was done once');
is($node->value("SELECT count(*) FROM charges FULL JOIN (SELECT effective_key AS key, response_status FROM idemkit_records) r USING (key)"
		. ' WHERE amount IS DISTINCT FROM response_status'),
	'0', 'each record has the result of that work');
is($node->value("SELECT result, count(*) > 0 FROM outcomes GROUP BY 1 ORDER BY 1"),
	"already_completed|t\nnew_claimed|t", 'nobody saw a claim whose transaction was under way');
is($node->value("SELECT count(*) FROM outcomes JOIN charges USING (key) WHERE result = 'already_completed' AND status IS DISTINCT FROM amount"),
	'0', 'and every duplicate was told the result');
IdemkitNode::report("serializable: $sessions sessions, " . $sessions * $transactions . " transactions, $retries retries, "
	  . $node->value('SELECT count(*) FROM charges') . ' keys');

$node->storage_is_sound('idemkit_records');
$node->log_is_clean;
done_testing();
