# "idemkit run" beside others: one execution, waiting, taking over.
use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Command;
use Programs;

my $node = start_cluster('cmd_race');
my ($status, $out, $err);

sub value
{
	my ($expression, $key) = @_;
	return $node->safe_psql('postgres',
		"SELECT $expression FROM idemkit_records WHERE effective_key = '$key'");
}

# --- twenty at once ---

my $executions = scratch('executions');
$node->safe_psql('postgres', 'CREATE TABLE executions (pid int)');
my @racers = map {
	start_idemkit('run', '-k', 'race', '-F', '--', 'sh', '-c',
		'echo $$ >>"$0"; psql -X -q -c "INSERT INTO executions VALUES ($$)"; sleep 0.5;
		 echo "pid $$"; perl -e "print map { chr } 0 .. 255"; echo error >&2; exit 9',
		$executions)
} 1 .. 20;
my (%statuses, %outputs);
my $errors = 0;
for my $racer (@racers)
{
	($status, $out, $err) = $racer->finish;
	$statuses{$status}++;
	$outputs{$out}++;
	$errors += $err eq "error\n" ? 1 : $err eq '' ? 0 : 100;
}
is(lines($executions), 1, 'twenty at once: one execution');
is($node->safe_psql('postgres', 'SELECT count(*) FROM executions'), 1,
	'twenty at once: one row written');
is_deeply(\%statuses, { 9 => 20 }, 'twenty at once: twenty equal exit statuses');
is(join(' ', values %outputs), 20, 'twenty at once: twenty equal outputs');
like((keys %outputs)[0], qr/\Apid \d+\n\0\x01.*\xff\z/s, 'twenty at once: whole outputs');
is($errors, 1, 'twenty at once: standard error once, and no complaint');
is(value('attempts', 'race'), 1, 'twenty at once: one attempt');

# --- waiting ---

my $ready = scratch('ready');
my $go = scratch('go');

# Starts a run whose command goes on until $go exists.
sub start_holder
{
	my ($key, @options) = @_;
	unlink $ready, $go;
	my $run = start_idemkit('run', '-k', $key, @options, '--', 'sh', '-c',
		'echo begun; : >"$0"; while [ ! -e "$1" ]; do sleep 0.05; done; echo done; exit "${2:-0}"',
		$ready, $go, $key =~ /fails/ ? 5 : 0);
	wait_until('the command to begin', sub { -e $ready });
	return $run;
}

sub release_holder
{
	open(my $file, '>', $go) or die $!;
	close $file;
}

sub subscribed
{
	my ($key) = @_;
	return wait_until('a subscription', sub { value('awaited', $key) eq 't' });
}

my $holder = start_holder('wait');
my $started = time;
like(is_status(EX_TEMPFAIL, '--wait 0', 'run', '-k', 'wait', '-w', '0', '--', 'echo', 'never'),
	qr/elsewhere/, '--wait 0: said');
cmp_ok(time - $started, '<', 5 * slowness(), '--wait 0: at once');
$started = time;
is_status(EX_TEMPFAIL, '--wait 1', 'run', '-k', 'wait', '-w', '1', '--', 'echo', 'never');
cmp_ok(time - $started, '>=', 1, '--wait 1: not before');
is_status(EX_DATAERR, 'another fingerprint does not wait',
	'run', '-k', 'wait', '-f', 'other', '--', 'echo', 'never');
my @waiting = map { start_idemkit('run', '-k', 'wait', @$_, '--', 'echo', 'never') }
  ([], [ '-w', 'forever' ], [ '-w', '5m' ]);
subscribed('wait');
release_holder();
is(($holder->finish)[1], "begun\ndone\n", 'the run that is waited for');
for my $waiter (@waiting)
{
	($status, $out, $err) = $waiter->finish;
	is("$status$out$err", "0begun\ndone\n", 'a run that waited replays the result');
}

$holder = start_holder('changed');
my $waiter = start_idemkit('run', '-k', 'changed', '--', 'echo', 'never');
subscribed('changed');
$node->safe_psql('postgres',
	q{UPDATE idemkit_records SET fingerprint = 'other' WHERE effective_key = 'changed'});
release_holder();
$holder->finish;
is(($waiter->finish)[0], EX_DATAERR, 'a result with another fingerprint is not replayed');

# retention 0: for those who wait, and for nobody after
$holder = start_holder('nothing kept', '-e', '0');
$waiter = start_idemkit('run', '-k', 'nothing kept', '--', 'echo', 'again');
subscribed('nothing kept');
release_holder();
$holder->finish;
($status, $out) = $waiter->finish;
like($out, qr/\A(begun\ndone|again)\n\z/, '--expires-after 0: a result for who waits');
is((idemkit('run', '-k', 'nothing kept', '--', 'echo', 'again'))[1], "again\n",
	'--expires-after 0: none for who comes later');

# a failure wakes who waits, and is theirs to try again
$holder = start_holder('fails');
$waiter = start_idemkit('run', '-k', 'fails', '--', 'echo', 'second try');
subscribed('fails');
release_holder();
is(($holder->finish)[0], 5, 'a run that fails while another waits');
($status, $out) = $waiter->finish;
is("$status$out", "0second try\n", 'the one that waited tries itself');

# a signal ends a run that waits, and leaves the other alone
$holder = start_holder('signalled');
$waiter = start_idemkit('run', '-k', 'signalled', '--', 'echo', 'never');
subscribed('signalled');
kill 'TERM', $waiter->{pid};
($status, $out) = $waiter->finish;
is("$status$out", -15, 'SIGTERM ends a run that waits, as a signal');
release_holder();
is(($holder->finish)[0], 0, 'and not the one it waited for');

# --- an open transaction holds the key ---

my $session = $node->background_psql('postgres');
$session->query_safe(q{BEGIN});
$session->query_safe(q{SELECT result FROM idemkit_claim('transaction')});
$started = time;
is_status(EX_TEMPFAIL, 'a key claimed in an open transaction, --wait 0',
	'run', '-k', 'transaction', '-w', '0', '--', 'echo', 'never');
cmp_ok(time - $started, '<', 5 * slowness(), 'a key claimed in an open transaction: soon');
$waiter = start_idemkit('run', '-k', 'transaction', '--', 'echo', 'never');
wait_until('a lock that is waited for',
	sub { $node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE NOT granted') > 0 });
$session->query_safe(q{SELECT idemkit_complete('transaction', claim_token, 3, NULL, 'in the transaction')
	FROM idemkit_records WHERE effective_key = 'transaction'});
$session->query_safe(q{COMMIT});
($status, $out) = $waiter->finish;
is("$status$out", '3in the transaction', 'the result of the transaction is replayed');
is( $node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity
		WHERE application_name = 'idemkit' AND state LIKE 'idle in transaction%'}), 0,
	'no transaction is left open');

# a signal while a claim waits for a lock: nothing is claimed afterwards
$session->query_safe(q{BEGIN});
$session->query_safe(q{SELECT result FROM idemkit_claim('interrupted')});
$waiter = start_idemkit('run', '-k', 'interrupted', '--', 'echo', 'never');
wait_until('a lock that is waited for',
	sub { $node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE NOT granted') > 0 });
kill 'INT', $waiter->{pid};
is(($waiter->finish)[0], -2, 'SIGINT ends a run that waits for a lock, as a signal');
$session->query_safe(q{ROLLBACK});
wait_until('the session to end', sub { $node->safe_psql('postgres', q{SELECT count(*)
	FROM pg_stat_activity WHERE application_name = 'idemkit'}) == 0 });
is(value('count(*)', 'interrupted'), 0, 'and has claimed nothing');
$session->quit;

# --- taking over ---

my $lease = 3 * slowness();
unlink $executions;
my $victim = start_idemkit('run', '-k', 'killed', '-l', $lease, '--', 'perl', '-e',
	'open F, ">", shift; print F $$; close F; sleep 1000', $ready);
wait_until('the command to begin', sub { -s $ready && slurp($ready) =~ /\d/ });
my $command = slurp($ready);
my $heir = start_idemkit('run', '-k', 'killed', '-l', $lease, '--', 'sh', '-c',
	'echo "attempt $IDEMKIT_ATTEMPTS"');
subscribed('killed');
my $renewed_from = value('lease_until', 'killed');
wait_until('a heartbeat', sub { value('lease_until', 'killed') ne $renewed_from });
kill 'KILL', $victim->{pid};
$victim->finish;
my ($lease_until, $fence) = split /\|/,
  value("extract(epoch FROM lease_until), extract(epoch FROM claimed_at)", 'killed');
wait_until('the command of a killed run to end', sub { !kill(0, $command) });
ok(!kill(0, $command), 'a killed run takes its command along');
ok($heir->is_running, 'SIGKILL of the running one: nobody takes over at once');
($status, $out) = $heir->finish;
is("$status$out", "0attempt 2\n", 'another takes over');
my $taken_at = value('extract(epoch FROM claimed_at)', 'killed');
cmp_ok($taken_at, '>', $lease_until, 'not before the lease is over');
cmp_ok($taken_at, '<', $lease_until + 2 * slowness(), 'but soon then');
is((idemkit('run', '-k', 'killed', '--', 'echo', 'never'))[1], "attempt 2\n",
	'and its result is what counts');

$node->stop;
done_testing();
