# Programs in other languages, run against a test server: the interpreters that have
# the drivers, and the environment that leads them to the server.
package Drivers;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IPC::Run;

use PostgreSQL::Test::Utils ();
use Test::More;

my $top = abs_path(dirname(__FILE__) . '/../..');

# What the examples' tour prints, as its document has it.
sub tour_output
{
	my $document = PostgreSQL::Test::Utils::slurp_file("$top/examples/README.md");
	my ($output) = $document =~ /^Each prints\n\n```text\n(.*?)^```$/ms or die 'examples/README.md says nothing';

	return $output;
}

# Sets the environment for programs that are to connect to that host and port.
sub lead_to
{
	my ($host, $port, $database) = @_;

	$ENV{PGHOST}     = $host;
	$ENV{PGPORT}     = $port;
	$ENV{PGDATABASE} = $database // 'postgres';
	$ENV{PGUSER}     = getpwuid($<);    # not every driver asks the system who it is
	return;
}

# Whether a command ends with status 0; what it says is of no interest.
sub succeeds
{
	my (@command) = @_;

	return IPC::Run::run(\@command, '<', \undef, '&>', \my $output,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
}

# The Python that has the modules, or undef. Debian's first, another may be in the
# way in PATH.
sub python
{
	my (@modules) = @_;

	return (grep { succeeds($_, '-c', 'import ' . join(', ', @modules)) }
		grep { -x } map { "$_/python3" } '/usr/bin', split(/:/, $ENV{PATH}))[0];
}

# Node.js with the module pg, as a command; empty where there is none. Debian's package
# is in a directory that other builds of Node.js do not know. In the sandbox of
# script/test, where nobody's files are touched, the module is installed as the
# examples' document says.
my @node;

sub node
{
	my $directory = "$top/examples/node";
	my ($node) = grep { -x } map { "$_/node" } split(/:/, $ENV{PATH});
	my $path = join(':', "$directory/node_modules", '/usr/share/nodejs', '/usr/lib/nodejs', $ENV{NODE_PATH} // ());
	my @command = ('env', "NODE_PATH=$path", $node // 'node');
	my @has_pg = (@command, '-e', 'require("pg")');

	return @node if @node || !defined $node;
	succeeds('sh', '-c', "cd '$directory' && npm ci --ignore-scripts --fetch-retries=1")
	  if !succeeds(@has_pg) && $ENV{SANDBOX};
	@node = @command if succeeds(@has_pg);
	return @node;
}

# The command that runs a program, by the ending of its name; empty where its driver
# is not to be had.
sub command
{
	my ($file, @modules) = @_;
	my @interpreter = $file =~ /\.py$/ ? python(@modules) : $file =~ /\.js$/ ? node() : ('psql', '-X', '-f');

	return defined $interpreter[0] ? (@interpreter, $file) : ();
}

# Runs a command; returns its status, standard output and standard error.
sub run
{
	my (@command) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return ($? & 127 ? 'signal ' . ($? & 127) : $? >> 8, $out, $err);
}

# A test: a command ends with status 0, without a word on standard error, and prints
# the given text.
sub prints
{
	my ($name, $expected, @command) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($status, $out, $err) = run(@command);

	return is("status $status\n$err$out", "status 0\n$expected", $name);
}

# What each of the programs in t/drivers/ that check a driver checks.
my @driver_checks = qw(types composite bodies unknown prepared arrays errors transaction sweep);

# Runs checks of a program in t/drivers/, under the variables of the environment; a test
# for each check.
sub check
{
	my ($program, $modules, $checks, $how, %environment) = @_;
	my @command = command("$top/t/drivers/$program", @$modules);
	my $name = $program . ($how && ", $how");
	local @ENV{ keys %environment } = values %environment;

  SKIP:
	{
		skip("unavailable: the driver of $program", @$checks + 1) if !@command;
		my ($status, $out, $err) = run(@command, @$checks);
		my %passed = map { $_ => 1 } split(/\n/, $out);

		ok($passed{$_}, "$name: $_") foreach @$checks;
		is("status $status\n$err", "status 0\n", "$name: ends well");
	}
	return;
}

sub check_psycopg
{
	return check('psycopg_checks.py', ['psycopg'], \@driver_checks, @_);
}

sub check_asyncpg
{
	return check('asyncpg_checks.py', ['asyncpg'], \@driver_checks, @_);
}

sub check_pg
{
	return check('pg_checks.js', [], \@driver_checks, @_);
}

1;
