# The lines of measurements.tsv, and what is made of them.
#
# A value belongs to a section, a case (clients, rows, batch size), a contestant, a
# repetition and a metric. Two contestants are compared within each repetition, where
# they ran minutes apart at most; the ratio given is the median of those ratios.
package Measurements;

use strict;
use warnings;

use List::Util qw(uniq);

# What the reader calls the contestants.
our %name = (
	awaited => 'idemkit, notify awaited',
	always => 'idemkit, notify always',
	never => 'idemkit, notify never',
	star => 'idemkit, SELECT *',
	bare => 'bare statements',
	client => 'client-side sequence',
	redis => 'Redis',
	'redis-single' => 'Redis, single calls',
	'redis-pipeline' => 'Redis, pipelines',
	'idemkit-replay' => 'replay',
	'bare-replay' => 'bare SELECT',
	'idemkit-claim' => 'claim',
	'bare-claim' => 'bare INSERT',
	quiet => 'nothing runs beside',
	sweep => 'idemkit_sweep',
	vacuum => 'idemkit_vacuum',
	delete => 'bare DELETE',
	batches => 'bare DELETE in batches of 5000',
);

sub load
{
	my ($class, $file) = @_;
	my $self = bless { order => {}, values => {} }, $class;

	open my $lines, '<', $file or die "could not open $file: $!\n";
	<$lines>;    # the heading
	while (<$lines>)
	{
		chomp;
		my ($section, $case, $contestant, $repetition, $metric, $value) = split /\t/;

		$self->{values}{$section}{$case}{$contestant}{$metric}{$repetition} = $value;
		push @{ $self->{order}{$section} }, [ $case, $contestant ];
	}
	return $self;
}

# The cases of a section, from the smallest; in scalar context, how many there are.
sub cases
{
	my ($self, $section) = @_;

	my @cases = sort { $a <=> $b } uniq(map { $_->[0] } @{ $self->{order}{$section} // [] });

	return @cases;
}

# The contestants of a section, in the order in which they first ran.
sub contestants
{
	my ($self, $section) = @_;

	return uniq(map { $_->[1] } @{ $self->{order}{$section} // [] });
}

# All values, in order of size.
sub values_of
{
	my ($self, $section, $case, $contestant, $metric) = @_;
	my $values = $self->{values}{$section}{$case}{$contestant}{$metric} // {};

	return sort { $a <=> $b } values %$values;
}

# The ratios of two contestants, [case, contestant] each, in order of size.
sub ratios
{
	my ($self, $section, $subject, $baseline, $metric) = @_;
	my $over = $self->{values}{$section}{ $subject->[0] }{ $subject->[1] }{$metric} // {};
	my $under = $self->{values}{$section}{ $baseline->[0] }{ $baseline->[1] }{$metric} // {};

	return sort { $a <=> $b }
	  map { $over->{$_} / $under->{$_} } grep { $under->{$_} } keys %$over;
}

# The median of values in order of size; undefined if there are none.
sub median
{
	my @sorted = @_;

	return @sorted ? ($sorted[ $#sorted / 2 ] + $sorted[ @sorted / 2 ]) / 2 : undef;
}

1;
