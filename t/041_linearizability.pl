# What concurrent sessions are told of a key can be put into an order in which each
# answer is that of the model: at any moment of the database's clock a claim has one
# owner, a token that is no longer the claim's completes nothing, no result changes
# or vanishes before its retention is over, what is replayed is what was completed,
# and the fence of a key grows.  Eight sessions call random functions on a few keys
# of two records tables, alone and in transactions with savepoints, some of which
# are rolled back or abort; what they were told is checked afterwards.  Each of
# these promises is looked for by itself, too.
#
# IDEMKIT_SEED=N repeats the calls, though not how they meet, IDEMKIT_SIZE=N is
# their number.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitHistory;
use IdemkitModel;
use IdemkitNode;
use IdemkitOrder;
use IdemkitPromises;
use IdemkitSessions;
use List::Util qw(min);
use Test::More;

my $seed     = IdemkitNode::seed();
my $calls    = IdemkitNode::size(8_000, 1_000_000);
my $sessions = 8;
my $round    = 20_000;    # calls until they are checked
my $node     = IdemkitNode->launch('main', "timezone = 'UTC'", 'deadlock_timeout = 20ms', 'log_min_error_statement = panic');

$node->value($IdemkitHistory::preparation);

# Durations of the size of what a call takes, of what a few dozen take, and for ever.
my $history = IdemkitHistory->new(
	keys       => [qw(a b c)],
	leases     => [ 1_000, 10_000, 50_000, 600_000_000 ],
	retentions => [ 0, 5_000, 50_000, 600_000_000 ],
	timeouts   => [ 0, 3_000 ],
	sleeps     => [ 500, 5_000 ]);

my %world = map { $_ => [undef] } $history->places;    # the records that there can be
my %count = (calls => 0, answers => 0);
my %seen;                                              # verbs and answers, and how often
my %promises;                                          # how often each could have been broken
my %tokens;                                            # all that were ever given
my @given_twice;

# A call, and an item of IdemkitOrder, as a person wants to read it.
sub call_text
{
	my ($call) = @_;

	return "    $call" if !ref $call;
	return join "\n      ", '    ' . IdemkitHistory::outcome($call),
	  join(' ', map { "$_=" . ($call->{$_} // '') } grep { !/^(verb|answer)$/ } sort keys %$call),
	  join('|', @{ $call->{answer} // [] });
}

sub item_text
{
	my ($item) = @_;

	return join "\n", "$item->{from} to $item->{to}" . ($item->{lost} ? ', rolled back:' : ':'),
	  map { call_text($_) } @{ $item->{steps} };
}

# Why there is no order.
sub order_text
{
	my ($place, $wrong) = @_;
	my @done = @{ $wrong->{done} };

	return join "\n", "$place: no order explains this:", item_text($wrong->{item}),
	  'the record could be:', (map { '    ' . IdemkitModel::id($_) } @{ $wrong->{records} }),
	  'beside it ran:', (map { item_text($_) } @{ $wrong->{open} }),
	  'before it ended:', (map { item_text($_) } @done[ ($#done > 20 ? $#done - 20 : 0) .. $#done ]), '';
}

# Counts what was called and answered.
sub count
{
	my ($step) = @_;

	$count{calls}++   if $step->{read};
	$count{deadlocks}++ if $step->{sqlstate} eq '40P01';
	$count{ $step->{verb} }++ if $step->{verb} =~ /^(commit|rollback)$/;
	$seen{"SQLSTATE $step->{sqlstate}"}++;
	foreach my $call (@{ $step->{calls} })
	{
		$count{answers}++;
		$seen{ IdemkitHistory::outcome($call) }++;
		push @given_twice, $call->{answer}[1]
		  if $call->{verb} eq 'claim' && $call->{answer}[1] ne '~' && $tokens{ $call->{answer}[1] }++;
	}
	return;
}

# Checks what the sessions were told in a round; what is wrong with it.
sub wrong_in_round
{
	my @played = @_;
	my (%items, @wrong);

	foreach my $steps (@played)
	{
		my $items = IdemkitOrder::items($steps);

		push @{ $items{$_} }, @{ $items->{$_} } foreach keys %$items;
		count($_) foreach @$steps;
	}
	foreach my $place (sort keys %items)
	{
		my $no_order;

		foreach my $broken (IdemkitPromises::broken($items{$place}, \%promises))
		{
			my ($promise, @facts) = @$broken;

			push @wrong, join "\n", "$place: $promise:", map { call_text($_->{call}) } @facts;
		}
		$world{$place} = [ IdemkitOrder::explain($items{$place}, $world{$place}, \$no_order) ];
		push @wrong, order_text($place, $no_order) if $no_order;
	}
	return @wrong;
}

my @wrong;

while ($count{calls} < $calls && !@wrong)
{
	my $each    = min($round, $calls - $count{calls}) / $sessions;
	my @playing = map { [ $history->random_steps($each) ] } 1 .. $sessions;
	# Afterwards all is read by one.
	my @reading = map { $history->stored($_, @{ $history->{keys} }) } 0, 1;

	IdemkitSessions::play($node, $history, @playing);
	IdemkitSessions::play($node, $history, \@reading);
	@wrong = wrong_in_round(@playing, \@reading);
}

IdemkitNode::report("$count{calls} calls of $sessions sessions, $count{answers} answers, $count{commit} transactions committed, "
	  . "$count{rollback} rolled back, " . ($count{deadlocks} // 0) . ' deadlocks');
IdemkitNode::report('checked: ' . join(', ', map { "$_ $promises{$_}" } sort keys %promises));
IdemkitNode::report(@wrong . ' violations');
is(scalar @wrong, 0, 'all answers keep what is promised, in an order that the model explains')
  or diag("IDEMKIT_SEED=$seed\n" . join "\n", @wrong > 5 ? @wrong[ 0 .. 4 ] : @wrong);
is("@given_twice", '', 'each win has a token of its own');
is(join(' ', grep { /^SQLSTATE (?!00000|IK001|25P02|3B001|40P01)/ } sort keys %seen),
	'', 'no call ended by an error that it should not');

# The histories have been everywhere.
cmp_ok($seen{$_} // 0, '>', 5, "among the answers was: $_") foreach IdemkitHistory::outcomes();

$node->storage_is_sound(qw(idemkit_records parts_0 parts_1));
$node->log_is_clean;
done_testing();
