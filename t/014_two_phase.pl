# Claims in a prepared transaction: held until it is committed or rolled back,
# even over a restart of the server.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main', 'max_prepared_transactions = 5', "idemkit.notify = 'never'");
$node->value('CREATE TABLE charges (key text, amount int)');

# Work, claim and completion, up to the first phase.
sub prepare_work
{
	my ($key) = @_;

	$node->value(qq{
		BEGIN;
		SELECT our_claim_token AS token FROM idemkit_claim('$key') \\gset
		SELECT idemkit_guard('$key', :'token');
		INSERT INTO charges VALUES ('$key', 1);
		SELECT idemkit_complete('$key', :'token', 200);
		PREPARE TRANSACTION '$key'});
	return;
}

$node->value(q{
	BEGIN;
	SELECT string_agg(our_claim_token, ',') AS tokens FROM idemkit_claim_many(ARRAY['batch 1', 'batch 2']) \gset
	SELECT idemkit_complete_many(ARRAY['batch 1', 'batch 2'], string_to_array(:'tokens', ','));
	PREPARE TRANSACTION 'batch';
	COMMIT PREPARED 'batch'});
is($node->value("SELECT string_agg(result, ' ') FROM idemkit_claim_many(ARRAY['batch 1', 'batch 2'])"),
	'already_completed already_completed', 'batches can be prepared');
$node->value('TRUNCATE idemkit_records');

prepare_work($_) foreach 'commit', 'rollback', 'over restart';
foreach my $key ('commit', 'rollback', 'over restart')
{
	is($node->sqlstate("SET lock_timeout = '100ms'; SELECT idemkit_claim('$key')"),
		'55P03', "$key: the key is held by the prepared transaction");
	is($node->value("SELECT count(*) FROM idemkit_get('$key')"), '0', "$key: and not to be seen");
}
is($node->value('SELECT idemkit_vacuum(0)'), '0', 'vacuum waits for none of them');

# One that waits gets the outcome.
foreach my $case ([ 'commit', 'COMMIT', 'already_completed|200' ], [ 'rollback', 'ROLLBACK', 'new_claimed|' ])
{
	my ($key, $end, $expected) = @$case;
	my $waiter = $node->session;
	my $pid    = $waiter->query_safe('SELECT pg_backend_pid()');

	$node->begin_statement($waiter, "SELECT result, response_status FROM idemkit_claim('$key')");
	$node->wait_until_blocked($pid);
	$node->value("$end PREPARED '$key'");
	is($waiter->query(''), $expected, "$key: a claim that waited is told the outcome");
	$waiter->quit;
}
is($node->value('SELECT key FROM charges'), 'commit', 'the work and the result stand or fall together');

$node->restart;
is($node->sqlstate("SET lock_timeout = '100ms'; SELECT idemkit_claim('over restart')"),
	'55P03', 'over restart: the key is still held');
$node->value("COMMIT PREPARED 'over restart'");
is($node->value("SELECT result, response_status FROM idemkit_claim('over restart')"),
	'already_completed|200', 'over restart: the result is there after the second phase');

# With notifications the server itself refuses: nothing may be left behind.
is($node->sqlstate(q{
		SET idemkit.notify = always;
		BEGIN;
		SELECT our_claim_token AS token FROM idemkit_claim('notifies') \gset
		SELECT idemkit_complete('notifies', :'token');
		PREPARE TRANSACTION 'notifies'}),
	'0A000', 'a transaction that notifies cannot be prepared');
is($node->value("SELECT result FROM idemkit_claim('notifies')"), 'new_claimed', 'and has left nothing behind');

# Under awaited that depends on whether somebody waits for the claim.
foreach my $case ([ 'nobody waits', '', '00000', 'already_completed' ], [ 'somebody waits', "SELECT idemkit_subscribe(ARRAY['%1\$s']);", '0A000', 'new_claimed' ])
{
	my ($key, $subscribe, $state, $verdict) = @$case;

	is($node->sqlstate(sprintf(
				"SET idemkit.notify = awaited;
				BEGIN;
				SELECT our_claim_token AS token FROM idemkit_claim('%1\$s') \\gset
				$subscribe
				SELECT idemkit_complete('%1\$s', :'token');
				PREPARE TRANSACTION '%1\$s';
				COMMIT PREPARED '%1\$s'", $key)),
		$state, "awaited, and $key: prepared or not");
	is($node->value("SELECT result FROM idemkit_claim('$key')"), $verdict, "awaited, and $key: and then");
}
is($node->sqlstate(q{
		SET idemkit.notify = awaited;
		BEGIN;
		SELECT our_claim_token AS token FROM idemkit_claim('released') \gset
		SELECT idemkit_release('released', :'token', true);
		PREPARE TRANSACTION 'released';
		ROLLBACK PREPARED 'released'}),
	'00000', 'a release can be prepared too');

is($node->sqlstate(q{
		SET idemkit.notify = always;
		BEGIN;
		SELECT idemkit_claim('only claimed');
		PREPARE TRANSACTION 'only claimed'}),
	'00000', 'one that only claims can');
$node->value("COMMIT PREPARED 'only claimed'");
is($node->value("SELECT result FROM idemkit_claim('only claimed')"), 'already_claimed', 'and is committed');

$node->log_is_clean;
done_testing();
