# "idemkit run" by itself: what is executed, passed on, stored and replayed.
use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Command;
use Programs;

my $node = start_cluster('cmd_run');
my ($status, $out, $err, $report);

# A command that leaves a line in a file, so that executions can be counted.
my $executions = scratch('executions');

sub counted
{
	my ($script) = @_;
	return ('sh', '-c', "echo x >>\"\$0\"; $script", $executions);
}

sub executed
{
	my $count = lines($executions);
	unlink $executions;
	return $count;
}

sub record
{
	my ($key, $column) = @_;
	return $node->safe_psql('postgres',
		"SELECT $column FROM idemkit_records WHERE effective_key = '$key'");
}

# --- success: executed once, replayed ---

($status, $out, $err) = idemkit('run', '-k', 'a', '--', counted('echo out; echo err >&2'));
is($status, 0, 'run: exit status');
is($out, "out\n", 'run: standard output is passed on');
is($err, "err\n", 'run: standard error is passed on, with nothing added');
is(executed(), 1, 'run: executed');
($status, $out, $err) = idemkit('run', '-k', 'a', '--', counted('echo other'));
is($status, 0, 'replay: exit status');
is($out, "out\n", 'replay: standard output');
is($err, '', 'replay: no standard error');
is(executed(), 0, 'replay: not executed');
is(record('a', 'response_status'), 0, 'stored: the status');
is(record('a', "convert_from(response_body, 'UTF8')"), "out\n", 'stored: the output');
is(record('a', "response_headers ->> 'idemkit.command'"), 'run', 'stored: where it comes from');
is(record('a', "response_headers ->> 'idemkit.output_bytes'"), 4, 'stored: the output\'s length');
is(record('a', 'extract(epoch FROM lease_until - completed_at)::int'), 86400,
	'stored: for a day');
($status, $out) = idemkit('run', '-k', 'a2', '-e', '90m', 'true');
is(record('a2', 'extract(epoch FROM lease_until - completed_at)::int'), 5400,
	'--expires-after: stored as long as asked for');

# --- output, exactly ---

my $binary = scratch('binary');
open(my $file, '>:raw', $binary) or die $!;
srand 42;
my $random = join('', map { chr int rand 256 } 1 .. 300_000) . "\0";
print $file $random;
close $file;
for my $when ('executed', 'replayed')
{
	($status, $out) = idemkit('run', '-k', 'binary', '--', 'cat', $binary);
	is($status, 0, "300001 random bytes, $when: exit status");
	ok($out eq $random, "300001 random bytes, $when: all are there");
}
($status, $out, $err) = idemkit('run', '-k', 'silent', 'true') for 1 .. 2;
is("$status$out$err", '0', 'no output is replayed as that, without a word');
is(record('silent', 'response_body IS NULL'), 'f', 'no output is stored as an empty body');

($status, $out) = idemkit({ stdin => "some\0input" }, 'run', '-k', 'stdin', 'cat');
is($out, "some\0input", 'standard input is the command\'s');

# --- failure ---

for my $n (1, 2)
{
	($status, $out) = idemkit('run', '-k', 'fails', '--', counted('echo partly; exit 3'));
	is($status, 3, "failure $n: exit status");
	is($out, "partly\n", "failure $n: output");
	is(record('fails', 'count(*)'), 0, "failure $n: the key is released");
}
is(executed(), 2, 'a failure is tried again');
for my $n (1, 2)
{
	($status, $out) =
	  idemkit('run', '-F', '-k', 'fails', '--', counted('echo partly; exit 3'));
	is($status, 3, "--cache-failures $n: exit status");
	is($out, "partly\n", "--cache-failures $n: output");
}
is(executed(), 1, '--cache-failures: a failure is stored');
for my $n (1, 2)
{
	($status) = idemkit('run', '-F', '-k', 'killed', '--', 'sh', '-c', 'kill -9 $$');
	is($status, 137, "a command killed by a signal, $n: exit status");
}

($status, $out, $err) = idemkit('run', '-F', '-k', 'exec', '--', 'nonexistent-command');
is($status, 127, 'no such command: exit status');
like($err, qr/nonexistent-command/, 'no such command: said');
is(record('exec', 'count(*)'), 0, 'no such command: nothing is stored, even with --cache-failures');
($status) = idemkit('run', '-k', 'exec', '--', '/etc/passwd');
is($status, 126, 'a file that is no command: exit status');
is(record('exec', 'count(*)'), 0, 'a file that is no command: nothing is stored');

# --- fingerprints, foreign results ---

idemkit('run', '-k', 'fp', '-f', 'one', '--', 'echo', 'one');
($status, $out, $err) = idemkit('run', '-k', 'fp', '-f', 'two', '--', counted(''));
is($status, EX_DATAERR, 'another fingerprint: exit status');
is($out, '', 'another fingerprint: no output');
like($err, qr/fingerprint/, 'another fingerprint: said');
($status) = idemkit('run', '-k', 'fp', '-f', 'one', '--fingerprint-version', '2', '--', counted(''));
is($status, EX_DATAERR, 'another fingerprint version: exit status');
($status, $out) = idemkit('run', '-k', 'fp', '-f', 'one', '--', counted(''));
is("$status$out", "0one\n", 'the same fingerprint: replayed');
is(executed(), 0, 'nothing was run');

$node->safe_psql('postgres', q{SELECT idemkit_complete(k, our_claim_token, s)
	FROM (VALUES ('http', 404), ('none', NULL)) v (k, s), idemkit_claim(k)});
for my $key ('http', 'none')
{
	($status, $out) = idemkit('run', '-k', $key, '--', counted(''));
	is($status, EX_DATAERR, "the result of something else ($key): exit status");
}
is(executed(), 0, 'the result of something else: nothing was run');

# --- --max-output ---

for my $case (['99', 1], ['100', 0])
{
	my ($limit, $too_long) = @$case;
	my $key = "max $limit";
	($status, $out, $err) =
	  idemkit('run', '-k', $key, '-m', $limit, '--', 'sh', '-c', 'printf %100s x');
	is($status, 0, "100 bytes of $limit: exit status");
	is(length $out, 100, "100 bytes of $limit: passed on");
	is($err =~ /not stored/ ? 1 : 0, $too_long, "100 bytes of $limit: said if not stored");
	($status, $out, $err) = idemkit('run', '-k', $key, '--', counted(''));
	is($status, 0, "100 bytes of $limit, replay: exit status");
	is(length $out, $too_long ? 0 : 100, "100 bytes of $limit, replay: output");
	is($err =~ /not stored/ ? 1 : 0, $too_long, "100 bytes of $limit, replay: said");
	is(record($key, "response_headers ->> 'idemkit.output_stored'"), $too_long ? 'false' : 'true',
		"100 bytes of $limit: the headers tell");
}
($status, $out) = idemkit('run', '-k', 'max 1k', '-m', '1k', '--', 'sh', '-c', 'printf %1024s x');
is(record('max 1k', 'length(response_body)'), 1024, '-m 1k is 1024 bytes');
$node->safe_psql('postgres', q{ALTER DATABASE postgres SET idemkit.max_response_bytes = 150});
($status, $out, $err) = idemkit('run', '-k', 'max server', '--', 'sh', '-c', 'printf %100s x');
is($status, 0, 'output above the server\'s limit: exit status');
is(length $out, 100, 'output above the server\'s limit: passed on');
like($err, qr/not stored/, 'output above the server\'s limit: said');
is(record('max server', 'state'), 'COMPLETED', 'output above the server\'s limit: the rest is stored');
$node->safe_psql('postgres', q{ALTER DATABASE postgres RESET idemkit.max_response_bytes});

# --- the command's environment ---

($status, $out) = idemkit(
	{ env => { IDEMKIT_CLAIM_TOKEN => 'inherited', IDEMKIT_KEY => 'inherited' } },
	'run', '-k', 'environment', '--', 'sh', '-c', 'env | grep ^IDEMKIT_ | sort');
my %seen = $out =~ /^(IDEMKIT_\w+)=(.*)$/mg;
delete @seen{ grep { !/^IDEMKIT_(KEY|CLAIM_TOKEN|FENCE|ATTEMPTS)$/ } keys %seen };
is($seen{IDEMKIT_KEY}, 'environment', 'environment: the key');
is($seen{IDEMKIT_CLAIM_TOKEN}, record('environment', 'claim_token'), 'environment: the token');
is($seen{IDEMKIT_FENCE}, $node->safe_psql('postgres', q{SELECT fence FROM idemkit_get('environment')}),
	'environment: the fence');
is($seen{IDEMKIT_ATTEMPTS}, 1, 'environment: the attempts');
is(scalar(() = $out =~ /^IDEMKIT_KEY=/mg), 1, 'environment: no name twice');

# what the token is good for: writes that happen only while the claim is held
$node->safe_psql('postgres', 'CREATE TABLE work (t text)');
my $sql = q{BEGIN; SELECT idemkit_guard(:'key', :'token'); INSERT INTO work VALUES ('done'); COMMIT};
($status, $out, $err) = idemkit('run', '-k', 'guarded', '--', 'sh', '-c',
	'echo "$1" | psql -X -q -v ON_ERROR_STOP=1 -v key="$IDEMKIT_KEY" -v token="$IDEMKIT_CLAIM_TOKEN" >&2',
	'sh', $sql);
is($status, 0, 'the command can guard its writes with the token: exit status') or diag $err;
is($node->safe_psql('postgres', 'SELECT count(*) FROM work'), 1, 'and writes');

# and for completing the claim in the transaction of the work
my $completing = q{SELECT idemkit_complete(:'key', :'token', 7, NULL, 'stored by the command')};
for my $case (['at its end', ''], ['long before its end', 'sleep ' . 1.5 * slowness()])
{
	my ($when, $then) = @$case;
	my $reported = scratch('report');
	($status, $out, $err) =
	  idemkit('run', '-k', "completes $when", '-l', slowness(), '-r', $reported, '--', 'sh', '-c',
		'echo "$1" | psql -X -q -At -v key="$IDEMKIT_KEY" -v token="$IDEMKIT_CLAIM_TOKEN"; ' . $then,
		'sh', $completing);
	is("$status$out$err", "0t\n", "a command that completes its claim $when");
	is(json(slurp($reported))->{outcome}, 'completed_by_command', "the report of that");
	($status, $out, $err) = idemkit('run', '-k', "completes $when", '--', 'echo', 'never');
	is("$status$out$err", '7stored by the command', 'what it stored is replayed');
}

SKIP:
{
	skip 'unavailable: no /proc', 2 unless -r "/proc/$$/cmdline";
	($status, $out) = idemkit('run', '-k', 'cmdline', '--', 'sh', '-c',
		'cat /proc/$PPID/cmdline /proc/$$/cmdline; echo; echo "$IDEMKIT_CLAIM_TOKEN"');
	my ($cmdlines, $token) = $out =~ /^(.*)\n([0-9a-f]{32})\n\z/s;
	like($cmdlines, qr/run\0-k\0cmdline/, 'the command lines can be read');
	unlike($cmdlines, qr/$token/, 'and the token is not in them');
}
($status, $out) = idemkit('run', '-k', 'shell', '--', 'echo', '$HOME; `id` "quoted"  two');
is($out, "\$HOME; `id` \"quoted\"  two\n", 'no shell reads the arguments');

# Only the descriptors that idemkit inherited itself are open in the command.
SKIP:
{
	skip 'unavailable: no /proc', 1 unless -d '/proc/self/fd';
	my @show = ('perl', '-e', 'opendir D, "/proc/self/fd"; print join(" ", sort { $a <=> $b }
		grep { /\d/ && readlink("/proc/self/fd/$_") !~ m{/fd$} } readdir D)');
	open(my $plainly, '-|', @show) or die $!;
	my $inherited = <$plainly>;
	close $plainly;
	($status, $out) = idemkit('run', '-k', 'fds', '--', @show);
	is($out, $inherited, 'the command inherits no descriptor of idemkit');
}

# --- --report ---

my $report_file = scratch('report');

sub run_reporting
{
	($status, $out, $err) = idemkit('run', '-r', $report_file, @_);
	return json(slurp($report_file)) // {};
}

$report = run_reporting('-k', "re\"port", '--', 'echo', 'x');
is_deeply(
	[ @$report{qw(effective_key outcome exit_status command_status output_bytes output_stored attempts)} ],
	[ "re\"port", 'executed', 0, 0, 2, JSON::PP::true(), 1 ], 'report: executed');
$report = run_reporting('-k', "re\"port", '--', 'echo', 'x');
is_deeply(
	[ @$report{qw(outcome exit_status command_status output_bytes output_stored attempts)} ],
	[ 'replayed', 0, 0, 2, JSON::PP::true(), 1 ], 'report: replayed');
is($report->{fence}, $node->safe_psql('postgres', q{SELECT fence FROM idemkit_get('re"port')}),
	'report: the fence');
is(run_reporting('-k', "re\"port", '-f', 'x', '--', 'echo')->{outcome}, 'fingerprint_mismatch',
	'report: fingerprint_mismatch');
$report = run_reporting('-k', 'r f', '--', 'sh', '-c', 'exit 65');
is_deeply([ @$report{qw(outcome exit_status command_status)} ], [ 'failed_and_released', 65, 65 ],
	'report: failed_and_released');
$report = run_reporting('-k', 'r f', '--', 'nonexistent-command');
is_deeply([ @$report{qw(outcome exit_status command_status)} ], [ 'not_run', 127, undef ],
	'report: not_run');
$report = run_reporting('-k', 'http', '--', 'echo');
is_deeply([ @$report{qw(outcome exit_status command_status)} ], [ 'not_a_command', EX_DATAERR, undef ],
	'report: not_a_command');
$report = run_reporting('-k', 'r', '-t', 'nonexistent', '--', 'echo');
is_deeply([ @$report{qw(outcome exit_status command_status)} ], [ 'failed', EX_CONFIG, undef ],
	'report: failed');
is_status(EX_CANTCREAT, 'a report that cannot be written',
	'run', '-k', 'r2', '-r', '/nonexistent/report', '--', 'echo');
is(record('r2', 'count(*)'), 0, 'a report that cannot be written: nothing is claimed');

# --- standard output that is closed, slow or full ---

pipe(my $reader, my $writer) or die $!;
my $run = start_idemkit({ stdout => $writer }, 'run', '-k', 'epipe', '--',
	'sh', '-c', 'echo first; read -r line; for i in 1 2 3; do echo $i; sleep 0.1; done');
close $reader;
close $writer;
($status, $out, $err) = $run->finish;
is($status, EX_IOERR, 'nobody reads the output: exit status');
like($err, qr/standard output/, 'nobody reads the output: said');
is(record('epipe', "convert_from(response_body, 'UTF8')"), "first\n1\n2\n3\n",
	'nobody reads the output: all of it is stored');
($status, $out) = idemkit('run', '-k', 'epipe', '--', counted(''));
is("$status$out", "0first\n1\n2\n3\n", 'nobody read the output: it is replayed');

# A reader that sleeps longer than the lease: the command waits, the lease goes on.
pipe($reader, $writer) or die $!;
my $lease = 2 * slowness();
my $words = 400_000;
$run = start_idemkit({ stdout => $writer }, 'run', '-k', 'slow', '-l', $lease, '--',
	'perl', '-e', 'print pack("N*", 1 .. shift)', $words);
close $writer;
sleep 1.7 * $lease;
is(record('slow', 'state'), 'CLAIMED', 'a slow reader: the command is still writing');
my $got = do { local $/; binmode $reader; <$reader> };
($status, $out, $err) = $run->finish;
is($status, 0, 'a slow reader: exit status') or diag $err;
ok($got eq pack('N*', 1 .. $words), 'a slow reader: gets everything');
is(record('slow', 'length(response_body)'), 4 * $words, 'a slow reader: everything is stored');
is(record('slow', 'attempts'), 1, 'a slow reader: the lease was kept');

# --- what the command leaves behind ---

my $started = time;
($status, $out, $err) = idemkit('run', '-k', 'daemon', '-g', '1', '--',
	'sh', '-c', 'sleep 60 & echo $!');
is($status, 0, 'a process left behind with the output open: exit status');
like($out, qr/^\d+\n\z/, 'a process left behind: the output so far');
like($err, qr/output/, 'a process left behind: said');
cmp_ok(time - $started, '<', 30, 'a process left behind: not waited for');
ok(kill(0, $out), 'a process left behind: left alone');
kill 'KILL', $out;
($status, $out) = idemkit('run', '-k', 'late', '--', 'sh', '-c', '(sleep 0.5; echo late) & echo early');
is($out, "early\nlate\n", 'what a process left behind writes within the grace is the output');

# --- a run within a run ---

($status, $out, $err) = idemkit('run', '-k', 'nested', '--',
	under(), build_path('idemkit'), 'run', '-k', 'nested', '--', 'echo', 'never');
is($status, EX_TEMPFAIL, 'a run of the same key within: exit status');
like($err, qr/wait for itself/, 'a run of the same key within: said');
($status, $out, $err) = idemkit('run', '-k', 'outer', '--',
	under(), build_path('idemkit'), 'run', '-k', 'inner', '--', 'echo', 'inner');
is("$status$out$err", "0inner\n", 'a run of another key within');

$node->stop;
done_testing();
