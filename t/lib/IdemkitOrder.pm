# Whether the answers of concurrent sessions can be explained by an order.
#
# What several sessions were told of one key is right if the calls can be put into
# an order in which each answer is what the model says, and which does not
# contradict the clock: a call that had ended before another began comes first.
# (This is linearizability.)  The unit is an item: a call outside a transaction, or
# in one the calls on this key from the first that changed or locked the record,
# since others wait from there to the end.  What is rolled back must be explained
# too, but leaves no effect.
package IdemkitOrder;

use strict;
use warnings;

use IdemkitModel;

# The items of a session, by place.  An item has steps (calls, and the words
# savepoint, rollback_to, release_savepoint), begins at "from" and ends at "to".
# "lost": it was rolled back.  "looks": it has, for that or as it only read, no
# effect.  "locks": until when at least nobody else could write, if it surely locked
# the record.
sub items
{
	my ($steps) = @_;
	my $self = bless { items => {}, open => {}, depth => 0, failed => 0, clock => 0 };

	foreach my $step (@$steps)
	{
		$self->add_step($step);
		# What the clock was when the transaction certainly still had its locks.
		$self->{clock} = $step->{ends_with_clock} ? $step->{to} : $step->{rows}[0][0]
		  if $step->{sqlstate} eq '00000' && ($step->{read} || $step->{verb} eq 'lose');
	}
	return $self->{items};
}

sub add_step
{
	my ($self, $step) = @_;
	my $verb = $step->{verb};

	if    ($verb eq 'begin')                        { @$self{qw(in depth failed)} = (1, 0, 0) }
	elsif ($verb eq 'commit' || $verb eq 'rollback') { $self->end_transaction($step) }
	elsif ($verb eq 'rollback_to')                  { $self->roll_back_to($step) }
	elsif ($step->{sqlstate} ne '00000' && !@{ $step->{calls} }) { $self->{failed} = $self->{in} }
	elsif ($verb eq 'savepoint')
	{
		$self->{depth}++;
		$self->mark($verb);
	}
	elsif ($verb eq 'release_savepoint')
	{
		$self->{depth}--;
		$self->mark($verb);
		foreach (values %{ $self->{open} }) { $_->{depth} = $self->{depth} if $_->{depth} > $self->{depth} }
	}
	else { $self->add_calls($step) }
	return;
}

# Adds the calls of a step.  Those on one place are one item, since they are one
# statement, but for the mark of a subscription.
sub add_calls
{
	my ($self, $step) = @_;
	my %calls;

	foreach (@{ $step->{calls} }) { push @{ $calls{"$_->{key}_$_->{table}"} }, $_ }
	foreach my $place (sort keys %calls)
	{
		my @calls = @{ $calls{$place} };

		if ($self->{open}{$place})
		{
			push @{ $self->{open}{$place}{steps} }, @calls;
			next;
		}
		$self->add_statement($place, $step, shift @calls) if $calls[0]{verb} eq 'mark';
		$self->add_statement($place, $step, @calls);
	}
	$self->{failed} = $self->{in} if $step->{sqlstate} ne '00000';
	return;
}

sub add_statement
{
	my ($self, $place, $step, @calls) = @_;
	my @touches = map { IdemkitModel::touches($_) } @calls;
	my $effect  = grep { !defined || $_ } @touches;
	my $item    = { step => $step, from => $step->{from}, steps => \@calls, depth => $self->{depth} };

	if ($self->{in} && $effect)
	{
		$self->{open}{$place} = $item;
		return;
	}
	# What only looked had done so before it returned.
	$self->add_item($place, { %$item, looks => !$effect, to => $effect ? $step->{ends} : $step->{to} });
	return;
}

sub add_item
{
	my ($self, $place, $item) = @_;

	push @{ $self->{items}{$place} }, $item;
	return;
}

sub mark
{
	my ($self, $word) = @_;

	push @{ $_->{steps} }, $word foreach values %{ $self->{open} };
	return;
}

sub close_item
{
	my ($self, $place, $step, $lost) = @_;
	my $item  = delete $self->{open}{$place};
	my $locks = grep { ref && IdemkitModel::touches($_) } @{ $item->{steps} };

	$self->add_item($place,
		{ %$item, to => $step->{ends}, lost => $lost, looks => $lost, locks => $locks && $self->{clock} });
	return;
}

# Rolling back to a savepoint unlocks what was locked after it.
sub roll_back_to
{
	my ($self, $step) = @_;

	return if $step->{sqlstate} ne '00000';
	foreach my $place (keys %{ $self->{open} })
	{
		$self->close_item($place, $step, 1) if $self->{open}{$place}{depth} >= $self->{depth};
	}
	$self->mark('rollback_to');
	$self->{failed} = 0;
	return;
}

sub end_transaction
{
	my ($self, $step) = @_;
	my $lost = $step->{verb} eq 'rollback' || $self->{failed};

	foreach my $place (keys %{ $self->{open} }) { $self->close_item($place, $step, $lost) }
	@$self{qw(in depth failed)} = (0, 0, 0);
	return;
}

# What a record can be after an item; like IdemkitModel::after().
sub after
{
	my ($record, $item) = @_;
	my @states = [$record];    # each the record, then what it was at the savepoints

	foreach my $step (@{ $item->{steps} })
	{
		@states =
		    ref $step ? map { my ($now, @saved) = @$_; map { [ $_, @saved ] } IdemkitModel::after($now, $step) } @states
		  : $step eq 'savepoint'   ? map { [ $_->[0], @$_ ] } @states
		  : $step eq 'rollback_to' ? map { [ @$_[ 1, 1 .. $#$_ ] ] } @states
		  :                          map { [ $_->[0], @$_[ 2 .. $#$_ ] ] } @states;
	}
	return map { held($_->[0], $item) } @states if !$item->{lost};
	return @states ? held($record, $item) : ();
}

# A record after an item that had it locked: whoever wrote it then has waited for that.
sub held
{
	my ($record, $item) = @_;

	return $record if !$record || !$item->{locks} || $record->{since} >= $item->{locks};
	return IdemkitModel::changed($record, since => $item->{locks});
}

# Goes through the beginnings and ends of all items of a place in the order of the
# clock.  A configuration is a record and, as bits, which of the items now open it
# already contains.  An item may come into any of them as long as it is open, and
# must have before it ends.
#
# Takes the records that there can be at first, and returns those at the end.
# Where there are none left it returns nothing and puts what is wrong into $$wrong.
sub explain
{
	my ($items, $records, $wrong) = @_;
	my @moments = sort { $a->[0] <=> $b->[0] || $a->[1] <=> $b->[1] }
	  map { ([ $_->{from}, 0, $_ ], [ $_->{to}, 1, $_ ]) } @$items;
	my %configurations = map { configuration(0, $_) } @$records;
	my (@open, @done);

	foreach my $moment (@moments)
	{
		my (undef, $ends, $item) = @$moment;

		if (!$ends)
		{
			my ($slot) = grep { !$open[$_] } 0 .. @open;

			$open[$slot] = $item;
			$item->{slot} = $slot;
			next;
		}
		my $before = {%configurations};

		%configurations = settle($item, $before, \@open);
		if (!%configurations)
		{
			$$wrong = {
				item    => $item,
				open    => [ grep { $_ && $_ != $item } @open ],
				done    => \@done,
				records => [ map { $_->[1] } values %$before ]
			};
			return;
		}
		$open[ $item->{slot} ] = undef;
		push @done, $item;
	}
	return map { $_->[1] } values %configurations;
}

# A configuration with the key it is known by.
sub configuration
{
	my ($contained, $record) = @_;

	return ("$contained " . IdemkitModel::id($record) => [ $contained, $record ]);
}

# All configurations that contain an item, made from others by adding open ones.
sub settle
{
	my ($item, $configurations, $open) = @_;
	my %seen = %$configurations;
	my @work = values %$configurations;
	my $bit  = 1 << $item->{slot};
	my %with;

	while (my $configuration = pop @work)
	{
		my ($contained, $record) = look($configuration, $open);

		if ($contained & $bit)
		{
			%with = (%with, configuration($contained & ~$bit, $record));
			next;
		}
		foreach my $slot (grep { $open->[$_] && !($contained & 1 << $_) } 0 .. $#$open)
		{
			foreach my $after (after($record, $open->[$slot]))
			{
				my ($key, $new) = configuration($contained | 1 << $slot, $after);

				push @work, $new if !$seen{$key};
				$seen{$key} = $new;
			}
		}
	}
	return %with;
}

# Adds the open items that are right and change nothing: doing so at once is never
# wrong, and saves many ways.
sub look
{
	my ($configuration, $open) = @_;
	my ($contained, $record) = @$configuration;

	foreach my $slot (grep { $open->[$_] && $open->[$_]{looks} && !($contained & 1 << $_) } 0 .. $#$open)
	{
		my @after = after($record, $open->[$slot]);

		$contained |= 1 << $slot if @after == 1 && IdemkitModel::id($after[0]) eq IdemkitModel::id($record);
	}
	return ($contained, $record);
}

1;
