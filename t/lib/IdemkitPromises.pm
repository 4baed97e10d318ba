# What was promised of one key, looked for one by one in what concurrent sessions
# were told: a second opinion on what IdemkitOrder finds, which says which promise
# was broken.  It knows nothing of IdemkitModel, and judges only what is certain by
# the clock: that one call had ended before another began.
package IdemkitPromises;

use strict;
use warnings;

use List::Util qw(min max);

use constant NULL => '~';

# Where the columns are, in the answers that have them.
my %at = (
	effective_key => 0, state => 1, claim_token => 4, lease_until => 6, completed_at => 7, response_status => 8,
	response_headers => 9, response_body => 10, fence => 13);
my @result = qw(completed_at lease_until response_status response_headers response_body);

# The items of one place (see IdemkitOrder) as facts: who won, what ended or renewed
# a claim, which results may have been removed before their time, what was seen.
sub facts
{
	my ($items) = @_;
	my %facts = map { $_ => [] } qw(wins ends renewals removals seen);

	foreach my $item (@$items)
	{
		my @calls = surviving($item);

		# What a call sees in a transaction may be its own doing.
		push @{ $facts{seen} }, map { seen($_) } @calls if $item->{looks} && !$item->{lost};
		foreach my $call ($item->{lost} ? () : @calls)
		{
			my %fact = (call => $call, from => $call->{from}, to => $call->{to}, ends => $item->{to});

			push @{ $facts{wins} }, won(\%fact) if $call->{verb} eq 'claim' && $call->{answer}[1] ne NULL;
			push @{ $facts{removals} }, \%fact if $call->{verb} eq 'vacuum' && defined $call->{age};
			next if $call->{verb} !~ /^(complete|release|renew)$/ || $call->{answer}[0] ne 't';
			push @{ $facts{ $call->{verb} eq 'renew' ? 'renewals' : 'ends' } }, { %fact, token => $call->{claim_token} };
		}
	}
	$facts{$_} = [ sort { $a->{from} <=> $b->{from} } @{ $facts{$_} } ] foreach keys %facts;
	return \%facts;
}

# The calls of an item but those that it rolled back to a savepoint.
sub surviving
{
	my ($item) = @_;
	my (@calls, @marks);

	foreach my $step (@{ $item->{steps} })
	{
		if    (ref $step)             { push @calls, $step }
		elsif ($step eq 'savepoint')  { push @marks, scalar @calls }
		elsif ($step eq 'rollback_to') { $#calls = $marks[-1] - 1 }
		else                          { pop @marks }
	}
	return @calls;
}

# A win, with the reading of the clock that its lease began with.
sub won
{
	my ($fact) = @_;
	my (undef, $token, undef, undef, @record) = @{ $fact->{call}{answer} };

	return {
		%$fact,
		token       => $token,
		fence       => $record[ $at{fence} ],
		lease_until => $record[ $at{lease_until} ],
		clock       => $record[ $at{lease_until} ] - $fact->{call}{lease}
	};
}

# What a call that changes nothing showed: a record, or that there is none that is
# live; nothing if it does not tell.
sub seen
{
	my ($call) = @_;
	my @answer = @{ $call->{answer} // [] };
	my $verb   = $call->{verb};

	splice @answer, 0, $verb eq 'claim' ? 4 : $verb eq 'wait' ? 1 : $verb eq 'stored' ? 2 : 0;
	return if $verb !~ /^(claim|get|stored|wait)$/;

	my %seen = (call => $call, from => $call->{from}, to => $call->{to}, token => '', state => '');

	return \%seen if $answer[0] eq NULL;
	return {
		%seen,
		token  => $answer[ $at{claim_token} ],
		state  => $answer[ $at{state} ],
		result => join '|', @answer[ @at{@result} ]
	};
}

# The first of some facts, sorted by "from", that began after a moment: its number.
sub first_after
{
	my ($facts, $moment) = @_;
	my ($low, $high) = (0, scalar @$facts);

	while ($low < $high)
	{
		my $middle = int(($low + $high) / 2);

		if   ($facts->[$middle]{from} > $moment) { $high = $middle }
		else                                     { $low = $middle + 1 }
	}
	return $low;
}

# All that is broken, each with the calls that show it.  $counts gets how often what
# could have been.
sub broken
{
	my ($items, $counts) = @_;
	my $facts = facts($items);

	$facts->{win}{ $_->{token} } = $_ foreach @{ $facts->{wins} };
	push @{ $facts->{ended}{ $_->{token} } }, $_ foreach @{ $facts->{ends} };
	$counts->{wins}        += @{ $facts->{wins} };
	$counts->{completions} += grep { $_->{call}{verb} eq 'complete' } @{ $facts->{ends} };
	return (
		two_owners($facts, $counts), stale_tokens($facts, $counts), falling_fences($facts, $counts),
		other_results($facts, $counts), vanished_results($facts, $counts));
}

# Until when a claim that was only renewed is held at least.
sub held_until
{
	my ($facts, $win) = @_;

	$facts->{renewed} //= do
	{
		my %renewed;

		push @{ $renewed{ $_->{token} } }, $_->{from} + $_->{call}{lease} foreach @{ $facts->{renewals} };
		\%renewed;
	};
	return min($win->{lease_until}, @{ $facts->{renewed}{ $win->{token} } // [] });
}

# One owner at a time by the database's clock.
sub two_owners
{
	my ($facts, $counts) = @_;
	my (@owners, @broken);

	foreach my $win (@{ $facts->{wins} })
	{
		@owners = grep { held_until($facts, $_) > $win->{clock} } @owners;
		push @broken, map { [ 'two owners', $_, $win ] } grep { $_->{ends} < $win->{from} } @owners;
		push @owners, $win if !$facts->{ended}{ $win->{token} };
		$counts->{successions}++;
	}
	return @broken;
}

# A token ends or renews its claim only as long as nobody else has won the key.
sub stale_tokens
{
	my ($facts, $counts) = @_;
	my @wins = @{ $facts->{wins} };
	my (@ends, @broken);    # the first end among the wins from here on

	foreach my $n (reverse 0 .. $#wins) { $ends[$n] = min($wins[$n]{ends}, $ends[ $n + 1 ] // $wins[$n]{ends}) }
	foreach my $fact (@{ $facts->{ends} }, @{ $facts->{renewals} })
	{
		my $win  = $facts->{win}{ $fact->{token} } // next;
		my $next = first_after(\@wins, $win->{ends});

		push @broken, [ 'stale token', $win, $fact ] if $next < @wins && $ends[$next] < $fact->{from};
		$counts->{settled}++;
	}
	push @broken, map { [ 'ended twice', @$_ ] } grep { @$_ > 1 } values %{ $facts->{ended} };
	return @broken;
}

# Of two wins the later has the higher fence.
sub falling_fences
{
	my ($facts, $counts) = @_;
	my @by_end = sort { $a->{ends} <=> $b->{ends} } @{ $facts->{wins} };
	my ($highest, @broken);

	foreach my $win (@{ $facts->{wins} })
	{
		while (@by_end && $by_end[0]{ends} < $win->{from})
		{
			my $before = shift @by_end;

			$highest = $before if !$highest || $before->{fence} > $highest->{fence};
		}
		push @broken, [ 'the fence does not grow', $highest, $win ] if $highest && $highest->{fence} >= $win->{fence};
		$counts->{fences}++;
	}
	return @broken;
}

# Whoever is shown a result is shown the same, and what was completed.
sub other_results
{
	my ($facts, $counts) = @_;
	my (%first, @broken);

	foreach my $seen (grep { $_->{state} eq 'COMPLETED' } @{ $facts->{seen} })
	{
		my $first = $first{ $seen->{token} } //= $seen;
		my ($end) = grep { $_->{call}{verb} eq 'complete' } @{ $facts->{ended}{ $seen->{token} } // [] };
		my $completed = $end && join '|', @{ $end->{call} }{qw(response_status response_headers response_body)};

		push @broken, [ 'another result', $first, $seen ] if $first->{result} ne $seen->{result};
		push @broken, [ 'a result of nobody', $seen ]     if !$end && $facts->{win}{ $seen->{token} };
		push @broken, [ 'not what was completed', $end, $seen ] if $end && $seen->{result} !~ /\|\Q$completed\E$/;
		$counts->{replays}++;
	}
	return @broken;
}

# A result is shown from its completion to the end of its retention, unless all that
# are so old were removed.
sub vanished_results
{
	my ($facts, $counts) = @_;
	my @looks = sort { $a->{from} <=> $b->{from} } @{ $facts->{seen} }, @{ $facts->{wins} };
	my @broken;

	foreach my $end (grep { $_->{call}{verb} eq 'complete' } @{ $facts->{ends} })
	{
		my ($removal) = grep { $_->{to} > $end->{from} + $_->{call}{age} } @{ $facts->{removals} };
		my $until     = min($end->{from} + $end->{call}{retention}, $removal ? $removal->{from} : ());

		for (my $n = first_after(\@looks, $end->{ends}); $n < @looks && $looks[$n]{from} < $until; $n++)
		{
			next if $looks[$n]{to} >= $until;
			push @broken, [ 'the result vanished', $end, $looks[$n] ] if $looks[$n]{token} ne $end->{token};
			$counts->{retained}++;
		}
	}
	return @broken;
}

1;
