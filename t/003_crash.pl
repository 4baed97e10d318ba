# The server is killed with SIGKILL while 32 sessions do everything at once: its
# postmaster, all of it, one session's process, or one of its own processes.  After
# each recovery everything that a client was told still holds: results are as they
# were stored, no key had two owners, nothing is half done, and amcheck finds the
# storage sound.
#
# A kill -9 loses what the server had not yet handed to the operating system, not
# what the operating system had not yet written to the disk.
#
# IDEMKIT_SEED=N repeats the scripts of the clients and the choice of moments,
# IDEMKIT_SIZE=N is the number of crashes.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Ledger;
use List::Util qw(min);
use Load;
use Test::More;
use Time::HiRes qw(usleep);

my $seed    = IdemkitNode::seed();
my $crashes = IdemkitNode::size(4, 100);
my $clients = 32;
my $turns   = 400;        # more than a client gets through
my @kinds   = ('postmaster', 'everything', 'session', 'process');

my $node = IdemkitNode->launch('main', 'fsync = on', 'restart_after_crash = on', 'checkpoint_timeout = 30s');
plan skip_all => 'unavailable: amcheck' if !$node->value(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'});
$node->value('CREATE EXTENSION amcheck');
Load::prepare($node);

my $ledger = Ledger->new;

# Kills and waits until the server is there again.
sub crash
{
	my ($kind) = @_;
	my @processes = $node->processes;

	if ($kind eq 'session' || $kind eq 'process')
	{
		my @candidates = split(
			/\n/,
			$node->value('SELECT pid FROM pg_stat_activity WHERE '
				  . ($kind eq 'session' ? "application_name = 'load'"
					: "backend_type NOT IN ('client backend', 'autovacuum worker')")));

		kill 'KILL', $candidates[ int(rand(@candidates)) ] or die 'there is nothing to kill';
		# The postmaster stays, and ends and starts everything else.
		$node->wait_until('all processes have ended', sub { !grep { kill 0, $_ } @processes[ 1 .. $#processes ] });
		$node->poll_query_until('postgres', 'SELECT true') or die 'the server does not come back';
	}
	else
	{
		$node->kill9;
		kill 'KILL', @processes[ 1 .. $#processes ] if $kind eq 'everything';
		$node->wait_until('the server is gone', sub { !grep { kill 0, $_ } @processes });
		$node->start;
	}
	return;
}

my ($violations, $recoveries) = (0, 0);
foreach my $round (1 .. $crashes)
{
	my $kind = $kinds[ ($round - 1) % @kinds ];
	my $load = Load->start($node, $round, $clients, $turns);

	# Somewhere in the middle of the work.
	my $moment = (20 + rand(200)) * 1024;
	$node->wait_until('the clients are at work', sub { $load->written > $moment });
	usleep(rand(100_000));
	crash($kind);
	$ledger->read_client($_) foreach $load->finish;

	my @broken = ($ledger->broken_promises($node), $load->complaints);
	my $unsound = $node->unsound_storage(qw(idemkit_records brief effects));
	$violations += @broken + ($unsound ne '');
	$recoveries++;
	is(scalar @broken, 0, "crash $round ($kind): everything that a client was told still holds")
	  or diag(join("\n", "IDEMKIT_SEED=$seed", @broken[ 0 .. min(19, $#broken) ]));
	is($unsound, '', "crash $round ($kind): amcheck finds nothing");
}

my @verbs = qw(new_claimed lease_reclaimed already_claimed already_completed complete renew release wait removed unanswered);
IdemkitNode::report("$recoveries crashes under $clients sessions, $violations violations; clients were told of "
	  . join(', ', map { $ledger->count($_) . " $_" } @verbs));
cmp_ok($ledger->count($_), '>', 0, "among what clients were told was: $_") foreach @verbs;

# A claim whose owner died with the server is taken over when its lease ends.
my $held = $node->value("SELECT effective_key FROM idemkit_records WHERE state = 'CLAIMED' AND lease_until > clock_timestamp() LIMIT 1");
isnt($held, '', 'a claim outlived its owner');
my $old = $node->value("SELECT claim_token FROM idemkit_records WHERE effective_key = '$held'");
$node->value("UPDATE idemkit_records SET lease_until = clock_timestamp() WHERE effective_key = '$held'");
is($node->value("SELECT result FROM idemkit_claim('$held')"), 'lease_reclaimed', 'it is taken over when its lease has ended');
is($node->value("SELECT idemkit_complete('$held', '$old')"), 'f', 'its old token is worth nothing');
is($node->value('SELECT idemkit_verify_schema()'), '', 'the table is sound');

$node->log_is_clean(qr/was terminated by signal 9: Killed/);
done_testing();
