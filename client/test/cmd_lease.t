# "idemkit run" and its lease: kept, lost, and without a server. And signals.
use strict;
use warnings;

use IO::Select;
use IO::Socket::UNIX;
use Socket;
use Test::More;
use Time::HiRes qw(sleep time);

use Command;
use Programs;

my $node = start_cluster('cmd_lease');
my ($status, $out, $err, $report);
my $report_file = scratch('report');
my $pids = scratch('pids');

sub value
{
	my ($expression, $key) = @_;
	return $node->safe_psql('postgres',
		"SELECT $expression FROM idemkit_records WHERE effective_key = '$key'");
}

# Somebody else takes the claim, behind the run's back.
sub steal
{
	my ($key) = @_;
	$node->safe_psql('postgres', "UPDATE idemkit_records SET claim_token = repeat('0', 32)
		WHERE effective_key = '$key'");
}

# Starts a run whose command writes its process id, and what it starts does too.
sub start_command
{
	my ($options, $script) = @_;
	unlink $pids, $report_file;
	my $run = start_idemkit('run', '-r', $report_file, @$options, '--', 'sh', '-c',
		"echo \$\$ >>\"\$0\"; $script", $pids);
	wait_until('the command to begin', sub { lines($pids) >= 1 });
	return $run;
}

sub finish_command
{
	my ($run) = @_;
	($status, $out, $err) = $run->finish;
	$report = json(slurp($report_file)) // {};
	return;
}

sub all_gone
{
	my ($name) = @_;
	my @pids = split ' ', slurp($pids);
	ok(wait_until('all processes to end', sub { !grep { kill 0, $_ } @pids }), $name);
	return;
}

# --- kept ---

my $lease = 3 * slowness();
my $run = start_command([ '-k', 'long', '-l', $lease ],
	'i=0; while [ $i -lt ' . 80 * slowness() . ' ]; do sleep 0.1; i=$((i + 1)); done; echo end');
my (%ends, $least);
my $tried = 0;
while ($run->is_running && value('state', 'long') eq 'CLAIMED')
{
	my ($end, $left) = split /\|/,
	  value('lease_until, extract(epoch FROM lease_until - clock_timestamp())', 'long');
	$ends{$end} = 1;
	$least = $left if !defined $least || $left < $least;
	is_status(EX_TEMPFAIL, 'a second run while the lease is kept',
		'run', '-k', 'long', '-w', '0', '--', 'echo', 'never')
	  if keys %ends >= 5 && !$tried++;
	sleep 0.05;
}
finish_command($run);
is("$status$out$err", "0end\n", 'a command longer than its lease');
is($report->{attempts}, 1, 'a command longer than its lease: one attempt');
cmp_ok(scalar(keys %ends), '>=', 5, 'heartbeats: often enough');
cmp_ok(scalar(keys %ends), '<=', 16, 'heartbeats: not more often than needed');
cmp_ok($least, '>', $lease / 3, 'heartbeats: well before the lease ends');

# --- lost to somebody else ---

$run = start_command([ '-k', 'stolen', '-l', '3', '-g', 30 ],
	'trap "echo got TERM; exit 0" TERM
	 (trap "" TERM; echo $(exec sh -c \'echo $PPID\') >>"$0"; exec sleep 1000) &
	 while :; do sleep 0.1; done');
wait_until('two processes', sub { lines($pids) == 2 });
steal('stolen');
my $started = time;
finish_command($run);
is($status, EX_TEMPFAIL, 'a stolen lease: exit status');
is($out, "got TERM\n", 'a stolen lease: SIGTERM');
like($err, qr/lease is lost/, 'a stolen lease: said');
cmp_ok(time - $started, '<', 15, 'a stolen lease: no waiting for the grace to end');
is($report->{outcome}, 'lease_lost', 'a stolen lease: the report');
is(value('state', 'stolen'), 'CLAIMED', 'a stolen lease: the thief keeps the claim');
all_gone('a stolen lease: what the command has started is gone, too');

my $grace = 2;
$run = start_command([ '-k', 'stubborn', '-l', '3', '-g', $grace ],
	'trap "echo got TERM" TERM; while :; do sleep 0.1; done');
steal('stubborn');
finish_command($run);
is($status, EX_TEMPFAIL, 'a command that ignores SIGTERM: exit status');
is($out, "got TERM\n", 'a command that ignores SIGTERM: got it');
is($report->{command_status}, 128 + 9, 'a command that ignores SIGTERM: SIGKILL');
all_gone('a command that ignores SIGTERM: gone');

my $marks = scratch('marks');
$run = start_command([ '-k', 'graceful', '-l', '3', '-g', 30 ],
	"trap 'echo a >>$marks; sleep 1; echo b >>$marks; exit 0' TERM; while :; do sleep 0.1; done");
steal('graceful');
finish_command($run);
is(lines($marks), 2, 'a command has the grace to clean up');

# lost while the command was at its last: the result is not stored
$run = start_command([ '-k', 'late', '-l', 1000 ], 'while [ ! -e "$0.go" ]; do sleep 0.05; done; echo done');
steal('late');
open(my $file, '>', "$pids.go") or die $!;
close $file;
finish_command($run);
is($status, EX_TEMPFAIL, 'a claim lost unnoticed: exit status');
is($out, "done\n", 'a claim lost unnoticed: the output was passed on');
like($err, qr/not stored/, 'a claim lost unnoticed: said');
is($report->{outcome}, 'lease_lost', 'a claim lost unnoticed: the report');
is(value('state', 'late'), 'CLAIMED', 'a claim lost unnoticed: nothing is stored');

# --- without a server ---

# a backend that does not answer: its connection is given up, and another made
$lease = 6 * slowness();
$run = start_command([ '-k', 'hung', '-l', $lease ],
	'while [ ! -e "$0.hung" ]; do sleep 0.05; done; echo done');
my $backend;
wait_until('one backend, the others being gone', sub {
	($backend = $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE application_name = 'idemkit'})) =~ /\A\d+\z/ });
my $first_end = value('lease_until', 'hung');
kill 'STOP', $backend;
wait_until('a heartbeat on another connection',
	sub { value('lease_until', 'hung') ne $first_end });
open($file, '>', "$pids.hung") or die $!;
close $file;
finish_command($run);
kill 'CONT', $backend;
is("$status$out", "0done\n", 'a backend that hangs: the run goes on');
like($err, qr/did not answer.*renewed again/s, 'a backend that hangs: said');
is($report->{attempts}, 1, 'a backend that hangs: one attempt');

# a connection that was cut while it idled: not worth a word
$lease = 3 * slowness();
$run = start_command([ '-k', 'cut', '-l', $lease ],
	'while [ ! -e "$0.cut" ]; do sleep 0.05; done; echo done');
$first_end = value('lease_until', 'cut');
$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
	WHERE application_name = 'idemkit'});
wait_until('a heartbeat on another connection',
	sub { value('lease_until', 'cut') ne $first_end });
open($file, '>', "$pids.cut") or die $!;
close $file;
finish_command($run);
is("$status$out$err", "0done\n", 'a connection that is cut while it idles: made anew');

# a server that restarts within the lease
$run = start_command([ '-k', 'restart', '-l', 60 * slowness() ],
	'while [ ! -e "$0.restart" ]; do sleep 0.05; done; echo done');
$node->restart;
open($file, '>', "$pids.restart") or die $!;
close $file;
finish_command($run);
is("$status$out", "0done\n", 'a server that restarts: the result is stored');
is(value('response_status', 'restart'), 0, 'a server that restarts: there it is');

# Relays connections to the server. The first time that the client says something
# that matches, the answer is treated otherwise: lost together with the connection,
# or late, and then the file tells that it is waited for.
sub relay
{
	my ($socket, $directory, $pattern, $late_file) = @_;
	my $lost = 0;
	while (my $client = $socket->accept)
	{
		my $server = IO::Socket::UNIX->new(Peer => "$directory/.s.PGSQL." . $node->port) or last;
		my $both = IO::Select->new($client, $server);
		my $losing = 0;
	  CONNECTION: while (my @ready = $both->can_read)
		{
			for my $from (@ready)
			{
				my $n = sysread($from, my $data, 65536) or last CONNECTION;
				if ($from == $server && $losing)
				{
					last CONNECTION if !defined $late_file;
					open(my $late, '>', $late_file);
					sleep 0.5;
					$losing = 0;
				}
				$losing = $lost = 1 if $from == $client && !$lost && $data =~ $pattern;
				syswrite($from == $client ? $server : $client, $data);
			}
		}
		close $client;
		close $server;
	}
	return;
}

sub start_relay
{
	my ($pattern, $late_file) = @_;
	my $relay_directory = File::Temp::tempdir(CLEANUP => 1);
	my $socket =
	  IO::Socket::UNIX->new(Local => "$relay_directory/.s.PGSQL." . $node->port, Listen => 5)
	  or die $!;
	my $relay = fork // die $!;
	if ($relay == 0)
	{
		relay($socket, $node->host, $pattern, $late_file);
		POSIX::_exit(0);
	}
	return ($relay_directory, $relay);
}

sub end_relay
{
	my ($relay) = @_;
	kill 'KILL', $relay;
	waitpid($relay, 0);
	return;
}

# the answer to the storing is lost, not the result
my ($relay_directory, $relay) = start_relay(qr/idemkit_complete/);
($status, $out, $err) = idemkit({ env => { PGHOST => $relay_directory } },
	'run', '-k', 'unsure', '-r', $report_file, '--', 'echo', 'stored');
end_relay($relay);
is("$status$out$err", "0stored\n", 'the answer to the storing is lost: it is looked up');
is(json(slurp($report_file))->{outcome}, 'executed', 'the answer is lost: the report');
is(value("convert_from(response_body, 'UTF8')", 'unsure'), "stored\n", 'the answer is lost: stored');

# a signal between the winning of the claim and the command
my $late = scratch('late');
($relay_directory, $relay) = start_relay(qr/COMMIT\0/, $late);
$run = start_idemkit({ env => { PGHOST => $relay_directory } },
	'run', '-k', 'signalled', '--', 'echo', 'never');
wait_until('the claim to be won', sub { -e $late });
kill 'TERM', $run->{pid};
($status, $out) = $run->finish;
end_relay($relay);
is("$status$out", '-15', 'SIGTERM before the command is started ends us');
is(value('count(*)', 'signalled'), 0, 'and leaves no claim behind');

# a server that stays away: the lease runs out by our own clock
$lease = 4;
$run = start_command([ '-k', 'away', '-l', $lease, '-g', 30 ],
	'trap "echo got TERM; exit 0" TERM; while :; do sleep 0.1; done');
$started = time;
my $run_failing = start_idemkit('run', '-k', 'away failing', '-l', 1, '--', 'sh', '-c',
	"echo \$\$ >>$pids; while [ ! -e $pids.away ]; do sleep 0.05; done; exit 3");
wait_until('the other command to begin', sub { lines($pids) >= 2 });
my $run_waiting = start_idemkit('run', '-k', 'away', '-w', 3 * slowness(), '--', 'echo', 'never');
wait_until('a subscription', sub { value('awaited', 'away') eq 't' });
$node->stop('immediate');
open($file, '>', "$pids.away") or die $!;
close $file;
($status, $out, $err) = $run_failing->finish;
ok($status == 3 || $status == EX_TEMPFAIL, 'a failure without a server: its exit status')
  or diag $status;
like($err, qr/cannot release|ran out/, 'a failure without a server: said');
ok($run->is_running, 'without a server: the run goes on while it has the lease');
finish_command($run);
cmp_ok(time - $started, '>', $lease - 1.5, 'without a server: it is not stopped early');
is($status, EX_TEMPFAIL, 'without a server: exit status');
is($out, "got TERM\n", 'without a server: SIGTERM when the lease has run out');
like($err, qr/cannot renew.*ran out/s, 'without a server: said');
is($report->{outcome}, 'lease_lost', 'without a server: the report');
($status, $out, $err) = $run_waiting->finish;
is($status, EX_UNAVAILABLE, 'waiting without a server: exit status');
like($err, qr/cannot wait/, 'waiting without a server: said');
$node->start;

# --- signals ---

my $counting = 'for my $s (qw(HUP INT QUIT TERM USR1 USR2)) { $SIG{$s} = sub { $n{$s}++ } }
	open F, ">>", shift; print F "$$\n"; close F; $end = time + 60;
	select(undef, undef, undef, 0.05) until %n || time > $end;
	select(undef, undef, undef, 0.3);
	print map { "$_ $n{$_}\n" } sort keys %n';
for my $signal (qw(HUP INT QUIT TERM USR1 USR2))
{
	unlink $pids;
	$run = start_idemkit('run', '-k', "signal $signal", '--', 'perl', '-e', $counting, $pids);
	wait_until('the command to begin', sub { lines($pids) });
	kill $signal, $run->{pid};
	($status, $out) = $run->finish;
	is("$status$out", "0$signal 1\n", "SIG$signal is passed on, once");
}
$run = start_command([ '-k', 'terminated' ], 'sleep 1000 & echo $! >>"$0"; wait');
wait_until('two processes', sub { lines($pids) == 2 });
kill 'TERM', $run->{pid};
finish_command($run);
is($status, 128 + 15, 'a command that SIGTERM ends: exit status');
is($report->{outcome}, 'failed_and_released', 'a command that SIGTERM ends: the report');
is(value('count(*)', 'terminated'), 0, 'a command that SIGTERM ends: the key is free');
all_gone('a command that SIGTERM ends: what it has started gets the signal, too');

unlink $pids;
$run = start_idemkit({ ignore => ['HUP'] }, 'run', '-k', 'nohup', '--',
	'perl', '-e', 'print $SIG{HUP} // "default", "\n";' . $counting =~ s/HUP //r, $pids);
wait_until('the command to begin', sub { lines($pids) });
kill 'HUP', $run->{pid};
sleep 0.2;
kill 'USR1', $run->{pid};
($status, $out) = $run->finish;
is($out, "IGNORE\nUSR1 1\n", 'a signal that is ignored (nohup) stays so, here and there');
($status, $out) = idemkit('run', '-k', 'dispositions', '--', 'sh', '-c',
	'kill -PIPE $$; echo alive');
is($status, 128 + 13, 'the command finds SIGPIPE as it should be');

# stopped and continued
$run = start_command([ '-k', 'stopped', '-l', '60' ],
	'while [ ! -e "$0.continue" ]; do sleep 0.05; done; echo done');
my $command = (split ' ', slurp($pids))[0];
SKIP:
{
	skip 'unavailable: no /proc', 2 unless -r "/proc/$$/stat";
	my $state = sub { (slurp("/proc/$_[0]/stat") =~ /\) (\w)/)[0] // '' };
	kill 'TSTP', $run->{pid};
	ok(wait_until('both to stop',
		sub { $state->($run->{pid}) eq 'T' && $state->($command) eq 'T' }),
		'SIGTSTP stops the command and us');
	kill 'CONT', $run->{pid};
	ok(wait_until('both to go on',
		sub { $state->($run->{pid}) ne 'T' && $state->($command) ne 'T' }),
		'SIGCONT lets both go on');
}
open($file, '>', "$pids.continue") or die $!;
close $file;
finish_command($run);
is("$status$out", "0done\n", 'stopped and continued: done');

# stopped for longer than the lease: the command must not go on
$run = start_command([ '-k', 'slept', '-l', 2 ], "trap 'echo TERM >>$marks.slept; exit 0' TERM
	while :; do sleep 0.05; [ ! -e \"\$0.slept\" ] || echo worked >>$marks.slept; done");
kill 'STOP', $run->{pid};
wait_until('the lease to end', sub { value('lease_until < clock_timestamp()', 'slept') eq 't' });
kill 'CONT', $run->{pid};
finish_command($run);
is($status, EX_TEMPFAIL, 'stopped for longer than the lease: exit status');
like(slurp("$marks.slept"), qr/TERM/, 'stopped for longer than the lease: SIGTERM');

# --- at a terminal ---

SKIP:
{
	skip 'unavailable: no IO::Pty', 4 unless eval { require IO::Pty; 1 };
	unlink $pids;
	my $pty = IO::Pty->new;
	my $pid = fork // die $!;
	if ($pid == 0)
	{
		$pty->make_slave_controlling_terminal;
		my $terminal = $pty->slave;
		open(STDIN, '<&', $terminal) or POSIX::_exit(120);
		open(STDOUT, '>', '/dev/null') or POSIX::_exit(121);
		exec(under(), build_path('idemkit'), 'run', '-k', 'terminal', '-r', $report_file, '--',
			'perl', '-e', '$SIG{INT} = sub { $n++; mkdir "$path.got" }; $path = shift;
				print "group ", getpgrp, "\n"; open F, ">", $path; print F "$$\n"; close F;
				select(undef, undef, undef, 0.05) until -d "$path.end";
				select(undef, undef, undef, 0.3); print "INT $n\n"', $pids)
		  or POSIX::_exit(122);
	}
	wait_until('the command to begin', sub { lines($pids) });
	# two signals at the same time would count as one, so idemkit is to come later
	kill 'STOP', $pid;
	print $pty "\003";
	$pty->flush;
	wait_until('the signal', sub { -d "$pids.got" });
	kill 'CONT', $pid;
	sleep 0.2;
	mkdir "$pids.end";
	my $end = time + 30 * slowness();
	my $ended = 0;
	sleep 0.05 until ($ended = waitpid($pid, POSIX::WNOHANG())) || time > $end;
	kill 'KILL', $pid if !$ended;
	ok($ended, 'Ctrl-C at a terminal: it ends');
	my $result = json(slurp($report_file));
	is($result->{outcome}, 'executed', 'Ctrl-C at a terminal: the command decides');
	my $stored = $node->safe_psql('postgres',
		q{SELECT convert_from(response_body, 'UTF8') FROM idemkit_records
		  WHERE effective_key = 'terminal'});
	like($stored, qr/^INT 1$/m, 'Ctrl-C at a terminal: the command gets it once');
	like($stored, qr/^group $pid$/m, 'at a terminal the command stays in the process group');
}
($status, $out) = idemkit('run', '-k', 'group', '--', 'perl', '-e', 'print getpgrp == $$ ? 1 : 0');
is($out, '1', 'elsewhere the command has a process group of its own');

$node->stop;
done_testing();
