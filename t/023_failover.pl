# A primary is killed under 32 sessions that do everything at once, and its
# synchronous standby is promoted.  Everything that a client was told still holds
# there, and leases go on.
#
# IDEMKIT_SEED=N repeats the scripts of the clients and the choice of moments,
# IDEMKIT_SIZE=N is the number of failovers.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use IPC::Run;
use Ledger;
use List::Util qw(min);
use Load;
use Test::More;
use Time::HiRes qw(usleep);

my $seed      = IdemkitNode::seed();
my $failovers = IdemkitNode::size(2, 20);
my $clients   = 32;
my $turns     = 400;                         # more than a client gets through

# A standby that has what commits of the primary wait for: written to its disk
# (on), or shown to its sessions too (remote_apply).
my @commits = ('remote_apply', 'on');

my $primary = IdemkitNode->launch('node0', 'fsync = on', 'hot_standby_feedback = on');
my $amcheck = $primary->value(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'});
$primary->value('CREATE EXTENSION amcheck') if $amcheck;
Load::prepare($primary);
$primary->value(q{SELECT idemkit_create_table('owners')});    # which no client of the load touches

my $ledger = Ledger->new;

# A standby of the primary, for which its commits wait from now on.
sub add_standby
{
	my ($number, $commit) = @_;
	my $standby = IdemkitNode->new("node$number");

	$primary->backup('base');
	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->start;
	$primary->value("ALTER SYSTEM SET synchronous_standby_names = '*'");
	$primary->value("ALTER SYSTEM SET synchronous_commit = '$commit'");
	$primary->reload;
	$primary->poll_query_until('postgres',
		"SELECT count(*) = 1 AND current_setting('synchronous_commit') = '$commit' FROM pg_stat_replication WHERE sync_state = 'sync'")
	  or die 'the standby does not become synchronous';
	return $standby;
}

# Kills every process of the primary at once, as when its machine goes down; the
# standby may have lost touch with it a moment before.
sub kill_primary
{
	my ($sender) = $primary->value('SELECT pid FROM pg_stat_replication');
	my ($postmaster, @children) = $primary->processes;

	if (rand() < 0.5)
	{
		kill 'STOP', $sender;
		usleep(rand(50_000));
	}
	$primary->kill9;
	kill 'KILL', @children;
	$primary->wait_until('the primary is gone', sub { !grep { kill 0, $_ } $postmaster, @children });
	return;
}

# A program that waits for the result of a claim, with both servers to go to.
sub start_waiter
{
	my ($key, @nodes) = @_;
	my $waiter = { out => '', err => '' };
	my $dsn    = 'dbname=postgres target_session_attrs=read-write connect_timeout=5 host=' . join(',', map { $_->host } @nodes)
	  . ' port=' . join(',', map { $_->port } @nodes);

	$waiter->{run} = IPC::Run::start(
		[ 'idemkit', 'wait', '--table', 'owners', '--key', $key, '--timeout', $IdemkitNode::patience, '--body', '--dbname', $dsn ],
		'<', '/dev/null', '>', \$waiter->{out}, '2>', \$waiter->{err});
	$nodes[0]->poll_query_until('postgres', "SELECT awaited FROM owners WHERE effective_key = '$key'")
	  or die 'nobody waits';
	return $waiter;
}

my ($violations, $waits) = (0, 0);
foreach my $round (1 .. $failovers)
{
	my $commit  = $commits[ ($round - 1) % @commits ];
	my $standby = add_standby($round, $commit);
	my %token   = map {
		("$_$round" => $primary->value("SELECT our_claim_token FROM idemkit_claim('$_$round', lease_ttl_seconds => "
				. ($_ eq 'brief' ? '0.001' : '3600') . ", records => 'owners')"))
	} qw(held awaited brief);
	my $until  = $primary->value("SELECT lease_until FROM owners WHERE effective_key = 'held$round'");
	my $waiter = start_waiter("awaited$round", $primary, $standby);
	my $load   = Load->start($primary, $round, $clients, $turns);

	# Somewhere in the middle of the work.
	my $moment = (10 + rand(100)) * 1024;
	$primary->wait_until('the clients are at work', sub { $load->written > $moment });
	usleep(rand(100_000));
	kill_primary();
	$standby->promote;
	$ledger->read_client($_) foreach $load->finish;

	my @broken = ($ledger->broken_promises($standby), $load->complaints);
	push @broken, $standby->unsound_storage(qw(idemkit_records brief effects)) || () if $amcheck;
	$violations += @broken;
	is(scalar @broken, 0, "failover $round ($commit): everything that a client was told still holds")
	  or diag(join("\n", "IDEMKIT_SEED=$seed", @broken[ 0 .. min(19, $#broken) ]));

	# Leases go on.
	is($standby->value("SELECT result, lease_until FROM idemkit_claim('held$round', records => 'owners')"),
		"already_claimed|$until", "failover $round: a lease ends when it would have");
	is($standby->value("SELECT idemkit_complete('held$round', '$token{qq(held$round)}', 200, records => 'owners')"), 't',
		"failover $round: its owner completes it");
	is($standby->value("SELECT result, attempts FROM idemkit_claim('brief$round', records => 'owners')"),
		'lease_reclaimed|2', "failover $round: a lease that has ended is taken over");

	# So do waits.
	is($standby->value("SELECT idemkit_complete('awaited$round', '$token{qq(awaited$round)}', 200, NULL, 'done', records => 'owners')"), 't',
		"failover $round: somebody waits for this");
	$waiter->{run}->finish;
	is($waiter->{run}->full_result(0) . $waiter->{out} . $waiter->{err}, '0done', "failover $round: and gets it");

	$primary->log_is_clean(qr/was terminated by signal 9: Killed/);
	$primary->clean_node;
	$primary = $standby;
}

my @verbs = qw(new_claimed lease_reclaimed already_claimed already_completed complete renew release wait removed unanswered);
IdemkitNode::report("$failovers failovers under $clients sessions, $violations violations; clients were told of "
	  . join(', ', map { $ledger->count($_) . " $_" } @verbs));
cmp_ok($ledger->count($_), '>', 0, "among what clients were told was: $_") foreach @verbs;

is($primary->value('SELECT idemkit_verify_schema()'), '', 'the table is sound');
$primary->log_is_clean;
done_testing();
