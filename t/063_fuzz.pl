# Random arguments of every kind, from SQL, in databases of several encodings, over
# tables of several kinds whose rows are corrupted between the calls: the server
# lives, only the SQLSTATEs of the contract and those of PostgreSQL's own casts
# are raised, and no message and no line of the log shows a response or a claim token.
#
# IDEMKIT_SEED=N repeats the choices, IDEMKIT_SIZE=N is the number of seconds.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use IPC::Run;
use Test::More;
use Time::HiRes qw(time);

my $seed    = IdemkitNode::seed();
my $seconds = IdemkitNode::size(5, 600);
my $node    = IdemkitNode->launch('main', 'max_prepared_transactions = 5', 'log_error_verbosity = verbose',
	'log_min_messages = warning', 'statement_timeout = 20s');

# What calls may raise: the contract; what PostgreSQL raises for arguments that do not
# fit their types or encodings (class 22 and those of 42 that name a function or a
# type); and what belongs to the settings that are tried out.  A syntax error is none of
# them, for it would be a fault of this program.
my %allowed = map { $_ => 1 } (
	qw(22004 22023 55000 42P01 54000 IK001 42602 3F000 25001),
	qw(22P02 22P03 22P05 22003 22007 22008 22021 2202E 22000 42804 42883 42846 42725 42809 42P18),
	qw(25006 25P02 40001 57014 55P03 42501 0A000 42P07 21000 40P01 2D000));

# Responses carry marks, which are put together by functions so that no statement, and
# so no line of the log, spells them.
my $marks = qr/MARKED-BODY|MARKED-HEADER|4d41524b45442d424f4459|54455354-MARK/i;
my $token = qr/(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])/;

my %database = (UTF8 => 'postgres', LATIN1 => 'latin1', EUC_JP => 'euc_jp', SQL_ASCII => 'sql_ascii');

# Texts in each encoding, whole and broken, as SQL.
my %texts = (
	UTF8      => [ q{U&'\00e9\3042\+01F600'}, q{repeat(U&'\00e9', 512)}, q{repeat(U&'\+01F600', 257)}, q{E'\xff'}, q{E'\xc3'} ],
	LATIN1    => [ q{E'\xe9\xff\x80'}, q{repeat(E'\xe9', 1024)} ],
	EUC_JP    => [ q{E'\xa4\xa2'}, q{repeat(E'\xa4\xa2', 512)}, q{E'\xa4'}, q{E'\x8f\xb0\xa1'} ],
	SQL_ASCII => [ q{E'\xff\xfe'}, q{repeat(E'\xff', 1024)}, q{E'\x80'}, q{E'\xc3\xa9'} ]);

foreach my $encoding (sort keys %database)
{
	my $name = $database{$encoding};

	$node->value("CREATE DATABASE $name ENCODING '$encoding' LOCALE 'C' TEMPLATE template0") if $encoding ne 'UTF8';
	$node->safe_psql($name, q{
		SET client_min_messages = error;
		CREATE EXTENSION IF NOT EXISTS idemkit;
		CREATE FUNCTION body(size int) RETURNS bytea LANGUAGE sql AS
			$$ SELECT convert_to(repeat('MARKED' || '-BODY ', size), 'SQL_ASCII') $$;
		CREATE FUNCTION headers(size int) RETURNS jsonb LANGUAGE sql AS
			$$ SELECT jsonb_build_object('h', repeat('MARKED' || '-HEADER ', size)) $$;
		-- Tables whose rows nothing keeps from being corrupted.
		CREATE TABLE plain (LIKE idemkit_records INCLUDING DEFAULTS INCLUDING INDEXES, id bigserial);
		CREATE TABLE parts (LIKE plain INCLUDING ALL) PARTITION BY HASH (effective_key);
		CREATE TABLE part_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
		CREATE TABLE part_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
		CREATE UNLOGGED TABLE "Un logged" (LIKE plain INCLUDING ALL);
		CREATE TABLE inherited (LIKE plain INCLUDING ALL);
		CREATE TABLE child () INHERITS (inherited);
		CREATE TABLE guarded (LIKE plain INCLUDING ALL);
		CREATE POLICY p ON guarded USING (length(effective_key) < 900);
		ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
		CREATE TABLE loud (LIKE plain INCLUDING ALL);
		CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN IF random() < 0.1 THEN RETURN NULL; END IF; RETURN NEW; END';
		CREATE TRIGGER say BEFORE INSERT OR UPDATE ON loud FOR EACH ROW EXECUTE FUNCTION say();
		CREATE VIEW seen AS SELECT * FROM plain;
		CREATE MATERIALIZED VIEW seen_then AS SELECT * FROM plain;
		CREATE TYPE shape AS (effective_key text);
		CREATE ROLE fuzzer;
		GRANT SELECT, INSERT, UPDATE, DELETE ON idemkit_records, plain, parts, guarded, loud, "Un logged", inherited TO fuzzer;
		GRANT USAGE ON SEQUENCE plain_id_seq TO fuzzer;
		CREATE FUNCTION token_of(n int) RETURNS text LANGUAGE sql SECURITY DEFINER AS
			$$ SELECT claim_token FROM (SELECT claim_token FROM plain UNION ALL SELECT claim_token FROM idemkit_records
				UNION ALL SELECT claim_token FROM parts UNION ALL SELECT claim_token FROM loud) t
			ORDER BY claim_token OFFSET n % 50 LIMIT 1 $$} =~ s/CREATE ROLE fuzzer;/$encoding eq 'EUC_JP' ? 'CREATE ROLE fuzzer;' : ''/er);
}

sub pick { return $_[ int(rand(@_)) ] }
sub chance { return rand() < $_[0] }

# Mostly one of the sound values, now and then an odd one.
sub mostly { return pick(@{ chance(0.88) ? $_[0] : $_[1] }) }

my $encoding;

sub key
{
	return mostly([ (map { "'k$_'" } 1 .. 12), q{'it''s'}, $texts{$encoding}[0] ],
		[
			"''", 'NULL', q{repeat('x', 1024)}, q{repeat('y', 1025)}, q{repeat('z', 100000)}, q{E'\n\t\\\\'}, q{'k1'::varchar}, q{'k1'::name},
			q{'k1'::char(10)}, q{' k1'}, 'NULL::text', '12', q{chr(1)}, q{'{a,b}'}, q{md5('x')}, @{ $texts{$encoding} }
		]);
}

sub token_argument
{
	my $n = int(rand(50));

	return mostly([ "token_of($n)", "token_of($n)", q{'none'} ],
		[ "''", 'NULL', "upper(token_of($n))", "token_of($n) || ' '", q{repeat('0', 100000)}, @{ $texts{$encoding} } ]);
}

sub fingerprint { return mostly([ "''", q{'f'}, q{'g'} ], [ 'NULL', q{repeat('f', 300000)}, @{ $texts{$encoding} } ]) }

sub integer
{
	return mostly([ 0, 1, 2, 200, 1000 ],
		[ -1, 2147483647, -2147483648, 2147483648, 'NULL', q{'7'}, '1.5', q{'x'}, '1::smallint', '9223372036854775807' ]);
}

sub duration
{
	return mostly([ 30, 0.001, 60, '1e-6', '1::real', '2::bigint', '0.5::numeric', 315576000 ],
		[
			0, -1, '1e-7', '4.9e-7', '-0.0::float8', q{'NaN'}, q{'Infinity'}, q{'-Infinity'}, 315576001, '1e308', '5e-324', 'NULL', q{'1 s'},
			q{interval '1 s'}, 'NULL::float8'
		]);
}

sub short_timeout { return mostly([ 0, '0.001', '0.01' ], [ -1, q{'NaN'}, 'NULL', 315576001, '1e-9' ]) }

sub boolean { return mostly([ 'true', 'false' ], [ 'NULL', q{'maybe'}, q{'on'}, '1' ]) }

sub headers
{
	return mostly([ 'NULL', 'headers(1)', 'headers(2000)', q{'{}'}, q[(repeat('{"a":', 500) || '1' || repeat('}', 500))::jsonb] ],
		[
			q{'[]'}, q{'1'}, q{'null'}, q{'"x"'}, q('{'), q{'{"a": "\u0000"}'}, q{'{"a": "\u3042"}'}, q{to_jsonb(array_fill(1, ARRAY[5000]))},
			q{'{}'::json}, q{jsonb_build_object(repeat('k', 1000), NULL)}
		]);
}

sub body
{
	return mostly([ 'NULL', 'body(1)', 'body(3)', 'body(20000)', q{''}, q{'\x00'} ],
		[ q{'\xzz'}, q{'\\777'}, q{'text'::text}, 'NULL::bytea', q{E'\\\\x4d41'} ]);
}

sub records
{
	return mostly([ ('NULL', q{'plain'}) x 3, q{'parts'}, q{'"Un logged"'}, q{'inherited'}, q{'guarded'}, q{'loud'}, q{'temporary'} ],
		[
			q{'nowhere'}, q{'seen'}, q{'seen_then'}, q{'shape'}, q{'plain_pkey'}, q{'pg_class'}, q{'pg_toast.pg_toast_1262'}, 0, 1, 4294967295,
			4294967296, -1, q{'plain'::text}, q{'plain'::regclass::oid}, q{''}, q{'a.b'}, q{'child'}
		]);
}

# An array of what a maker makes, of about that many elements.
sub array_of
{
	my ($maker, $type, $count) = @_;
	my @elements = map { $maker->() } 1 .. $count;
	my $plain    = 'ARRAY[' . join(', ', @elements) . "]::$type\[]";

	my $one      = '(' . $maker->() . ")::$type";

	return mostly([$plain],
		[
			'NULL', q{'{}'}, "'{NULL}'", "'{{},{}}'", "array_fill(NULL::$type, ARRAY[3])", "ARRAY[$plain, $plain]",
			"array_fill($one, ARRAY[$count, 1], ARRAY[-5, 7])", "array_fill($one, ARRAY[" . pick(100, 3000) . '])',
			"array_fill($one, ARRAY[2, 3, 2], ARRAY[0, -2147483648, 5])",
			"(SELECT array_agg(($plain)\[1] || i) FROM generate_series(1, 500) AS i)", "($plain)\[2:]", "($plain)\[0:1]", q{'[5:6]={a,b}'},
			q{'[-3:-2]={k1,k2}'}, q('{a'), '(ARRAY[' . join(', ', @elements) . '])', q{'k1'}
		]);
}

# Functions: name, how it is called, and its arguments.
my @functions = (
	[ 'claim',         [ \&key, \&fingerprint, \&integer, \&duration, \&boolean, \&records ] ],
	[ 'claim',         [ \&key, \&fingerprint, \&integer, \&duration, \&boolean, \&records ] ],
	[ 'complete',      [ \&key, \&token_argument, \&integer, \&headers, \&body, \&duration, \&records ] ],
	[ 'complete',      [ \&key, \&token_argument, \&integer, \&headers, \&body, \&duration, \&records ] ],
	[ 'release',       [ \&key, \&token_argument, \&boolean, \&records ] ],
	[ 'renew',         [ \&key, \&token_argument, \&duration, \&records ] ],
	[ 'guard',         [ \&key, \&token_argument, \&records ] ],
	[ 'get',           [ \&key, \&records ] ],
	[ 'subscribe',     [ \&keys_array, \&records ] ],
	[ 'wait',          [ \&key, \&short_timeout, \&records ], 2 ],
	[ 'claim_many',    [ \&keys_array, \&fingerprints_array, \&integer, \&duration, \&boolean, \&records ] ],
	[ 'complete_many', [ \&keys_array, \&tokens_array, \&statuses_array, \&headers_array, \&bodies_array, \&duration, \&records ] ],
	[ 'vacuum',        [ \&duration, \&duration, \&integer, \&records ] ],
	[ 'stats',         [ \&records ] ],
	[ 'verify_schema', [ \&records ] ],
	[ 'create_table',  [ \&table_name, \&boolean ] ],
	[ 'effective_key', [ \&key, \&key, \&key ] ],
	[ 'effective_key', [ sub { 'VARIADIC ' . keys_array() } ] ]);

my $count;    # of the arrays of one call

sub keys_array         { return array_of(\&key,            'text',    $count) }
sub fingerprints_array { return array_of(\&fingerprint,    'text',    $count) }
sub tokens_array       { return array_of(\&token_argument, 'text',    $count) }
sub statuses_array     { return array_of(\&integer,        'integer', $count) }
sub headers_array      { return array_of(\&headers,        'jsonb',   $count) }
sub bodies_array       { return array_of(\&body,           'bytea',   $count) }

sub table_name
{
	return pick(q{'fresh'}, q{'Fresh_2'}, q{'plain'}, q{'seen'}, q{'pg_class'}, q{'a b'}, q{''}, q{repeat('t', 46)}, q{repeat('t', 47)}, 'NULL', q{'x;drop'},
		q{'9x'}, q{'fresh'::name}, @{ $texts{$encoding} });
}

# One call, with some of its arguments.
sub call
{
	my ($name, $makers, $least) = @{ pick(@functions) };
	$count = pick(1, 2, 3, 8);
	my @arguments = map { $_->() } @$makers;

	splice(@arguments, ($least // 1) + int(rand(@arguments))) if chance(0.2) && @arguments > ($least // 1);
	return "idemkit_$name(" . join(', ', @arguments) . ')';
}

my @columns = (
	[ 'state', q{'BROKEN'}, q{''}, q{'COMPLETED'}, q{'CLAIMED'}, q{repeat('C', 100000)} ], [ 'fingerprint', q{repeat('f', 1000)} ],
	[ 'fingerprint_version',  -1,                0 ],  [ 'claim_token',    q{''} ],
	[ 'claimed_at',           q{'infinity'},     q{'-infinity'}, q{'4713-01-01 BC'}, q{'290000-01-01'} ],
	[ 'lease_until',          q{'infinity'},     q{'-infinity'}, q{'4713-01-01 BC'}, q{'294276-12-31'}, 'now()' ],
	[ 'completed_at',         'NULL',            q{'infinity'},  q{'-infinity'} ],
	[ 'response_headers',     q{'[]'},           q{'1'},         q{'null'}, 'NULL', 'headers(3000)' ], [ 'schema_version', 0, 2, -2147483648 ],
	[ 'attempts',             2147483647,        -2147483648 ],  [ 'awaited', 'true' ], [ 'response_body', 'body(30000)', 'NULL' ]);

# A statement, as one line.
sub statement
{
	my $call = call();

	return pick(
		("SELECT $call") x 6,
		("SELECT * FROM $call") x 6,
		"SELECT f FROM (SELECT $call AS f OFFSET 0) s",
		"SELECT count(*) FROM generate_series(1, 3) i, LATERAL $call f",
		"SELECT $call, " . call(),
		"SELECT CASE WHEN random() < 0.5 THEN $call END",
		"SELECT 1 WHERE $call IS NOT NULL",
		"SELECT * FROM $call LIMIT 0",
		"WITH c AS MATERIALIZED (SELECT * FROM $call f) SELECT count(*) FROM c",
		'DO $do$ BEGIN PERFORM ' . $call . '; EXCEPTION WHEN SQLSTATE \'22023\' THEN NULL; END $do$',
		'BEGIN ISOLATION LEVEL ' . pick('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE') . pick('', ' READ ONLY') . "; SELECT $call; SELECT * FROM "
		  . call() . '; ' . pick('COMMIT', 'ROLLBACK'),
		"BEGIN; SAVEPOINT s; SELECT $call; ROLLBACK TO s; SELECT " . call() . '; COMMIT',
		"BEGIN; DECLARE c CURSOR FOR SELECT * FROM $call; FETCH 1 FROM c; COMMIT",
		'CALL idemkit_sweep(' . join(', ', pick(0, 'NULL'), integer(), duration(), records()) . ')',
		'CALL idemkit_sweep(records => ' . records() . ')',
		'SET idemkit.notify = ' . pick('always', 'awaited', 'never'),
		'SET idemkit.max_response_bytes = ' . pick(0, 0, 0, 10, 100000),
		'SET plan_cache_mode = ' . pick('auto', 'force_custom_plan', 'force_generic_plan'),
		'SET default_transaction_isolation = ' . pick(q{'read committed'}, q{'read committed'}, q{'repeatable read'}, 'serializable'),
		'SET ROLE ' . pick('fuzzer', 'NONE', 'NONE'),
		'SET search_path = ' . pick('public', q{'', public}, 'pg_catalog, public', 'public, pg_catalog'),
		'SET enable_indexscan = ' . pick('on', 'off'),
		'SET work_mem = ' . pick(64, 4096),
		'TRUNCATE ' . pick('plain', 'parts', 'idemkit_records', '"Un logged"', 'loud'),
		(map { corruption() } 1 .. 4));
}

sub corruption
{
	my ($column, @values) = @{ pick(@columns) };

	return 'UPDATE ' . pick(('plain') x 3, 'parts', '"Un logged"', 'loud', 'inherited', 'guarded')
	  . " SET $column = " . pick(@values) . ' WHERE effective_key > ' . pick("''", q{'k5'}, q{'k9'});
}

my %raised;
my ($statements, $batches) = (0, 0);
my @faults;

# Runs a batch of statements in each database, in two sessions of the first.
sub run_batch
{
	my @runs;

	foreach my $which ('UTF8', 'UTF8', sort grep { $_ ne 'UTF8' } keys %database)
	{
		$encoding = $which;
		my @lines = ("SET client_encoding = '$which'; SET client_min_messages = error; CREATE TEMP TABLE temporary (LIKE plain INCLUDING ALL);");

		push(@lines, statement() . ';') while @lines < 150;
		my $path = $node->basedir . '/batch-' . @runs . '.sql';
		open(my $file, '>:raw', $path) or die "$path: $!";
		print $file join("\n", @lines), "\n";
		close($file) or die "$path: $!";
		my $run = { encoding => $which, lines => \@lines, errors => '' };
		$run->{process} = IPC::Run::start(
			[ 'psql', '-X', '-q', '-o', '/dev/null', '-v', 'VERBOSITY=verbose', '-f', $path, $node->connstr($database{$which}) ],
			'>', '/dev/null', '2>', \$run->{errors});
		push(@runs, $run);
		$statements += @lines;
	}
	judge($_) foreach @runs;
	$batches++;
	return;
}

# Looks at what a session was told.
sub judge
{
	my ($run) = @_;

	$run->{process}->finish;
	push(@faults, "$run->{encoding}: psql ended with " . ($? >> 8) . ': ' . substr($run->{errors}, -500)) if $? >> 8 > 1;
	foreach my $error (split(/^(?=psql:)/m, $run->{errors}))
	{
		my ($line, $state) = $error =~ /^psql:.*?:(\d+): (?:ERROR|FATAL|PANIC): +([0-9A-Z]{5}):/;

		# What psql says of itself, and where the statement is quoted.
		$error =~ s/^LINE \d+:.*\n.*\n//m;
		$raised{$state}++ if defined $state;
		my $fault =
			!defined $state ? 'no SQLSTATE'
		  : !$allowed{$state} ? "SQLSTATE $state"
		  : $error =~ $marks  ? 'shows a response'
		  : $error =~ $token  ? 'shows a token'
		  :                     next;
		push(@faults, "$run->{encoding}: $fault\n$error" . (defined $line ? "statement: $run->{lines}[$line - 1]\n" : ''));
	}
	return;
}

my $until = time + $seconds;
run_batch() while time < $until && @faults < 20;
is(join("\n", map { substr($_, 0, 2000) } @faults), '', 'only what may be raised was, and no message shows a response or a token');

my $errors = 0;
$errors += $_ foreach values %raised;
note join(', ', map { "$_ $raised{$_}" } sort { $raised{$b} <=> $raised{$a} } keys %raised);
foreach my $state (qw(22004 22023 42P01), $statements > 20_000 ? qw(55000 54000 IK001 42602 25001) : ())
{
	cmp_ok($raised{$state} // 0, '>', 0, "$state was among them");
}

my @shown = grep { /$marks|$token/ } split(/\n/, PostgreSQL::Test::Utils::slurp_file($node->logfile));
is(join("\n", map { substr($_, 0, 500) } @shown[ 0 .. ($#shown < 5 ? $#shown : 5) ]), '', 'nor does a line of the log');
foreach my $name (values %database)
{
	is($node->safe_psql($name, q{SET client_min_messages = error; TRUNCATE idemkit_records;
			SELECT our_claim_token AS t FROM idemkit_claim('k') \gset
			SELECT idemkit_complete('k', :'t', 200, headers(1), body(1));
			SELECT result, response_body = body(1) FROM idemkit_claim('k')}),
		"t\nalready_completed|t", "$name: all works as before");
}
IdemkitNode::report("fuzz: seed $seed, $seconds s, $statements statements in $batches batches, $errors errors of "
	  . keys(%raised) . ' SQLSTATEs, ' . @faults . ' faults');
$node->log_is_clean;
done_testing();
