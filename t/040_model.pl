# Every answer of every function, in all its columns, and every stored row is what
# the model of t/lib/IdemkitModel.pm says: random histories of one session, over a
# few keys of two records tables, in and out of transactions with savepoints, with
# leases that run out at once, records whose times are moved into the past, records
# that are spoiled, and what is announced.
#
# IDEMKIT_SEED=N repeats a history, IDEMKIT_SIZE=N is the number of calls.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitHistory;
use IdemkitModel;
use IdemkitNode;
use IdemkitSessions;
use Test::More;

my $seed  = IdemkitNode::seed();
my $calls = IdemkitNode::size(6_000, 1_000_000);
my $node  = IdemkitNode->launch('main', "timezone = 'UTC'", 'log_min_error_statement = panic');
my $chunk = 5_000;

$node->value($IdemkitHistory::preparation);
# So that a row can be of a state that is none.
$node->value("ALTER TABLE $_ DROP CONSTRAINT idemkit_records_state_check") foreach @IdemkitHistory::tables;

my $second  = 1_000_000;
my $history = IdemkitHistory->new(
	alone      => 1,
	keys       => [qw(a b c d)],
	leases     => [ 1_000, 3_000, 100 * $second, 300 * $second ],
	retentions => [ 0, 3_000, 100 * $second, 300 * $second ],
	timeouts   => [ 0, 2_000 ],
	sleeps     => [2_000],
	ages       => [ 90 * $second, 150 * $second ],
	isolations => [ '', '', 'ISOLATION LEVEL REPEATABLE READ', 'ISOLATION LEVEL SERIALIZABLE' ]);

# What there can be at each place (a list, mostly of one), and what may and must be
# announced at the end of the transaction: keys.
my %world = map { $_ => [undef] } $history->places;
my %may_announce;
my %must_announce;
my $notify;

# The same at the beginning of the transaction, then at each of its savepoints.
my @saved;
my $failed;       # the transaction is
my $isolation;    # of the transaction
my %tokens;       # all that were ever given
my %seen;         # verbs and answers, and how often
my $answers = 0;

sub save { push @saved, [ {%world}, {%may_announce}, {%must_announce} ]; return }

sub restore
{
	my ($saved) = @_;

	%world         = %{ $saved->[0] };
	%may_announce  = %{ $saved->[1] };
	%must_announce = %{ $saved->[2] };
	return;
}

# The SQLSTATE that a step must end with, but for a guard.
sub expected_sqlstate
{
	my ($step) = @_;

	return '3B001' if $failed && $step->{verb} eq 'rollback_to' && @saved < 2;
	return '25P02' if $failed && $step->{verb} !~ /^(commit|rollback|rollback_to)$/;
	return '25001' if $step->{verb} eq 'wait' && @saved && $isolation ne '';
	return '00000';
}

# Takes the world through a transaction's control.
sub follow_control
{
	my ($step) = @_;
	my $verb = $step->{verb};

	if ($verb eq 'begin')
	{
		$isolation = $step->{isolation};
		save();
	}
	elsif ($verb eq 'savepoint')
	{
		save() if !$failed;
	}
	elsif ($verb eq 'release_savepoint')
	{
		pop @saved if !$failed;
	}
	elsif ($verb eq 'rollback_to' && @saved > 1)
	{
		restore($saved[-1]);
		$failed = 0;
	}
	elsif ($verb eq 'rollback' || $verb eq 'commit')
	{
		restore($saved[0]) if $verb eq 'rollback' || $failed;
		@saved  = ();
		$failed = 0;
	}
	elsif ($verb eq 'notify')
	{
		$notify = $step->{mode};
	}
	return;
}

# Notes what the end of a claim announces.
sub announce
{
	my ($call, @before) = @_;

	return if $call->{verb} !~ /^(complete|release)$/ || $call->{answer}[0] ne 't' || $notify eq 'never';
	my @awaited = grep { $_->{awaited} eq 't' } @before;
	$must_announce{ $call->{key} } = 1 if $notify eq 'always' || @awaited == @before;
	$may_announce{ $call->{key} }  = 1 if $notify eq 'always' || @awaited > 0;
	return;
}

# Takes the world through a call; false if there is none with this answer.
sub follow_call
{
	my ($call) = @_;
	my $place  = "$call->{key}_$call->{table}";
	my @before = grep { my @after = IdemkitModel::after($_, $call); @after > 0 } @{ $world{$place} };
	my %after  = map { IdemkitModel::id($_) => $_ } map { IdemkitModel::after($_, $call) } @before;

	$answers++;
	$seen{ IdemkitHistory::outcome($call) }++;
	return 0 if $call->{verb} eq 'claim' && $call->{answer}[1] ne '~' && $tokens{ $call->{answer}[1] }++;
	announce($call, @before);
	$world{$place} = [ values %after ];
	return @before > 0;
}

# What is wrong with what a removal said and left, or nothing.  Each list holds one
# record at the end, since the rows were read.
sub wrong_removal
{
	my ($step, %before) = @_;
	my ($call) = @{ $step->{calls} };
	my @places = map { "$_->{key}_$_->{table}" } grep { $_->{verb} eq 'vacuum' } @{ $step->{calls} };
	my @gone   = grep { !defined $world{$_}[0] && grep { defined } @{ $before{$_} } } @places;
	my @left   = grep {
		defined $world{$_}[0] && !grep { !IdemkitModel::is_surely_removable($_, $call) } @{ $before{$_} }
	} @places;

	return "$call->{removed} removed, but gone: @gone" if $call->{removed} != @gone;
	return "left: @left" if @left && (!defined $call->{max_rows} || @gone < $call->{max_rows});
	return "more than $call->{max_rows} removed" if defined $call->{max_rows} && @gone > $call->{max_rows};
	foreach my $gone (map { @{ $before{$_} } } @gone)
	{
		foreach my $left (map { $world{$_}[0] } @left)
		{
			return 'not the first to expire' if $gone && $gone->{earliest} + $gone->{lasts} > $left->{latest} + $left->{lasts};
		}
	}
	return;
}

# What is wrong with the notifications of a step, or nothing.
sub wrong_notifications
{
	my ($step) = @_;
	my %notified = map { $_ => 1 } @{ $step->{notified} };
	my @wrong    = @saved ? keys %notified : (
		(grep { !$may_announce{$_} } keys %notified), (grep { !$notified{$_} } keys %must_announce));

	if (!@saved)
	{
		%may_announce = %must_announce = ();
		$seen{notification} += @{ $step->{notified} };
	}
	return @wrong ? "wrongly announced, or not: @wrong" : undef;
}

# Takes the world through a step; what is wrong with it, or nothing.
sub wrong_step
{
	my ($step) = @_;
	my %before = %world;

	if ($step->{verb} ne 'guard' || $failed || $step->{sqlstate} ne 'IK001')
	{
		my $expected = expected_sqlstate($step);

		return "SQLSTATE not $expected" if $step->{sqlstate} ne $expected;
	}
	$seen{$_}++ foreach grep { $_ ne '00000' } $step->{sqlstate};
	follow_control($step);
	foreach my $call (@{ $step->{calls} })
	{
		return 'no such answer can be' if !follow_call($call);
	}
	if ($step->{verb} =~ /^(vacuum|sweep)$/ && @{ $step->{calls} })
	{
		my $wrong = wrong_removal($step, %before);
		return $wrong if defined $wrong;
	}
	$failed = 1 if $step->{sqlstate} ne '00000' && @saved;
	return wrong_notifications($step);
}

# A step as a person wants to read it.
sub step_text
{
	my ($step) = @_;

	return join "\n", "$step->{sql};", (map { "    $_" } map { join '|', @$_ } @{ $step->{rows} }), "    $step->{sqlstate}";
}

my ($played, $wrong) = (0);

while ($played < $calls && !defined $wrong)
{
	my @steps = $history->random_steps($calls - $played < $chunk ? $calls - $played : $chunk);
	my %before;

	$notify = 'always';
	IdemkitSessions::play($node, $history, \@steps);
	foreach my $n (0 .. $#steps)
	{
		%before = %world;
		$wrong  = wrong_step($steps[$n]);
		$played++ if $steps[$n]{read};
		next if !defined $wrong;
		diag("IDEMKIT_SEED=$seed, call $played: $wrong\nbefore it:");
		diag("$_: " . join ' or ', map { IdemkitModel::id($_) } @{ $before{$_} }) foreach sort keys %before;
		diag(step_text($_)) foreach @steps[ ($n > 5 ? $n - 5 : 0) .. $n ];
		last;
	}
}
IdemkitNode::report("$played calls, $answers answers compared, $seen{notification} notifications, "
	  . (defined $wrong ? 1 : 0) . ' differences');
is($wrong, undef, "$played calls answer as the model does");

# The history has been everywhere.
cmp_ok($seen{$_} // 0, '>', 5, "among its answers was: $_")
  foreach IdemkitHistory::outcomes(), qw(age spoil notification 25001 25P02);

$node->storage_is_sound(qw(idemkit_records parts_0 parts_1));
$node->log_is_clean;
done_testing();
