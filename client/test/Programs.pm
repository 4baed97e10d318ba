# Runs the test programs, and reports their results as this test's own.
package Programs;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use Test::More;

our @EXPORT = qw(build_path under slowness start_cluster run_program);

# The path of something that make has built.
sub build_path
{
	my ($name) = @_;
	return "$ENV{IDEMKIT_BUILD}/$name";
}

# The words that a program is to be run under, such as valgrind's.
sub under
{
	return split ' ', ($ENV{IDEMKIT_UNDER} // '');
}

sub slowness
{
	return $ENV{IDEMKIT_SLOWNESS} // 1;
}

# A server with the extension, and the environment that leads libpq to it. Further
# arguments are lines for postgresql.conf.
sub start_cluster
{
	my ($name, @settings) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
	$node->append_conf('postgresql.conf', join("\n", 'max_connections = 100', @settings, ''));
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION idemkit');
	$ENV{PGHOST} = $node->host;
	$ENV{PGPORT} = $node->port;
	$ENV{PGDATABASE} = 'postgres';
	return $node;
}

# Runs a program that prints TAP; each of its results becomes one of ours.
sub run_program
{
	my ($name) = @_;
	my ($out, $err) = ('', '');
	my $results = 0;
	my $planned = -1;

	IPC::Run::run([ under(), build_path("test/$name") ], '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout(600));
	my $status = $?;
	for my $line (split /\n/, $out)
	{
		if ($line =~ /^(not )?ok \d+ - (.*)/)
		{
			ok(!$1, "$name: $2");
			$results++;
		}
		elsif ($line =~ /^1\.\.(\d+)$/)
		{
			$planned = $1;
		}
		else
		{
			$line =~ s/^# //;
			note $line;
		}
	}
	is($planned, $results, "$name: ran to its end");
	is($status, 0, "$name: exit status");
	is($err, '', "$name: nothing on standard error");
	return;
}

1;
