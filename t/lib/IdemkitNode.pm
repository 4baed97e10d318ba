# A test server with the extension, and the questions the tests ask of it.
package IdemkitNode;

use strict;
use warnings;

use Time::HiRes qw(usleep);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils (); # its subs would hide inherited methods
use Test::More;

our @ISA = ('PostgreSQL::Test::Cluster');

# Seconds after which waiting for a condition is given up.
our $patience = $PostgreSQL::Test::Utils::timeout_default;

# How many times the quick form of a test is repeated in the long form, that of
# script/soak.
our $long = $ENV{IDEMKIT_LONG} ? 5 : 1;

# What pg_config says of an option; the one of the PostgreSQL that is tested, or another.
sub pg_config
{
	my ($option, $program) = @_;
	$program //= 'pg_config';
	my $answer = qx('$program' $option);

	die "$program $option failed" if $? != 0;
	chomp $answer;
	return $answer;
}

# The major version of the PostgreSQL that is tested.
sub major_version
{
	return (pg_config('--version') =~ /(\d+)/)[0];
}

# For what only versions from that one on bring along: gives up the file, and
# script/matrix lists it.
sub needs_version
{
	my ($version, $what) = @_;

	plan skip_all => "unavailable: $what" if major_version() < $version;
	return;
}

# How much a test does: of its own two numbers the one for its form, unless
# IDEMKIT_SIZE asks for another.
sub size
{
	my ($quick, $in_long_form) = @_;

	return $ENV{IDEMKIT_SIZE} // ($ENV{IDEMKIT_LONG} ? $in_long_form : $quick);
}

# Seeds rand() and says with what; IDEMKIT_SEED repeats what a seed did before.
sub seed
{
	my $seed = $ENV{IDEMKIT_SEED} // (time ^ $$ << 8);

	srand($seed);
	note "IDEMKIT_SEED=$seed";
	return $seed;
}

# What a test did and found, in numbers: script/soak prints these lines.
sub report
{
	my ($text) = @_;

	note "report: $text";
	return;
}

# A new server, started, with the extension in database postgres.  Further
# arguments are lines for postgresql.conf.
sub launch
{
	my ($class, $name, @settings) = @_;
	my $node = $class->prepare($name, @settings);

	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION idemkit');
	return $node;
}

# The same, neither started nor with the extension.  Statements are not logged:
# that would slow races down and mix keys into the log that is looked at below.
# Options may come before the settings: install_path, of another PostgreSQL than the
# one on the PATH, and initdb, further arguments for that.
sub prepare
{
	my ($class, $name, @settings) = @_;
	my %options = ref $settings[0] ? %{ shift @settings } : ();
	my $node    = $class->new($name, map { ($_ => $options{$_}) } grep { $_ eq 'install_path' } keys %options);

	# What newer modules write for standbys an older server may not know.
	$node->init(
		allows_streaming => !exists $options{install_path},
		extra            => [ '--locale=C', '--encoding=UTF8', @{ $options{initdb} // [] } ]);
	$node->append_conf('postgresql.conf', join("\n",
			'max_connections = 100', 'shared_buffers = 32MB',
			'synchronous_commit = on', 'log_statement = none',
			# A call that never ends is a failure, not a hung test.
			'statement_timeout = ' . int($patience * 500),
			"log_line_prefix = '%m [%p] %q%a %e '", @settings, ''));
	return $node;
}

# The output of a statement in database postgres.
sub value
{
	my ($node, $sql, @roles) = @_;

	return $node->safe_psql('postgres', $sql,
		extra_params => [ map { ('-U', $_) } @roles ]);
}

# The SQLSTATE that a statement ends with, 00000 if it succeeds; as a role, if
# one is given.
sub sqlstate
{
	my ($node, $sql, $role, $database) = @_;
	my @role = defined $role ? ('-U', $role) : ();
	my ($status, undef, $stderr) = $node->psql($database // 'postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=sqlstate', @role ]);

	return '00000' if $status == 0;
	return $stderr =~ /(?:ERROR|FATAL): +([0-9A-Z]{5})$/m ? $1 : $stderr;
}

# The SQLSTATE of a statement in an open session (begun with on_error_stop => 0
# and VERBOSITY sqlstate, see session()).
sub session_sqlstate
{
	my ($node, $session, $sql) = @_;

	$session->query($sql);
	my $stderr = $session->{stderr};
	$session->{stderr} = '';
	return '00000' if $stderr eq '';
	return $stderr =~ /(?:ERROR|FATAL): +([0-9A-Z]{5})$/m ? $1 : $stderr;
}

# An open session that survives errors.
sub session
{
	my ($node, %params) = @_;
	my $session = $node->background_psql(
		$params{database} // 'postgres',
		on_error_stop => 0,
		extra_params  => [
			'-v', 'VERBOSITY=sqlstate',
			defined $params{role} ? ('-U', $params{role}) : ()
		]);

	# What has a bound is a query, not the life of the session.
	$session->set_query_timer_restart if $session->can('set_query_timer_restart');
	return $session;
}

# Tests each verb in a session on new keys of a table, or of the extension's own
# table; the extension is in that schema.  What is over in the table is removed.
my $keys = 0;

sub all_verbs_work
{
	my ($node, $session, $name, $schema, $table) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($key, $other) = ('key ' . ++$keys, "other $keys");
	my $records = defined $table ? "'$table'" : 'NULL';
	my $call    = sub {
		my ($columns, $verb) = @_;

		return scalar $session->query("SELECT $columns FROM $schema.idemkit_$verb records => $records)");
	};
	my $token = $call->('our_claim_token', "claim('$key',");
	my $others;

	like($token, qr/^[0-9a-f]{32}$/, "$name: claim");
	is_deeply(
		[
			$call->('*',       "renew('$key', '$token',"),
			$call->('*',       "guard('$key', '$token',"),
			$call->('*',       "complete('$key', '$token',"),
			$call->('result',  "claim('$key',"),
			$call->('state',   "get('$key',"),
			$call->('outcome', "wait('$key',"),
			$call->('*',       "release('$key', '$token',")
		],
		[ 't', '', 't', 'already_completed', 'COMPLETED', 'completed', 'f' ],
		"$name: verbs of one key");

	$others = $call->("string_agg(result, ' '), max(our_claim_token)", "claim_many(ARRAY['$other', '$key', '$other'],");
	($others, $token) = split(/\|/, $others);
	is_deeply(
		[
			$others,
			$call->('state', "subscribe(ARRAY['$other'],"),
			$call->('live_claims > 0, live_completions > 0', 'stats('),
			$call->('*', "complete_many(ARRAY['$key', '$other'], ARRAY['wrong', '$token'],"),
			$call->('idemkit_vacuum > 1', 'vacuum(0,'),
			scalar $session->query("CALL $schema.idemkit_sweep(records => $records)"),
			$call->('*', 'verify_schema(')
		],
		[ 'new_claimed already_completed already_claimed', 'CLAIMED', 't|t', "f\nt", 't', '0', '' ],
		"$name: the other verbs");
	is($session->{stderr}, '', "$name: no error");
	$session->{stderr} = '';
	return;
}

# The processes of the server, the postmaster first.
sub processes
{
	my ($node) = @_;
	my ($postmaster) = split(/\n/, PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/postmaster.pid'));
	my @children = grep { /\d/ } split(/\s+/, `ps -o pid= --ppid $postmaster`);

	die "ps finds no process below the postmaster ($postmaster)" if !@children;
	return ($postmaster, @children);
}

# Sends a statement without waiting for its end; finish() gets the output.
sub begin_statement
{
	my ($node, $session, $sql) = @_;

	$session->query_until(qr/^begun$/m, "\\echo begun\n$sql;\n");
	return;
}

# Waits until the backend of that process id waits for a heavyweight lock.
sub wait_until_blocked
{
	my ($node, $pid) = @_;

	$node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid")
	  or die "process $pid did not come to wait for a lock";
	return;
}

# Waits until a piece of Perl is true.
sub wait_until
{
	my ($node, $what, $condition) = @_;

	for (my $tries = 0; $tries < $patience * 100; $tries++)
	{
		return if $condition->();
		usleep(10_000);
	}
	die "waited in vain for: $what";
}

# Writes a script for pgbench and returns its path.
my $scripts = 0;

sub script
{
	my ($node, $text) = @_;
	my $path = $node->basedir . '/script' . ++$scripts . '.sql';

	PostgreSQL::Test::Utils::append_to_file($path, $text);
	return $path;
}

# Runs pgbench; a test, passed if no client failed.  $scripts are texts.
sub bench
{
	my ($node, $name, $options, @texts) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return $node->command_ok(
		[
			'pgbench', '-n', split(' ', $options),
			(map { ('-f', $node->script($_)) } @texts), 'postgres'
		],
		$name);
}

# What amcheck finds wrong with the storage of some tables, of their indexes (but such
# as a command left half made) and of what they keep out of line: an empty string if all
# is sound.  No session may be writing.
sub unsound_storage
{
	my ($node, @tables) = @_;
	my $tables = join(',', map { "'$_'::regclass" } @tables);
	my $parts  = "(SELECT unnest(ARRAY[c.oid, nullif(c.reltoastrelid, 0)]) AS part FROM pg_class c WHERE c.oid IN ($tables)) p";
	my ($status, $stdout, $stderr) = $node->psql('postgres',
		"SELECT bt_index_parent_check(i.indexrelid, true, true) FROM $parts JOIN pg_index i ON i.indrelid = p.part AND i.indisvalid \\g /dev/null\n"
		  . ($node->value('SHOW server_version_num') < 140000 ? ''
			: "SELECT p.part::regclass, v.* FROM $parts, LATERAL verify_heapam(p.part) v WHERE p.part IS NOT NULL"));

	return "$stdout$stderr";
}

# A test: amcheck finds nothing wrong with the storage of some tables.
sub storage_is_sound
{
	my ($node, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

  SKIP:
	{
		skip('unavailable: amcheck', 1)
		  if !$node->value(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'});
		$node->value('SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS amcheck');
		is($node->unsound_storage(@tables), '', "amcheck finds nothing: @tables");
	}
	return;
}

# A test: the server's log has nothing that only a defect puts there.  "XX" are
# internal errors; leaks of references are reported as warnings without one.
# $expected matches lines that the test itself is the reason for.
sub log_is_clean
{
	my ($node, $expected) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @bad = grep { !defined $expected || !/$expected/ }
	  grep { /TRAP:|PANIC:|terminated by signal|WARNING:.*leak|ERROR:.*cache lookup failed| XX[0-9A-Z]{3} / }
	  split(/\n/, PostgreSQL::Test::Utils::slurp_file($node->logfile));

	return is(join("\n", @bad), '', 'no crash, leak or internal error in the log of ' . $node->name);
}

1;
