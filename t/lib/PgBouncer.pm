# A pgbouncer in front of a test server, reachable by its socket only.
package PgBouncer;

use strict;
use warnings;

use POSIX ();
use Time::HiRes qw(usleep);

use PostgreSQL::Test::Utils ();

# Those that run, to be ended with the test.
my @running;

# The path of the program, or undef.
sub program
{
	return (grep { -x } map { "$_/pgbouncer" } (split(/:/, $ENV{PATH}), '/usr/sbin'))[0];
}

# Its version, as one number: 1.18 is 118.
sub version
{
	my ($major, $minor) = qx("@{[program()]}" --version) =~ /PgBouncer (\d+)\.(\d+)/ or die;

	return $major * 100 + $minor;
}

# Starts one for the server. $databases: for each name what its line says after dbname
# and user; each leads to the database postgres. Further arguments are lines for the section
# [pgbouncer].
sub start
{
	my ($class, $node, $databases, @settings) = @_;
	my $directory = PostgreSQL::Test::Utils::tempdir_short();
	my $user      = getpwuid($<);
	my $server    = 'host=' . $node->host . ' port=' . $node->port;
	my $self      = bless { host => $directory, port => 6432 }, $class;

	# auth_type any takes the user from the database's line.
	PostgreSQL::Test::Utils::append_to_file("$directory/users.txt", qq("$user" ""\n));
	PostgreSQL::Test::Utils::append_to_file("$directory/pgbouncer.ini", join("\n", '[databases]',
			(map { "$_ = $server dbname=postgres user=$user $databases->{$_}" } sort keys %$databases),
			'[pgbouncer]', 'listen_addr =', "listen_port = $self->{port}", "unix_socket_dir = $directory",
			'auth_type = any', "auth_file = $directory/users.txt", "logfile = $directory/pgbouncer.log",
			"pidfile = $directory/pgbouncer.pid", 'max_client_conn = 200', @settings, ''));

	$self->{pid} = fork() // die "fork: $!";
	if ($self->{pid} == 0)
	{
		open(STDOUT, '>', "$directory/out");
		open(STDERR, '>&', \*STDOUT);
		exec(program(), '-q', "$directory/pgbouncer.ini") or POSIX::_exit(1);
	}
	push @running, $self;
	for (my $tries = 0; !-S "$directory/.s.PGSQL.$self->{port}"; $tries++)
	{
		die 'pgbouncer does not start: ' . PostgreSQL::Test::Utils::slurp_file("$directory/out")
		  if $tries == $PostgreSQL::Test::Utils::timeout_default * 100;
		usleep(10_000);
	}
	return $self;
}

sub host { return $_[0]->{host}; }
sub port { return $_[0]->{port}; }

# Ends it, at once.
sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} // return;

	# Earlier versions do not know this signal, which then ends them as well.
	kill 'QUIT', $pid;
	waitpid $pid, 0;
	return;
}

END
{
	my $status = $?;
	$_->stop foreach @running;
	$? = $status;
}

1;
