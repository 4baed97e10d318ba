# A waiter in a process of its own (test/waits), driven from here.
package Waits;

use strict;
use warnings;

use IPC::Run;
use Test::More;
use Time::HiRes qw(time);

use Programs;

# new(OPTIONS AND CONNECTION STRING...)
sub new
{
	my ($class, @arguments) = @_;
	my $self = bless { in => '', out => '', seen => '', err => '' }, $class;

	$self->{run} = IPC::Run::start([ under(), build_path('test/waits'), @arguments ],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err}, IPC::Run::timeout(300));
	return $self;
}

sub say
{
	my ($self, $line) = @_;
	$self->{in} .= "$line\n";
	$self->{run}->pump_nb;
	return;
}

# Submits a wait.
sub wait
{
	my ($self, $name, $key, $seconds) = @_;
	return $self->say("wait $name $key $seconds");
}

# Waits until a line matches; takes all lines up to it, and returns what the pattern
# captured (or 1). Returns nothing when that many seconds have gone by.
sub until
{
	my ($self, $pattern, $seconds) = @_;
	my $end = time() + $seconds;

	while (1)
	{
		if ($self->{out} =~ s/\A(.*?^$pattern$)\n//ms)
		{
			my $lines = $1;
			$self->{seen} .= "$lines\n";
			my @captured = $lines =~ /^$pattern$/ms;
			return @captured ? @captured : (1);
		}
		last if time() > $end;
		$self->{run}->pump_nb;
		Time::HiRes::sleep(0.002);
	}
	note "waited in vain for $pattern, got: $self->{seen}$self->{out}";
	return;
}

# Tests that a wait ends like this: OUTCOME [BODY] SQLSTATE MESSAGE, a pattern.
# Returns how long it took, in milliseconds.
sub ended_ok
{
	my ($self, $name, $pattern, $seconds, $what) = @_;
	my ($outcome, $took, $rest) =
	  $self->until(qr/ended $name (\w+) (\d+) ([^\n]*)/, $seconds);

	like(defined $outcome ? "$outcome $rest" : 'did not end', qr/^$pattern/, $what);
	return $took // -1;
}

# The counters by name.
sub counters
{
	my ($self) = @_;
	my @names = qw(waits queries keys notifications connections failures listening);
	my %counters;

	$self->say('counters');
	@counters{@names} =
	  $self->until(qr/counters (\d+) (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)/, 20);
	return \%counters;
}

# Waits until a counter has reached a value.
sub until_counter
{
	my ($self, $name, $value, $seconds) = @_;
	my $end = time() + $seconds;

	while (time() < $end)
	{
		return 1 if ($self->counters->{$name} // 0) >= $value;
		Time::HiRes::sleep(0.01);
	}
	return 0;
}

# Ends the process, and tests that it ended well.
sub quit_ok
{
	my ($self, $what) = @_;

	$self->say('quit');
	$self->{run}->finish;
	is($self->{run}->result(0), 0, "$what: exit status");
	is($self->{err}, '', "$what: nothing on standard error");
	my %times;
	my $all = "$self->{seen}$self->{out}";
	$times{$1}++ while $all =~ /^ended (\S+)/mg;
	is(join(' ', grep { $times{$_} > 1 } sort keys %times), '', "$what: no wait ended twice");
	return;
}

1;
