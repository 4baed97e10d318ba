# Through pgbouncer: in transaction mode LISTEN does not work, and the waiter finds
# out; in session mode it may be told to trust it.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../../t/lib";

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use PgBouncer;
use Programs;
use Waits;

plan skip_all => 'unavailable: there is no pgbouncer' unless defined PgBouncer::program();

my $node = start_cluster('pgbouncer');
my $slow = slowness();
my $soon = 1.5 + $slow;
my $patience = 20 * $slow;
my $bouncer = PgBouncer->start($node,
	{ transaction => 'pool_mode=transaction pool_size=2', session => 'pool_mode=session' });
my $pooled = 'host=' . $bouncer->host . ' port=' . $bouncer->port;

sub claim
{
	my ($key) = @_;
	return $node->safe_psql('postgres',
		"SELECT our_claim_token FROM idemkit_claim('$key', lease_ttl_seconds => 600)");
}

sub complete
{
	my ($key, $token) = @_;
	$node->safe_psql('postgres',
		"SELECT idemkit_complete('$key', '$token', response_body => 'body of $key')");
	return;
}

# Transaction mode.
{
	my $waits = Waits->new("$pooled dbname=transaction");
	my @tokens = map { claim("t$_") } 1 .. 5;
	$waits->wait("t$_", "t$_", 60) for 1 .. 5;
	ok($waits->until(qr/notice POLLING [^\n]*pooler[^\n]*/, $patience),
		'transaction mode: the self-test detects it and says so');
	sleep 1.5;
	my $counters = $waits->counters;
	is($counters->{listening}, 0, 'transaction mode: it does not listen');
	for my $i (1 .. 5)
	{
		complete("t$i", $tokens[ $i - 1 ]);
		$waits->ended_ok("t$i", "completed \\[body of t$i\\]", $soon,
			'transaction mode: the wait ends right');
	}
	$waits->wait('none', 'none', 60);
	$waits->ended_ok('none', 'absent', $patience, 'transaction mode: absent');
	is( $node->safe_psql('postgres',
			"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"),
		0, 'transaction mode: no server connection was left after LISTEN');

	# the pooled connection is killed: the waiter's own is not, but its query fails
	my $token = claim('killed');
	$waits->wait('killed', 'killed', 60);
	sleep 0.3;
	$node->safe_psql('postgres',
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
		  . "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
	complete('killed', $token);
	$waits->ended_ok('killed', 'completed \[body of killed\]', $patience,
		'transaction mode: the wait survives the loss of the pooled connection');
	my $said = () = "$waits->{seen}$waits->{out}" =~ /^notice POLLING/mg;
	is($said, 1, 'transaction mode: it is said once');
	$waits->quit_ok('transaction mode');
}

# Session mode, not told: the waiter can not know, and re-reads.
# Session mode, told: notifications are as quick as without a pooler.
for my $listen ('auto', 'always')
{
	my $waits = Waits->new('-l', $listen, "$pooled dbname=session");
	my $token = claim("session $listen" =~ s/ /-/r);
	$waits->wait('session', "session-$listen", 60);
	sleep 2;
	is($waits->counters->{listening}, $listen eq 'always' ? 1 : 0,
		"session mode, $listen: listening or not");
	complete("session-$listen", $token);
	my $took = $waits->ended_ok('session', "completed \\[body of session-$listen\\]",
		$listen eq 'always' ? 0.4 * $slow : $soon, "session mode, $listen: the wait ends right");
	$waits->quit_ok("session mode, $listen");
}

$bouncer->stop;
$node->stop;
done_testing();
