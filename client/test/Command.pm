# Runs the command idemkit, in the foreground or beside the test.
package Command;

use strict;
use warnings;

use Exporter 'import';
use File::Temp;
use JSON::PP ();
use POSIX    ();
use Programs;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(idemkit start_idemkit scratch slurp lines wait_until json is_status
  EX_FALSE EX_USAGE EX_DATAERR EX_NOINPUT EX_UNAVAILABLE EX_CANTCREAT EX_IOERR EX_TEMPFAIL
  EX_NOPERM EX_CONFIG);

use constant {
	EX_FALSE => 1,
	EX_USAGE => 64,
	EX_DATAERR => 65,
	EX_NOINPUT => 66,
	EX_UNAVAILABLE => 69,
	EX_CANTCREAT => 73,
	EX_IOERR => 74,
	EX_TEMPFAIL => 75,
	EX_NOPERM => 77,
	EX_CONFIG => 78,
};

my $directory = File::Temp::tempdir(CLEANUP => 1);
my $counter = 0;
my $test_pid = $$;
my %running;

# The path of a file that does not exist yet.
sub scratch
{
	my ($name) = @_;
	$counter++;
	return "$directory/$counter.$name";
}

sub slurp
{
	my ($path) = @_;
	open(my $file, '<:raw', $path) or return '';
	local $/;
	return scalar(<$file>) // '';
}

# How many lines a file has; none when there is no file.
sub lines
{
	my ($path) = @_;
	return scalar(() = slurp($path) =~ /\n/g);
}

# Waits until the condition holds, and fails the test when it does not.
sub wait_until
{
	my ($what, $condition) = @_;
	my $end = time + 30 * slowness();
	while (time < $end)
	{
		return 1 if $condition->();
		sleep 0.05;
	}
	fail("waited in vain for $what");
	return 0;
}

# Starts the command and returns at once. Options: stdin, a text or a handle;
# stdout, a handle; env, variables; ignore, signals.
sub start_idemkit
{
	my ($options, @arguments) = ref $_[0] eq 'HASH' ? @_ : ({}, @_);
	my $run = bless {
		out => scratch('out'),
		err => scratch('err'),
		words => "@arguments",
	}, __PACKAGE__;
	my $in = $options->{stdin};
	if (!ref $in)
	{
		my $path = scratch('in');
		open(my $file, '>:raw', $path) or die $!;
		print $file $in // '';
		close $file;
		undef $in;
		open($in, '<:raw', $path) or die $!;
	}

	$run->{pid} = fork // die $!;
	if ($run->{pid} == 0)
	{
		open(STDIN, '<&', $in) or POSIX::_exit(120);
		if ($options->{stdout})
		{
			open(STDOUT, '>&', $options->{stdout}) or POSIX::_exit(121);
		}
		else
		{
			open(STDOUT, '>', $run->{out}) or POSIX::_exit(122);
		}
		open(STDERR, '>', $run->{err}) or POSIX::_exit(123);
		# PostgreSQL's modules have set these for themselves
		delete $ENV{PGAPPNAME};
		# and who runs the tests, in the background say, may ignore these
		$SIG{$_} = 'DEFAULT' for qw(PIPE HUP INT QUIT TERM USR1 USR2);
		$ENV{$_} = $options->{env}{$_} for keys %{ $options->{env} // {} };
		$SIG{$_} = 'IGNORE' for @{ $options->{ignore} // [] };
		exec(under(), build_path('idemkit'), @arguments) or POSIX::_exit(124);
	}
	$running{ $run->{pid} } = 1;
	return $run;
}

# The command's end: (exit status or -signal, standard output, standard error).
sub finish
{
	my ($run) = @_;
	my $end = time + 60 * slowness();
	while ($run->is_running)
	{
		if (time > $end)
		{
			fail("\"idemkit $run->{words}\" does not end");
			kill 'KILL', $run->{pid};
			$end = time + 60;
		}
		sleep 0.01;
	}
	return ($run->{status}, slurp($run->{out}), slurp($run->{err}));
}

# Has it not ended yet?
sub is_running
{
	my ($run) = @_;
	return 0 if defined $run->{status};
	return 1 if waitpid($run->{pid}, POSIX::WNOHANG()) == 0;
	$run->{status} = ($? & 127) ? -($? & 127) : $? >> 8;
	delete $running{ $run->{pid} };
	return 0;
}

sub idemkit
{
	return start_idemkit(@_)->finish;
}

# Decodes one JSON object on a line of its own, or returns undef.
sub json
{
	my ($text) = @_;
	return undef if $text !~ /\A[^\n]*\n\z/;
	return eval { JSON::PP->new->utf8->decode($text) };
}

# Runs the command and expects a status, and nothing on standard output.
sub is_status
{
	my ($expected, $name, @arguments) = @_;
	my ($status, $out, $err) = idemkit(@arguments);
	is($status, $expected, "$name: exit status") or diag $err;
	is($out, '', "$name: no output");
	return $err;
}

END
{
	my $status = $?;
	if ($$ == $test_pid)
	{
		kill 'KILL', $_ for keys %running;
	}
	$? = $status;
}

1;
