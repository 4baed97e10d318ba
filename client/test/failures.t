# What broken connections, servers and networks do to waits: each ends by its
# deadline, with the right outcome, and none hangs or is lost.
use strict;
use warnings;

use IO::Select;
use IO::Socket::UNIX;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Programs;
use Waits;

my $node = start_cluster('failures');
my $slow = slowness();

# Where a notification, or the re-reading after a reconnect, must have done it.
my $prompt = 1 * $slow;
my $patience = 20 * $slow;

sub claim
{
	my ($key, $lease) = @_;
	return $node->safe_psql('postgres',
		"SELECT our_claim_token FROM idemkit_claim('$key', lease_ttl_seconds => $lease)");
}

sub complete
{
	my ($key, $token) = @_;
	is( $node->safe_psql('postgres',
			"SELECT idemkit_complete('$key', '$token', response_body => 'body of $key')"),
		't', "$key is completed");
	return;
}

# The process that serves the waiter.
sub backend
{
	my ($name) = @_;
	return $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE application_name = '$name'");
}

sub wait_until_listening
{
	my ($waits) = @_;
	ok($waits->until_counter('listening', 1, $patience), 'the waiter listens');
	return;
}

# A proxy between waiter and server that can fall silent: it then keeps connections
# open, accepts new ones, and passes nothing on. SIGUSR1 makes it so, SIGUSR2 ends it
# for connections to come; those it swallowed stay dead.
sub start_proxy
{
	my $directory = PostgreSQL::Test::Utils::tempdir_short();
	my $server = $node->host . '/.s.PGSQL.' . $node->port;
	my $listener = IO::Socket::UNIX->new(
		Local => "$directory/.s.PGSQL.5432", Listen => 20) or die "listen: $!";
	my $pid = fork() // die "fork: $!";

	return ($pid, $directory) if $pid > 0;

	my $silent = 0;
	local $SIG{USR1} = sub { $silent = 1 };
	local $SIG{USR2} = sub { $silent = 0 };
	local $SIG{TERM} = sub { POSIX::_exit(0) };
	my (%peer, @dead);
	my $select = IO::Select->new($listener);
	while (1)
	{
		my @ready = $select->can_read(0.02);
		if ($silent)
		{
			# what is open now will never be heard of again
			for my $handle (grep { $_ != $listener } $select->handles)
			{
				$select->remove($handle);
				push @dead, $handle;
			}
			%peer = ();
		}
		for my $handle (@ready)
		{
			if ($handle == $listener)
			{
				my $client = $listener->accept or next;
				if ($silent) { push @dead, $client; next; }
				my $upstream = IO::Socket::UNIX->new(Peer => $server) or next;
				$peer{$client} = $upstream;
				$peer{$upstream} = $client;
				$select->add($client, $upstream);
				next;
			}
			my $other = $peer{$handle} or next;
			my $got = sysread($handle, my $data, 65536);
			if ($got) { syswrite($other, $data); next; }
			for my $end ($handle, $other) { $select->remove($end); close $end; delete $peer{$end}; }
		}
	}
}

# The connection is killed, and the claim completed while there is none.
{
	my $waits = Waits->new('application_name=killed');
	my $token = claim('killed', 600);
	$waits->wait('killed', 'killed', 60);
	$waits->wait('other', 'never-there', 60);
	$waits->ended_ok('other', 'absent', $patience, 'a healthy connection answers');
	wait_until_listening($waits);
	for my $round (1 .. 3)
	{
		$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . backend('killed') . ')');
		ok($waits->until(qr/notice DISCONNECTED [^\n]+/, $patience), 'the loss is noticed');
		ok($waits->until(qr/notice CONNECTED [^\n]+/, $patience), 'and made good');
		wait_until_listening($waits);
	}
	sleep 1.5;
	complete('killed', $token);
	my $took = $waits->ended_ok('killed', 'completed \[body of killed\]', $prompt,
		'a wait survives the loss of its connection');

	$token = claim('killed2', 600);
	$waits->wait('killed2', 'killed2', 60);
	ok($waits->until_counter('keys', 1, $patience), 'another wait is under way');
	$node->safe_psql('postgres',
		'SELECT pg_terminate_backend(' . backend('killed') . "); "
		  . "SELECT idemkit_complete('killed2', '$token', response_body => 'gap')");
	$waits->ended_ok('killed2', 'completed \[gap\]', $prompt,
		'a completion that no connection was there to hear of');
	is($waits->counters->{connections}, 5, 'four losses, five connections');
	$waits->quit_ok('killed');
}

# The server ends the session in the middle of a query.
{
	my $waits = Waits->new('-r', '0.05,1', 'application_name=ended');
	my $token = claim('ended', 600);
	$node->safe_psql('postgres', q{
		CREATE SEQUENCE marks;
		CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('marks') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER ending BEFORE UPDATE ON idemkit_records
			FOR EACH ROW WHEN (NOT OLD.awaited AND NEW.awaited) EXECUTE FUNCTION end_session()});
	$waits->wait('ended', 'ended', 60);
	ok($waits->until(qr/notice DISCONNECTED terminating connection due to administrator command/, $patience),
		'a session that is ended in a query: said by whom');
	ok($waits->until(qr/notice CONNECTED [^\n]+/, $patience), 'and another is begun');
	wait_until_listening($waits);
	complete('ended', $token);
	$waits->ended_ok('ended', 'completed \[body of ended\]', $prompt, 'the wait goes on with that one');
	is($waits->counters->{connections}, 2, 'one loss, two connections');
	$waits->quit_ok('ended');
	$node->safe_psql('postgres', 'DROP TRIGGER ending ON idemkit_records; DROP FUNCTION end_session; DROP SEQUENCE marks');
}

# The server is restarted, then stopped for longer than a wait lasts.
{
	my $waits = Waits->new('-r', '0.05,1', 'application_name=restarted');
	my $token = claim('restarted', 600);
	$waits->wait('restarted', 'restarted', 120);
	wait_until_listening($waits);
	for my $mode ('fast', 'immediate')
	{
		$node->stop($mode);
		$node->start;
		ok($waits->until(qr/notice CONNECTED [^\n]+/, $patience), "after a restart, $mode");
		wait_until_listening($waits);
	}
	complete('restarted', $token);
	$waits->ended_ok('restarted', 'completed \[body of restarted\]', $prompt,
		'a wait survives restarts');

	$token = claim('stopped', 600);
	$waits->wait('long', 'stopped', 120);
	ok($waits->until_counter('keys', 2, $patience), 'a wait is under way');
	$node->stop('fast');
	my $failures = $waits->counters->{failures};
	$waits->wait('short', 'stopped', 3);
	my $took = $waits->ended_ok('short', 'timeout \[\]  \S', $patience,
		'a wait without a server ends as timeout and says why');
	ok($took >= 3000 && $took < 3000 + 500 * $slow, "by its deadline: $took ms");
	$failures = $waits->counters->{failures} - $failures;
	ok($failures >= 2 && $failures <= 20, "the pauses grow: $failures attempts in 3 s");
	$node->start;
	complete('stopped', $token);
	$waits->ended_ok('long', 'completed \[body of stopped\]', 2 * $prompt,
		'the longer one sees the server come back');
	$waits->quit_ok('restarted');
}

# The process that serves the waiter is stopped, as by a debugger or a bad disk.
{
	my $waits = Waits->new('-q', '0.5', 'application_name=frozen');
	my $token = claim('frozen', 600);
	$waits->wait('long', 'frozen', 120);
	wait_until_listening($waits);
	my $frozen = backend('frozen');
	kill 'STOP', $frozen;
	$waits->wait('short', 'frozen', 0.4);
	my $took = $waits->ended_ok('short', 'timeout', $patience, 'a stopped process: a short wait ends');
	ok($took >= 400 && $took < 400 + 300 * $slow, "by its deadline: $took ms");
	ok($waits->until(qr/notice DISCONNECTED server did not answer in time/, $patience),
		'the process is given up');
	complete('frozen', $token);
	$waits->ended_ok('long', 'completed \[body of frozen\]', 2 * $prompt,
		'the longer one is answered by another');
	kill 'CONT', $frozen;
	$waits->quit_ok('frozen');
}

# All of the server is stopped.
{
	my $waits = Waits->new('-q', '0.5', '-c', '0.5', '-r', '0.05,0.3', '');
	my $token = claim('halted', 600);
	$waits->wait('long', 'halted', 120);
	wait_until_listening($waits);
	my $postmaster = slurp_file($node->data_dir . '/postmaster.pid');
	$postmaster =~ s/\n.*//s;
	my @children = split /\n/, `pgrep -P $postmaster`;
	die "pgrep finds no process below the postmaster ($postmaster)" if !@children;
	my @halted = ($postmaster, @children);
	kill 'STOP', @halted;
	$waits->wait('short', 'halted', 2.5);
	my $took = $waits->ended_ok('short', 'timeout \[[^\n]*\]  \S', $patience,
		'a stopped server: a short wait ends and says why');
	ok($took >= 2500 && $took < 2500 + 300 * $slow, "by its deadline: $took ms");
	kill 'CONT', reverse @halted;
	complete('halted', $token);
	$waits->ended_ok('long', 'completed \[body of halted\]', 2 * $prompt,
		'the longer one is answered when the server goes on');
	$waits->quit_ok('halted');
}

# A network that swallows everything: from the first byte, and later.
{
	my ($proxy, $directory) = start_proxy();
	my $waits = Waits->new('-q', '0.5', '-c', '0.4', '-r', '0.05,0.3', "host=$directory port=5432");

	kill 'USR1', $proxy;
	sleep 0.2;
	$waits->wait('hole', 'hole', 1.2);
	my $took = $waits->ended_ok('hole', 'timeout \[\]  connecting took too long', $patience,
		'a socket that accepts and never answers: the wait ends and says why');
	ok($took >= 1200 && $took < 1200 + 300 * $slow, "by its deadline: $took ms");

	my $token = claim('hole', 600);
	kill 'USR2', $proxy;
	$waits->wait('long', 'hole', 120);
	wait_until_listening($waits);
	kill 'USR1', $proxy;
	sleep 0.2;
	$waits->wait('short', 'hole', 1.5);
	$took = $waits->ended_ok('short', 'timeout', $patience, 'a connection that falls silent');
	ok($took >= 1500 && $took < 1500 + 300 * $slow, "a wait ends by its deadline: $took ms");
	complete('hole', $token);
	kill 'USR2', $proxy;
	$waits->ended_ok('long', 'completed \[body of hole\]', 2 * $prompt,
		'the longer one is answered when the network is back');
	$waits->quit_ok('hole');
	kill 'TERM', $proxy;
	waitpid $proxy, 0;
}

$node->stop;
done_testing();
