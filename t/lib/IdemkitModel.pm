# What the functions of the extension do to the record of one key: the state
# machine of its contract, written a second time, to be small and plain.
#
# A record is a hash that is never changed, or undef where there is none.  A call
# is a hash of its arguments and its answer, and of two readings of the database's
# clock, "from" before the call and "to" after it.  after() says what the record
# can be after a call that gave this answer: usually one thing; several where the
# answer leaves it open; nothing at all where no right server can have given it.
#
# Values are as psql prints them, NULL as ~; times and durations are microseconds.
# An answer does not always tell the times it wrote.  So a record has the interval
# in which the clock was read ("earliest" to "latest") and what follows from the
# reading: lease_until is the reading and "lasts", completed_at the reading itself.
package IdemkitModel;

use strict;
use warnings;

use List::Util qw(max);

use constant NULL => '~';

# The columns of idemkit_record, in order.
our @columns = qw(effective_key state fingerprint fingerprint_version claim_token claimed_at lease_until completed_at
  response_status response_headers response_body attempts remaining fence);

# Those that are in a record as they are in an answer.
my @plain = qw(effective_key state fingerprint fingerprint_version claimed_at response_status response_headers
  response_body attempts);

# How old a reading of the clock may be that a duration begins with: it is read
# again where a call had to wait for longer (src/clock.c).
sub tolerance
{
	my ($duration) = @_;

	return $duration > 0 && $duration < 1_000_000 ? $duration / 100 : 10_000;
}

# What a record is after a call; see above.  Absent is undef, so mind the number.
my %verbs = (
	claim     => \&claim,
	complete  => \&complete,
	release   => \&release,
	renew     => \&renew,
	guard     => \&guard,
	get       => \&get,
	stored    => \&stored,
	mark      => \&mark,
	wait      => \&wait_for,
	vacuum    => \&vacuum,
	age       => \&age,
	spoil     => \&spoil,
);

sub after
{
	my ($record, $call) = @_;

	return $verbs{ $call->{verb} }->($record, $call);
}

# A text that two records share if and only if they are the same.
sub id
{
	my ($record) = @_;

	return 'absent' if !defined $record;
	return $record->{id} //= join '|', map { $record->{$_} // '' } @plain,
	  qw(claim_token earliest latest lasts completed schema_version awaited since);
}

# Whether a call with this answer, right or not, changed or locked the record:
# 0 or 1, or undef where the answer does not tell.
sub touches
{
	my ($call) = @_;
	my $verb = $call->{verb};

	return $call->{answer}[1] ne NULL ? 1 : 0 if $verb eq 'claim';
	return $call->{answer}[0] eq 't' || $verb eq 'guard' && $call->{answer}[0] eq '' ? 1 : 0
	  if $verb =~ /^(complete|release|renew|guard)$/;
	return $verb =~ /^(get|stored|wait)$/ ? 0 : undef;
}

sub changed
{
	my ($record, %changes) = @_;

	return { %$record, %changes, id => undef };
}

# Can the record have been over, or live, when the call looked?
sub may_be_over
{
	my ($record, $call, $grace) = @_;

	return $record->{earliest} + $record->{lasts} + ($grace // 0) < $call->{to};
}

sub may_be_live
{
	my ($record, $call) = @_;

	return $record->{latest} + $record->{lasts} >= $call->{from};
}

sub is_corrupt
{
	my ($record) = @_;

	return $record->{state} !~ /^(CLAIMED|COMPLETED)$/
	  || $record->{state} eq 'COMPLETED' && !$record->{completed}
	  || $record->{response_headers} !~ /^(~|\{.*\})$/
	  || $record->{schema_version} != 1;
}

# Can a call have taken so long, by a clock that need not run as the database's?
sub may_have_taken
{
	my ($call, $duration) = @_;

	return $call->{to} - $call->{from} >= $duration * 0.99 - 1;
}

# Does the token own the record's claim?  Nobody knows the token of a claim that
# was released keeping its attempts: undef, until something shows it.
sub owns
{
	my ($record, $call) = @_;

	return
	     $record
	  && $record->{state} eq 'CLAIMED'
	  && defined $record->{claim_token}
	  && $record->{claim_token} eq $call->{claim_token};
}

# The record, now as exact as the columns of idemkit_record in an answer show it;
# undef if they do not show it.
sub shown
{
	my ($record, $call, $answer) = @_;
	my %shows;

	@shows{@columns} = @$answer;
	return if !$record || $shows{effective_key} eq NULL;
	foreach (@plain) { return if $record->{$_} ne $shows{$_} }

	my $reading = $shows{lease_until} - $record->{lasts};

	return if $reading < $record->{earliest} || $reading > $record->{latest};
	return if $shows{completed_at} ne ($record->{completed} ? $reading : NULL);
	return if defined $record->{claim_token} && $record->{claim_token} ne $shows{claim_token};
	return if defined $shows{remaining} && !shows_rest(\%shows, $call);
	return $record if defined $record->{claim_token} && $record->{earliest} == $record->{latest};
	return changed($record, claim_token => $shows{claim_token}, earliest => $reading, latest => $reading);
}

# The columns that are computed.
sub shows_rest
{
	my ($shows, $call) = @_;

	return
	     $shows->{fence} == $shows->{claimed_at}
	  && $shows->{remaining} >= max(0, $shows->{lease_until} - $call->{to})
	  && $shows->{remaining} <= max(0, $shows->{lease_until} - $call->{from});
}

# Was the clock read within the call, and not long before the record last changed,
# which whoever writes it has to wait for?
sub is_fresh
{
	my ($reading, $record, $call, $duration) = @_;

	return
	     $reading >= $call->{from}
	  && $reading <= $call->{to}
	  && (!$record || $reading + tolerance($duration) >= $record->{since});
}

# claim, and each place of claim_many.
sub claim
{
	my ($record, $call) = @_;
	my ($result, $token, $recovered, $matches, @shows) = @{ $call->{answer} };

	return win(@_) if $token ne NULL;

	$record = shown($record, $call, \@shows) or return;
	return if $recovered ne 'f' || is_corrupt($record);
	return if $matches ne ($record->{fingerprint} eq $call->{fingerprint}
		&& $record->{fingerprint_version} == $call->{fingerprint_version} ? 't' : 'f');

	my $is_claim = $record->{state} eq 'CLAIMED';
	my $may_be =
	    $result eq 'already_completed' ? !$is_claim && may_be_live($record, $call)
	  : $result eq 'already_claimed'   ? $is_claim  && may_be_live($record, $call)
	  : $result eq 'lease_lapsed' ? $is_claim && !$call->{reclaim} && may_be_over($record, $call)
	  :                             0;
	return $may_be ? $record : ();
}

sub win
{
	my ($record, $call) = @_;
	my ($result, $token, $recovered, $matches, @shows) = @{ $call->{answer} };
	my %new;

	@new{@columns} = @shows;
	my $corrupt  = $record && is_corrupt($record);
	my $reclaims = $record && !$corrupt && $record->{state} eq 'CLAIMED';
	my $reading  = $new{lease_until} - $call->{lease};

	return if $record && !$corrupt && !may_be_over($record, $call);
	return if $reclaims && !$call->{reclaim};
	return if $result ne ($reclaims ? 'lease_reclaimed' : 'new_claimed');
	return if $recovered ne ($corrupt ? 't' : 'f') || $matches ne 't';
	return if !is_fresh($reading, $record, $call, $call->{lease});
	# The fence grows, also where the clock does not; once more if the clock was read
	# again (see tolerance).
	return if !grep { $new{claimed_at} == $_ } $record ? map { max($reading, $record->{claimed_at} + $_) } 1, 2 : $reading;
	return if $new{fence} != $new{claimed_at} || $new{remaining} != $call->{lease};
	return if $new{attempts} != ($reclaims ? $record->{attempts} + 1 : 1);
	return if $token !~ /^[0-9a-f]{32}$/ || $token ne $new{claim_token};
	return if $new{effective_key} ne $call->{key} || $new{state} ne 'CLAIMED';
	return if $new{fingerprint} ne $call->{fingerprint} || $new{fingerprint_version} != $call->{fingerprint_version};
	return if "@new{qw(completed_at response_status response_headers response_body)}" ne '~ ~ ~ ~';
	return {
		(map { $_ => $new{$_} } @plain, 'claim_token'),
		earliest       => $reading,
		latest         => $reading,
		lasts          => $call->{lease},
		completed      => 0,
		schema_version => 1,
		awaited        => 'f',
		since          => $call->{to}
	};
}

# The record with a reading of the clock within the call; nothing if there can be
# no such reading.
sub stamped
{
	my ($record, $call, $duration, %changes) = @_;
	my $earliest = max($call->{from}, $record->{since} - tolerance($duration));

	return if $earliest > $call->{to};
	return changed($record, %changes,
		earliest => $earliest,
		latest   => $call->{to},
		lasts    => $duration,
		since    => $call->{to});
}

# complete, and each place of complete_many.
sub complete
{
	my ($record, $call) = @_;

	return $record if $call->{answer}[0] eq 'f' && !owns($record, $call);
	return         if $call->{answer}[0] ne 't' || !owns($record, $call);
	return stamped($record, $call, $call->{retention},
		state     => 'COMPLETED',
		completed => 1,
		map { $_ => $call->{$_} } qw(response_status response_headers response_body));
}

sub release
{
	my ($record, $call) = @_;

	return $record if $call->{answer}[0] eq 'f' && !owns($record, $call);
	return         if $call->{answer}[0] ne 't' || !owns($record, $call);
	return undef   if !$call->{keep_attempts};
	return changed($record,
		claim_token => undef,
		earliest    => $call->{from},
		latest      => $call->{to},
		lasts       => -1,
		since       => $call->{to});
}

sub renew
{
	my ($record, $call) = @_;

	return $record if $call->{answer}[0] eq 'f' && !owns($record, $call);
	return         if $call->{answer}[0] ne 't' || !owns($record, $call);
	return stamped($record, $call, $call->{lease});
}

# The answer is empty, or the SQLSTATE.
sub guard
{
	my ($record, $call) = @_;
	my $lost = $call->{answer}[0] eq 'IK001';

	return $record if $lost && (!owns($record, $call) || may_be_over($record, $call));
	return $record if $call->{answer}[0] eq '' && owns($record, $call) && may_be_live($record, $call);
	return;
}

sub get
{
	my ($record, $call) = @_;

	return $record if !$record && $call->{answer}[0] eq NULL;
	return shown($record, $call, $call->{answer}) // ();
}

# The row as it is in the table: what no answer shows, too.
sub stored
{
	my ($record, $call) = @_;
	my ($schema_version, $awaited, @shows) = @{ $call->{answer} };

	return $record if !$record && $schema_version eq NULL;
	return if !$record || $record->{schema_version} ne $schema_version || $record->{awaited} ne $awaited;
	return shown($record, $call, \@shows) // ();
}

# Marks a live claim, then shows the record: between the two others may do
# something.
sub mark
{
	my ($record, $call) = @_;

	return $record
	  if !$record || $record->{state} ne 'CLAIMED' || $record->{awaited} eq 't' || !may_be_live($record, $call);
	return (changed($record, awaited => 't'), may_be_over($record, $call) ? $record : ());
}

sub wait_for
{
	my ($record, $call) = @_;
	my ($outcome, @shows) = @{ $call->{answer} };

	if ($outcome eq 'absent')
	{
		return if grep { $_ ne NULL } @shows;
		return $record if !$record || is_corrupt($record);
		return $record->{state} eq 'COMPLETED' && may_be_over($record, $call) ? $record : ();
	}
	$record = shown($record, $call, \@shows) or return;
	return if is_corrupt($record);

	my $is_claim = $record->{state} eq 'CLAIMED';
	my $may_be =
	    $outcome eq 'completed' ? !$is_claim && may_be_live($record, $call)
	  : $outcome eq 'lapsed'    ? $is_claim  && may_be_over($record, $call)
	  : $outcome eq 'timeout' ? $is_claim && may_be_live($record, $call) && may_have_taken($call, $call->{timeout})
	  :                         0;
	return $may_be ? $record : ();
}

# Can vacuum or sweep have removed the record?  Both tell a number only, so that
# it may also be there still.
sub is_removable
{
	my ($record, $call) = @_;

	return 0 if !$record;
	return may_be_over($record, $call, $call->{grace}) if $record->{state} eq 'CLAIMED';
	return 0                                           if $record->{state} ne 'COMPLETED';
	return
	  may_be_over($record, $call)
	  || defined $call->{age} && $record->{completed} && $record->{earliest} + $call->{age} < $call->{to};
}

# Must it have, if nothing kept it from the record?
sub is_surely_removable
{
	my ($record, $call) = @_;

	return $record && is_removable({ %$record, earliest => $record->{latest} }, { %$call, to => $call->{from} });
}

sub vacuum
{
	my ($record, $call) = @_;

	return ($record, is_removable($record, $call) ? undef : ());
}

# Not functions of the extension but what a test does behind its back: moves all
# times of a record, or that of its claim, and spoils it.
sub age
{
	my ($record, $call) = @_;

	return $record if !$record;
	return changed($record,
		map { $_ => $record->{$_} - $call->{by} } 'claimed_at', $call->{all} ? qw(earliest latest) : ());
}

sub spoil
{
	my ($record, $call) = @_;

	return $record if !$record;
	return changed($record, %{ $call->{changes} });
}

1;
