# Programs that start at the same moment each create the table they need: all
# get it, none gets an error.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $sessions = 10;
my $rounds   = 10 * $IdemkitNode::long;
my $node     = IdemkitNode->launch('main', 'deadlock_timeout = 100ms');
my @sessions = map { $node->session } 1 .. $sessions;

# Sends one statement to all sessions so that they meet in it, and returns what
# each answered.  They wait for a lock first that the test holds until all do.
sub all_at_once
{
	my ($sql) = @_;
	my $gate = $node->session;

	$gate->query_safe('SELECT pg_advisory_lock(1)');
	foreach my $session (@sessions)
	{
		$node->begin_statement($session, "SELECT pg_advisory_xact_lock_shared(1) \\g /dev/null\n$sql");
	}
	$node->poll_query_until('postgres',
		"SELECT count(*) = $sessions FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
	  or die 'not all sessions came to the gate';
	$gate->quit;
	return map { join(' ', grep { $_ ne '' } split(/\n/, scalar $_->query('')), $_->{stderr}) } @sessions;
}

foreach my $round (1 .. $rounds)
{
	my @answers = all_at_once("SELECT idemkit_create_table('race$round')");

	is(join(' ', @answers), join(' ', ("race$round") x $sessions), "round $round: all sessions get the new table");
	is($node->sqlstate("SELECT idemkit_verify_schema('race$round')"), '00000', "round $round: it is complete");
	is($node->value("SELECT count(*) FROM pg_index WHERE indrelid = 'race$round'::regclass"),
		'2', "round $round: with one index beside the primary key");
}

# In a transaction: the others wait for its end, and one of them makes the table
# if it is rolled back.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $creator = $node->session;
	my $other   = $sessions[0];
	my $pid     = $other->query_safe('SELECT pg_backend_pid()');
	my $table   = lc "until_$end";

	$creator->query_safe("BEGIN; SELECT idemkit_create_table('$table')");
	$node->begin_statement($other, "SELECT idemkit_create_table('$table')");
	$node->wait_until_blocked($pid);
	$creator->query_safe($end);
	is($other->query(''), $table, "after a $end the session that waited has the table");
	is($node->sqlstate("SELECT idemkit_claim('k', records => '$table')"), '00000', 'which works');
	$creator->quit;
}

# A call that finds the table complete waits for nobody: programs start while
# others are at work, and while a claim is open.
my $worker = $node->session;
$worker->query_safe("BEGIN; SELECT idemkit_claim('open', records => 'race1')");
is($node->sqlstate("SET lock_timeout = '5s'; SELECT idemkit_create_table('race1')"),
	'00000', 'a complete table is not locked against those who use it');
$worker->query_safe('COMMIT');

$_->quit foreach $worker, @sessions;
$node->log_is_clean;
done_testing();
