# What the sessions of a Load were told, and whether a server bears it out.
#
# Of each win it keeps the earliest moment at which its key could be anybody
# else's: the end of its lease as last set, of its retention, or its release.
# Where a client did not live to read an answer, both outcomes are allowed for.
# All times are the server's, in microseconds.
package Ledger;

use strict;
use warnings;

use List::Util qw(max min);

sub new
{
	my ($class) = @_;

	return bless { wins => {}, doubtful_claims => {}, left => {}, broken => {}, count => {} }, $class;
}

# How often something was told, by its verb.
sub count { return $_[0]{count}{ $_[1] } // 0 }

sub broken { my ($self, $text) = @_; $self->{broken}{$text} //= 'new'; return }

# A claim with this token was seen, by its owner or by somebody else.
sub note_win
{
	my ($self, $key, $token, $fence, $until, $digest) = @_;
	my $win = $self->{wins}{$key}{$token} //= { fence => $fence, until => 0 };

	$self->broken("$key: the fence of a claim has changed") if $win->{fence} != $fence;
	if ($digest eq '-')
	{
		$win->{until} = max($win->{until}, $until);
	}
	else
	{
		$self->broken("$key: a result has changed") if ($win->{digest} // $digest) ne $digest;
		$win->{digest} = $digest;
		$win->{end}    = max($win->{end} // 0, $until);
	}
	return $win;
}

# Each key, result, token, fence, end and digest of the answers of a claim.
sub note_answer
{
	my ($self, $key, $result, $token, @rest) = @_;
	my $win = $self->note_win($key, $token, @rest);

	$self->{count}{$result}++;
	if ($result eq 'new_claimed' || $result eq 'lease_reclaimed')
	{
		$self->broken("$key was won twice with one token") if $win->{told};
		$win->{told} = 1;
	}
	return;
}

# The owner of a claim was told whether it did what was asked for.
sub note_settled
{
	my ($self, $verb, $key, $token, $done, $clock, $seconds) = @_;
	my $win = $self->{wins}{$key}{$token};
	my $end = $clock + ($seconds // 0) * 1_000_000;

	$self->{count}{ $done eq 't' ? $verb : "$verb refused" }++;
	if ($done ne 't')
	{
		# An hour's lease cannot have run out.
		$self->broken("$key: $verb was refused to the owner") if $win->{until} > $clock + 600e6;
	}
	elsif ($verb eq 'renew') { $win->{until} = max($win->{until}, $end) }
	elsif ($verb eq 'complete')
	{
		$win->{completed} = 1;
		$win->{end}       = max($win->{end} // 0, $end);
	}
	else
	{
		$win->{released} = $clock;
		$self->{left}{$key} = 1;
	}
	return;
}

sub elements { return split(/,/, $_[0] =~ tr/{}//dr) }

# Reads what one client has written down.
sub read_client
{
	my ($self, $text) = @_;
	my $asked;

	foreach my $line (split(/\n/, $text))
	{
		my ($mark, $verb, @rest) = split(/ /, $line);

		if    ($mark eq '?') { $asked = [ $verb, @rest ]; next }
		elsif ($mark ne '!') { die "a client wrote: $line" }
		$asked = undef;
		if    ($verb eq 'claim')  { $self->note_answer(@rest) }
		elsif ($verb eq 'claims') { $self->note_answer(split(/:/, $_)) foreach @rest }
		elsif ($verb eq 'sight')  { $self->note_win(@rest) }
		elsif ($verb eq 'completes')
		{
			my ($keys, $tokens, $done, @times) = @rest;
			my @keys   = elements($keys);
			my @tokens = elements($tokens);

			$self->note_settled('complete', $keys[$_], $tokens[$_], substr($done, $_, 1), @times) foreach 0 .. $#keys;
		}
		elsif ($verb eq 'removal') { $self->{count}{removed} += $rest[0] }
		elsif ($verb eq 'wait')    { $self->{count}{wait}++ }
		else                       { $self->note_settled($verb, @rest) }
	}
	$self->note_doubt(@$asked) if defined $asked;
	return;
}

# The client was never told what became of this.
sub note_doubt
{
	my ($self, $verb, @rest) = @_;

	$self->{count}{unanswered}++;
	if ($verb eq 'claim') { $self->{doubtful_claims}{$_}++ foreach @rest }
	elsif ($verb eq 'complete' || $verb eq 'completes')
	{
		my @tokens = elements($rest[1]);
		my @keys   = elements($rest[0]);

		$self->{wins}{ $keys[$_] }{ $tokens[$_] }{doubtful_retention} = $rest[2] foreach 0 .. $#keys;
	}
	elsif ($verb eq 'release')
	{
		$self->{wins}{ $rest[0] }{ $rest[1] }{doubtful_release} = 1;
		$self->{left}{ $rest[0] } = 1;
	}
	return;
}

# The earliest moment at which a win's key could be somebody else's.
sub earliest_end
{
	my ($win) = @_;

	return $win->{released} if defined $win->{released};
	return $win->{end}      if defined $win->{end};
	return $win->{fence}    if $win->{doubtful_release};
	return min($win->{until}, $win->{fence} + $win->{doubtful_retention} * 1_000_000)
	  if defined $win->{doubtful_retention};
	return $win->{until};
}

# Two owners at one time?
sub compare_wins
{
	my ($self, $key) = @_;
	my @wins = sort { $a->{fence} <=> $b->{fence} } values %{ $self->{wins}{$key} };

	foreach my $i (1 .. $#wins)
	{
		$self->broken("$key had two owners within a lease or retention")
		  if $wins[$i]{fence} <= $wins[ $i - 1 ]{fence} || $wins[$i]{fence} <= earliest_end($wins[ $i - 1 ]);
	}
	return;
}

# Does a stored row agree with the win whose token it has?
sub compare_row
{
	my ($self, $key, $row, $win) = @_;

	$self->broken("$key: the fence of a stored claim has changed")   if $row->{fence} != $win->{fence};
	$self->broken("$key: a claim that was released is still stored") if defined $win->{released};
	if ($row->{state} eq 'CLAIMED')
	{
		$self->broken("$key: a completion was lost") if $win->{completed} || defined $win->{digest};
		$self->broken("$key: a renewal was lost")    if $row->{until} < $win->{until};
	}
	else
	{
		$self->broken("$key: completed by nobody")
		  unless $win->{completed} || defined $win->{digest} || defined $win->{doubtful_retention};
		$self->broken("$key: a stored result has changed") if ($win->{digest} // $row->{digest}) ne $row->{digest};
		$self->broken("$key: a retention was cut short")   if $row->{until} < ($win->{end} // 0);
	}
	return;
}

# The rows of both tables by key, and the server's clock before they were read.
sub read_tables
{
	my ($node) = @_;
	my $now    = $node->value('SELECT micros(clock_timestamp())');
	my %rows   = map {
		my %row;
		(my $key, @row{qw(state token fence until digest)}) = split(/\|/, $_);
		($key => \%row)
	} split(
		/\n/,
		$node->value(join(
				' UNION ALL ',
				map {
					"SELECT effective_key, state, claim_token, micros(claimed_at), micros(lease_until),"
					  . " digest(state, response_status, response_headers, response_body) FROM $_"
				} qw(idemkit_records brief))));

	return ($now, \%rows);
}

# Everything that the server does not bear out and that was not told before, a
# line each.
sub broken_promises
{
	my ($self, $node) = @_;
	my ($now, $rows) = read_tables($node);

	foreach my $key (keys %{ $self->{wins} })
	{
		my $wins = $self->{wins}{$key};
		my $row  = $rows->{$key};

		$self->compare_wins($key);
		$self->compare_row($key, $row, $wins->{ $row->{token} }) if defined $row && exists $wins->{ $row->{token} };
		foreach my $token (keys %$wins)
		{
			next if defined $row && $row->{token} eq $token;
			my $end = earliest_end($wins->{$token});

			$self->broken("$key was owned, and is gone") if !defined $row && $end >= $now;
			# A release can leave the row as it is but for a token nobody has.
			next if defined $row && $self->{left}{$key} && $row->{fence} == $wins->{$token}{fence};
			$self->broken("$key was owned, and is somebody else's") if defined $row && $end >= $row->{fence};
		}
	}
	foreach my $key (keys %$rows)
	{
		$self->broken("$key is owned by nobody who claimed it")
		  unless exists $self->{wins}{$key}{ $rows->{$key}{token} }
		  || $self->{doubtful_claims}{$key}
		  || $self->{left}{$key};
	}
	$self->broken($_) foreach split(/\n/, half_done($node));

	my @news = grep { $self->{broken}{$_} eq 'new' } sort keys %{ $self->{broken} };
	$self->{broken}{$_} = 'told' foreach @news;
	return @news;
}

# Keys with a result that no complete() stored whole, or with work that was not
# done once, together with its result.
sub half_done
{
	my ($node) = @_;

	return $node->value(q{
		SELECT effective_key || ': a result is not whole' FROM
			(SELECT * FROM idemkit_records UNION ALL SELECT * FROM brief) r
			WHERE state = 'COMPLETED' AND (completed_at IS NULL OR (response_status = 200
				AND response_body = body(effective_key, claim_token, (response_headers->>'n')::int)) IS NOT TRUE)
			OR state = 'CLAIMED' AND num_nonnulls(completed_at, response_status, response_headers, response_body) > 0
		UNION ALL
		SELECT effective_key || ': work was done twice' FROM effects WHERE effective_key LIKE 'r%'
			GROUP BY 1 HAVING count(*) > 1
		UNION ALL
		SELECT effective_key || ': work without its result, or a result without its work' FROM effects e
			FULL JOIN (SELECT effective_key, claim_token FROM idemkit_records WHERE response_headers ? 'effect') r
			USING (effective_key, claim_token)
			WHERE effective_key LIKE 'r%' AND (e IS NULL OR r IS NULL)});
}

1;
