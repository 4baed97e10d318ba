# Runs the steps of IdemkitHistory in sessions side by side, and reads what they were
# told.
package IdemkitSessions;

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils ();

# Has psql run the steps of several sessions at the same time, and reads what it
# printed into the steps: sqlstate, calls, notified (keys), and the clock: from and
# to, and ends, when the statement had surely ended and, outside a transaction
# block, was committed.
sub play
{
	my ($node, $history, @sessions) = @_;
	my (@running, @printed);

	foreach my $n (0 .. $#sessions)
	{
		my $path = $node->basedir . "/session$n";

		open my $script, '>', "$path.sql" or die $!;
		print $script "SET client_min_messages = warning;\nLISTEN idemkit_completions;\n";
		print $script map { "\\set lost_$_ none\n" } $history->places;
		print $script map { $_->{sql} . ($_->{sql} =~ /\\gset$/ ? '' : ';') . "\n\\echo = :SQLSTATE\n" } @{ $sessions[$n] };
		print $script "SELECT us(clock_timestamp());\n";
		close $script or die $!;
		$printed[$n] = "$path.out";
		push @running,
		  IPC::Run::start(
			[ 'psql', '-XqAt', '-F', '|', '-P', 'null=~', '-d', $node->connstr('postgres'), '-f', "$path.sql" ],
			'<', \undef, '>', $printed[$n], '2>', "$path.err");
	}
	foreach (@running) { IPC::Run::finish($_) or die 'psql failed' }
	foreach (0 .. $#sessions) { read_steps($printed[$_], $sessions[$_]) }
	return;
}

sub read_steps
{
	my ($path, $steps) = @_;
	my ($n, @rows, @notified) = (0);

	open my $lines, '<', $path or die $!;
	while (my $line = <$lines>)
	{
		chomp $line;
		if ($line =~ /^= (\w+)$/)
		{
			my $step = $steps->[ $n++ ] // die 'more answers than questions';

			@$step{qw(sqlstate rows notified)} = ($1, [@rows], [@notified]);
			(@rows, @notified) = ();
		}
		elsif ($line =~ /^Asynchronous notification "idemkit_completions" with payload "(.*)" received from /)
		{
			push @notified, $1;
		}
		else
		{
			push @rows, [ split /\|/, $line, -1 ];
		}
	}
	close $lines or die $!;
	die "a session ended after $n of " . @$steps . ' steps' if $n < @$steps || @rows != 1;
	set_clocks($steps, $rows[0][0]);
	foreach (@$steps) { set_calls($_) }
	return;
}

# The clock of each step, as far as it printed any, else as its neighbours know.
sub set_clocks
{
	my ($steps, $end) = @_;
	my $begin = 0;

	foreach my $step (grep { $_->{read} } @$steps)
	{
		my $rows = $step->{rows};

		$begin = $step->{from} = @$rows ? $rows->[0][0] : $begin;
		$begin = $step->{to} = $rows->[-1][-1] if $step->{ends_with_clock} && $step->{sqlstate} eq '00000';
	}
	foreach my $step (reverse @$steps)
	{
		$step->{ends} = $end;
		$step->{to} //= $end;
		$end = $step->{rows}[0][0] if $step->{read} && @{ $step->{rows} };
	}
	return;
}

# The calls of a step that has an answer.
sub set_calls
{
	my ($step) = @_;

	$step->{calls} = [];
	return if !$step->{read};
	return if $step->{sqlstate} ne '00000' && !($step->{verb} eq 'guard' && $step->{sqlstate} eq 'IK001');
	$step->{calls} = [ map { { from => $step->{from}, to => $step->{to}, %$_ } } $step->{read}->(@{ $step->{rows} }) ];
	return;
}

1;
