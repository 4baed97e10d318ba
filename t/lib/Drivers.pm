# Programs in other languages, run against a test server: the interpreters that have
# the drivers, and the environment that leads them to the server.
package Drivers;

use strict;
use warnings;

use IPC::Run;

use Documents;
use PostgreSQL::Test::Utils ();
use Test::More;

my $top = $Documents::top;

# What the examples' tour prints, as its document has it.
sub tour_output
{
	my ($output) = Documents::text('examples/README.md')
	  =~ /^Each prints\n\n```text\n(.*?)^```$/ms or die 'examples/README.md says nothing';

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

# Node.js with the module pg, which it then finds by NODE_PATH; or undef. Debian's
# package is in a directory that other builds of Node.js do not know. In the sandbox of
# script/test, where nobody's files are touched, the module is installed as the
# examples' document says.
my $node_with_pg;

sub node
{
	my $directory = "$top/examples/node";
	my ($node) = grep { -x } map { "$_/node" } split(/:/, $ENV{PATH});

	return $node_with_pg if defined $node_with_pg || !defined $node;
	$ENV{NODE_PATH} = join(':', "$directory/node_modules", '/usr/share/nodejs', '/usr/lib/nodejs', $ENV{NODE_PATH} // ());
	succeeds('sh', '-c', "cd '$directory' && npm ci --ignore-scripts --fetch-retries=1")
	  if !succeeds($node, '-e', 'require("pg")') && $ENV{SANDBOX};
	# The programs are for Node.js 16 and later.
	$node_with_pg = $node if succeeds($node, '-e', 'require("pg"), require("timers/promises")');
	return $node_with_pg;
}

# The command that runs a program, by the ending of its name; empty where its driver
# is not to be had.
sub command
{
	my ($file, @modules) = @_;
	my @interpreter = $file =~ /\.py$/ ? python(@modules) : $file =~ /\.js$/ ? node() : ('psql', '-X', '-f');

	return defined $interpreter[0] ? (@interpreter, $file) : ();
}

# A test: a command ends with status 0, without a word on standard error, and prints
# the given text.
sub prints
{
	my ($name, $expected, @command) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($status, $out, $err) = Documents::run_command($top, @command);

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
		my ($status, $out, $err) = Documents::run_command($top, @command, @$checks);
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
