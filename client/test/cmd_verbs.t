# The verbs of the command idemkit that make one call each.
use strict;
use warnings;

use FindBin;
use Test::More;

use Command;
use Programs;

my $node = start_cluster('cmd_verbs');
my ($status, $out, $err, $object);

# --- help, version, usage ---

($status, $out) = idemkit('--help');
is($status, 0, '--help: exit status');
my @verbs = qw(run claim complete release renew get wait vacuum init verify stats);
like($out, qr/^  $_ /m, "--help: tells of $_") for @verbs;
for my $verb (@verbs)
{
	my ($verb_status, $help) = idemkit($verb, '--help');
	is($verb_status, 0, "$verb --help: exit status");
	like($help, qr/^Usage: idemkit $verb /m, "$verb --help: usage");
	unlike($help, qr/^.{81}/m, "$verb --help: fits 80 columns");
	my ($other_status, $same) = idemkit('help', $verb);
	is($same, $help, "help $verb: the same");
}
($status, $out) = idemkit('--version');
is($status, 0, '--version: exit status');
like($out, qr/^idemkit \d+\.\d+\.\d+\n\z/, '--version: the version');

like(is_status(EX_USAGE, 'no verb'), qr/--help/, 'no verb: a way on');
is_status(EX_USAGE, 'unknown verb', 'frobnicate');
is_status(EX_USAGE, 'unknown option', 'get', '--key', 'k', '--frobnicate');
is_status(EX_USAGE, 'option of another verb', 'get', '--key', 'k', '--lease', '3');
is_status(EX_USAGE, 'key missing', 'get');
is_status(EX_USAGE, 'key empty', 'get', '--key', '');
is_status(EX_USAGE, 'argument missing', 'get', '--key');
is_status(EX_USAGE, 'surplus argument', 'get', '--key', 'k', 'surplus');
is_status(EX_USAGE, "lease \"$_\"", 'claim', '--key', 'k', '--lease', $_)
  for '', 'x', '1x', '-1', 'nan', 'inf', '0x10', '1e3', '1.2.3', '1 s', '.';
is_status(EX_USAGE, "status \"$_\"", { env => { IDEMKIT_CLAIM_TOKEN => 'x' } },
	'complete', '--key', 'k', '--status', $_)
  for '', 'x', '1x', '99999999999', '2147483648';
is_status(EX_USAGE, 'command missing', 'run', '--key', 'k');
is_status(EX_USAGE, 'lease below a second', 'run', '--key', 'k', '--lease', '0.5', '--', 'true');
is_status(EX_USAGE, "max-output \"$_\"", 'run', '--key', 'k', '-m', $_, '--', 'true')
  for '-1', '1T', '1000000001', '9G', 'k';

# --- claim, renew, complete, get ---

my $key = "k \"quoted\" back\\slash\nline\ttab \x01 \xc3\xa9\xe2\x82\xac";

($status, my $token) = idemkit('claim', '--key', $key, '--fingerprint', 'f1', '--lease', '1h');
is($status, 0, 'claim: won');
like($token, qr/\A[0-9a-f]{32}\n\z/, 'claim: the token and nothing else');
chomp $token;
my %with_token = (env => { IDEMKIT_CLAIM_TOKEN => $token });

like(is_status(EX_TEMPFAIL, 'claim of a live claim', 'claim', '-k', $key, '-f', 'f1'),
	qr/already_claimed/, 'claim of a live claim: the verdict');
like(is_status(EX_DATAERR, 'claim with another fingerprint', 'claim', '-k', $key, '-f', 'f2'),
	qr/fingerprint/, 'claim with another fingerprint: the reason');
is_status(EX_DATAERR, 'claim with another fingerprint version',
	'claim', '-k', $key, '-f', 'f1', '--fingerprint-version', '2');

($status, $out) = idemkit('claim', '--json', '-k', $key, '-f', 'f1');
is($status, EX_TEMPFAIL, 'claim --json: exit status');
$object = json($out);
is($object->{result}, 'already_claimed', 'claim --json: result');
ok(exists $object->{our_claim_token} && !defined $object->{our_claim_token},
	'claim --json: no token');
is(JSON::PP->new->utf8->encode([ $object->{effective_key} ]),
	JSON::PP->new->utf8->encode(JSON::PP->new->utf8->decode(
			'["k \"quoted\" back\\\\slash\nline\ttab \u0001 ' . "\xc3\xa9\xe2\x82\xac" . '"]')),
	'claim --json: the key survives');
unlike($out, qr/$token/, 'claim --json: somebody else\'s token is not told');

($status, $out, $err) = idemkit(\%with_token, 'renew', '-k', $key, '--lease', '2h');
is("$status$out$err", '0', 'renew: done, without a word');
($status, $out) = idemkit('get', '-k', $key, '--json');
$object = json($out);
is($status, 0, 'get: exit status');
cmp_ok($object->{remaining_seconds}, '>', 7000, 'renew: the lease is the one asked for');
is($object->{state}, 'CLAIMED', 'get --json: state');
unlike($out, qr/$token/, 'get --json: the token is not told');
($status, $out) = idemkit('get', '-k', $key);
unlike($out, qr/$token/, 'get: the token is not told');

# the token in a file, the body from standard input, exactly
my $token_file = scratch('token');
open(my $file, '>', $token_file) or die $!;
print $file "$token\n";
close $file;
my $body = join('', map { chr($_ % 256) } 0 .. 1000);
($status, $out, $err) = idemkit({ stdin => $body },
	'complete', '-k', $key, '--token-file', $token_file, '--status', '-7',
	'--headers', '{"a": ["\u0022", 1.50]}', '--body-file', '-', '--expires-after', '90m');
is("$status$out$err", '0', 'complete: done, without a word');

($status, $out, $err) = idemkit('get', '-k', $key, '--body');
is($status, 0, 'get --body: exit status');
is($out, $body, 'get --body: byte for byte');
($status, $out) = idemkit('get', '-k', $key, '--json');
$object = json($out);
require MIME::Base64;
is(MIME::Base64::decode_base64($object->{response_body_base64}), $body, 'get --json: the body');
is($object->{response_status}, -7, 'get --json: status');
is_deeply($object->{response_headers}, { a => [ '"', 1.5 ] }, 'get --json: headers');
like($object->{completed_at}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/, 'get --json: a time');
cmp_ok($object->{remaining_seconds}, '<=', 5400, 'complete: retention, not longer');
cmp_ok($object->{remaining_seconds}, '>', 5000, 'complete: retention, not shorter');
is( $object->{completed_at},
	$node->safe_psql('postgres',
		q{SELECT to_char(completed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
		  FROM idemkit_records}),
	'get --json: the time is the server\'s');
for my $length (0 .. 5)
{
	my ($win, $t) = idemkit('claim', '-k', "length $length");
	chomp $t;
	idemkit({ stdin => 'x' x $length, env => { IDEMKIT_CLAIM_TOKEN => $t } },
		'complete', '-k', "length $length", '-b', '-');
	($status, $out) = idemkit('get', '-k', "length $length", '--json');
	is(MIME::Base64::decode_base64(json($out)->{response_body_base64}), 'x' x $length,
		"a body of $length bytes");
}

is_status(EX_FALSE, 'claim of a result', 'claim', '-k', $key, '-f', 'f1');
is_status(EX_FALSE, 'complete again', \%with_token, 'complete', '-k', $key);
is_status(EX_FALSE, 'renew a result', \%with_token, 'renew', '-k', $key);
is_status(EX_FALSE, 'release a result', \%with_token, 'release', '-k', $key);
is_status(EX_FALSE, 'get of nothing', 'get', '-k', 'nothing');
for my $verb (qw(complete release renew))
{
	is_status(EX_USAGE, "$verb without a token", $verb, '-k', $key);
	is_status(EX_USAGE, "$verb with an empty token file", $verb, '-k', $key, '-T', '/dev/null');
	is_status(EX_NOINPUT, "$verb without its token file", $verb, '-k', $key, '-T', '/nonexistent/t');
	($status, $out) = idemkit(\%with_token, $verb, '-k', $key, '--json');
	is($status, EX_FALSE, "$verb --json: exit status");
	is_deeply([ values %{ json($out) } ], [ JSON::PP::false() ], "$verb --json: false");
}
is_status(EX_NOINPUT, 'complete without its body', \%with_token,
	'complete', '-k', $key, '-b', '/nonexistent/b');
is_status(EX_USAGE, 'body and token both from standard input',
	'complete', '-k', $key, '-b', '-', '-T', '-');

# --- release, attempts, no-reclaim ---

($status, $out) = idemkit('claim', '-k', 'r', '--lease', '10ms', '--json');
my $first = json($out)->{our_claim_token};
like($first, qr/^[0-9a-f]{32}$/, 'claim --json: our token');
wait_until('the lease to lapse',
	sub { $node->safe_psql('postgres', q{SELECT remaining_seconds = 0 FROM idemkit_get('r')}) eq 't' });
like(is_status(EX_TEMPFAIL, 'claim --no-reclaim', 'claim', '-k', 'r', '--no-reclaim'),
	qr/lease_lapsed/, 'claim --no-reclaim: the verdict');
($status, $out) = idemkit('claim', '-k', 'r', '--json');
is(json($out)->{result}, 'lease_reclaimed', 'claim takes over a lapsed claim');
is(json($out)->{attempts}, 2, 'claim counts attempts');
my $second = json($out)->{our_claim_token};
is_status(EX_FALSE, 'release with the old token', { env => { IDEMKIT_CLAIM_TOKEN => $first } },
	'release', '-k', 'r');
($status, $out) = idemkit({ stdin => "$second\n" }, 'release', '-k', 'r', '-T', '-', '--json',
	'--keep-attempts');
is($status, 0, 'release: exit status');
ok(json($out)->{released}, 'release --json');
($status, $out) = idemkit('claim', '-k', 'r', '--json');
is(json($out)->{attempts}, 3, 'release --keep-attempts keeps them');
($status) = idemkit({ env => { IDEMKIT_CLAIM_TOKEN => json($out)->{our_claim_token} } },
	'release', '-k', 'r');
is($status, 0, 'release: exit status');
is_status(EX_FALSE, 'get after release', 'get', '-k', 'r');

# --- wait ---

like(is_status(EX_FALSE, 'wait for nothing', 'wait', '-k', 'w'), qr/absent/,
	'wait for nothing: the outcome');
($status, $token) = idemkit('claim', '-k', 'w');
chomp $token;
like(is_status(EX_TEMPFAIL, 'wait until the timeout', 'wait', '-k', 'w', '--timeout', '100ms'),
	qr/timeout/, 'wait until the timeout: the outcome');
my $waiting = start_idemkit('wait', '-k', 'w', '--timeout', '5m', '--json');
my $waiting_for_body = start_idemkit('wait', '-k', 'w', '--timeout', '5m', '--body');
wait_until('two subscriptions', sub {
	$node->safe_psql('postgres', q{SELECT awaited FROM idemkit_records WHERE effective_key = 'w'})
	  eq 't' });
($status) = idemkit({ stdin => "x\0y", env => { IDEMKIT_CLAIM_TOKEN => $token } },
	'complete', '-k', 'w', '--status', '4', '-b', '-');
is($status, 0, 'complete while others wait');
($status, $out) = $waiting->finish;
is($status, 0, 'wait: exit status');
is(json($out)->{outcome}, 'completed', 'wait --json: outcome');
is(json($out)->{response_status}, 4, 'wait --json: the record');
($status, $out) = $waiting_for_body->finish;
is($out, "x\0y", 'wait --body: the body');
($status, $token) = idemkit('claim', '-k', 'w2', '--lease', '10ms');
like(is_status(EX_FALSE, 'wait for a lapsed claim', 'wait', '-k', 'w2'), qr/lapsed/,
	'wait for a lapsed claim: the outcome');

# --- administration ---

is_status(0, 'verify', 'verify');
($status, $out) = idemkit('verify', '--json');
ok(json($out)->{complete}, 'verify --json');
$node->safe_psql('postgres', 'CREATE TABLE not_records (a int)');
like(is_status(EX_CONFIG, 'verify another table', 'verify', '-t', 'not_records'),
	qr/hint: /, 'verify another table: what mends it');
($status, $out) = idemkit('verify', '-t', 'not_records', '--json');
ok(!json($out)->{complete}, 'verify another table --json');
is_status(EX_CONFIG, 'no such table', 'get', '-k', 'k', '-t', 'nonexistent');
like(is_status(EX_CONFIG, 'no extension', 'get', '-k', 'k', '-d', 'dbname=template1'),
	qr/idemkit init/, 'no extension: what mends it');

$node->safe_psql('postgres', 'CREATE DATABASE fresh');
my @inits = map { start_idemkit('init', '-d', 'fresh', '--json') } 1 .. 4;
for my $init (@inits)
{
	($status, $out, $err) = $init->finish;
	is($status, 0, 'init, four at once: exit status') or diag $err;
	is(json($out)->{records}, 'idemkit_records', 'init --json: the table');
}
($status, $out, $err) = idemkit('init', '-d', 'fresh', '--table', 'Jobs', '--unlogged');
is("$status$out$err", "0records: jobs\n", 'init --table');
is($node->safe_psql('fresh', q{SELECT relpersistence FROM pg_class WHERE relname = 'jobs'}), 'u',
	'init --unlogged');
is_status(EX_USAGE, 'init --unlogged without --table', 'init', '--unlogged');
is_status(EX_DATAERR, 'init with a bad name', 'init', '--table', 'a-b');
($status) = idemkit('claim', '-d', 'fresh', '-t', 'jobs', '-k', 'in jobs');
is($status, 0, 'claim in another table');
is($node->safe_psql('fresh', 'SELECT effective_key FROM jobs'), 'in jobs', 'and there it is');

$node->safe_psql('fresh', q{
	SELECT idemkit_complete('done ' || i, our_claim_token, expires_after_seconds => 0)
	  FROM generate_series(1, 5) i, idemkit_claim('done ' || i) c});
($status, $out) = idemkit('stats', '-d', 'fresh', '--json');
$object = json($out);
is($object->{expired_completions}, 5, 'stats --json');
is(ref(\$object->{table_bytes}) . ($out =~ /"table_bytes": \d/ ? ' number' : ''), 'SCALAR number',
	'stats --json: numbers are numbers');
($status, $out) = idemkit('stats', '-d', 'fresh', '-t', 'jobs');
like($out, qr/^live_claims: 1$/m, 'stats of another table');
($status, $out) = idemkit('vacuum', '-d', 'fresh', '--max-rows', '2', '--json');
is($status, 0, 'vacuum: exit status');
is(json($out)->{removed}, 2, 'vacuum --max-rows --json');
($status, $out) = idemkit('vacuum', '-d', 'fresh');
is($out, "removed: 3\n", 'vacuum');
$node->safe_psql('fresh', q{
	SELECT idemkit_complete('kept', our_claim_token) FROM idemkit_claim('kept');
	SELECT idemkit_claim('lapsed', lease_ttl_seconds => 0.001); SELECT pg_sleep(0.01)});
($status, $out) = idemkit('vacuum', '-d', 'fresh');
is($out, "removed: 0\n", 'vacuum leaves what is live, and lapsed claims for a minute');
($status, $out) = idemkit('vacuum', '-d', 'fresh', '--lease-grace', '0');
is($out, "removed: 1\n", 'vacuum --lease-grace');
($status, $out) = idemkit('vacuum', '-d', 'fresh', '--expires-after', '0');
is($out, "removed: 1\n", 'vacuum --expires-after');

# --- errors of the server, and no server ---

is_status(EX_DATAERR, 'key too long', 'claim', '-k', 'k' x 1025);
is_status(EX_DATAERR, 'key that is no UTF-8', 'claim', '-k', "\xff");
is_status(EX_DATAERR, 'lease of nothing', 'claim', '-k', 'z', '--lease', '0');
($status, $token) = idemkit('claim', '-k', 'z');
chomp $token;
is_status(EX_DATAERR, 'headers that are no JSON', { env => { IDEMKIT_CLAIM_TOKEN => $token } },
	'complete', '-k', 'z', '--headers', '{');
$node->safe_psql('postgres', 'CREATE ROLE nobody_special LOGIN');
is_status(EX_NOPERM, 'no rights', 'claim', '-k', 'z', '-d', 'user=nobody_special');
is_status(EX_UNAVAILABLE, 'no such database', 'get', '-k', 'z', '-d', 'nonexistent');
my @calls = (
	[ 'get', '-k', 'z' ], [ 'claim', '-k', 'z' ], [ 'wait', '-k', 'z', '--timeout', '0.2' ],
	['vacuum'], ['init'], ['verify'], ['stats'], [ 'run', '-k', 'z', '--', 'echo', 'never' ]);
is_status(EX_UNAVAILABLE, "no server: $_->[0]", { env => { PGPORT => '1' } }, @$_) for @calls;
is_status(EX_UNAVAILABLE, "no server: $_",
	{ env => { PGPORT => '1', IDEMKIT_CLAIM_TOKEN => $token } }, $_, '-k', 'z')
  for qw(complete release renew);

# --- secrets ---

for my $conninfo ('password=secret', 'postgresql://user:secret@host/db', 'sslpassword=secret')
{
	my $said = is_status(EX_USAGE, "conninfo with a password", 'get', '-k', 'k', '-d', $conninfo);
	unlike($said, qr/secret/, 'conninfo with a password: it is not repeated');
}
is_status(EX_USAGE, 'conninfo that is none', 'get', '-k', 'k', '-d', 'nonsense=1');
like(is_status(EX_USAGE, 'no option takes a token', 'release', '-k', 'k', '--token', $token),
	qr/no option/, 'no option takes a token: the reason');
SKIP:
{
	skip 'unavailable: no /proc', 2 unless -r "/proc/$$/cmdline";
	my $fifo = scratch('fifo');
	POSIX::mkfifo($fifo, 0600) or die $!;
	my $completing = start_idemkit({ env => { IDEMKIT_CLAIM_TOKEN => $token } },
		'complete', '-k', 'z', '-b', $fifo);
	my $cmdline = '';
	wait_until('the command to begin',
		sub { ($cmdline = slurp("/proc/$completing->{pid}/cmdline")) =~ /complete/ });
	like($cmdline, qr/complete\0-k\0z/, 'the command line can be read');
	unlike($cmdline, qr/$token/, 'and the token is not in it');
	open(my $body_file, '>', $fifo) or die $!;
	close $body_file;
	$completing->finish;
}

# --- standard output that does not work ---

SKIP:
{
	skip 'unavailable: no /dev/full', 1 unless -w '/dev/full';
	open(my $full, '>', '/dev/full') or die $!;
	($status) = idemkit({ stdout => $full }, 'get', '-k', $key);
	is($status, EX_IOERR, 'output that cannot be written: exit status');
}

$node->stop;
done_testing();
