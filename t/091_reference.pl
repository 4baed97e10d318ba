# The reference names what there is: docs/sql.md what the catalogue has, with its
# comments, the manual page what the command's --help has, and every document only
# links, paths, names and options that exist.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Documents;
use IdemkitNode;
use Test::More;

my $top  = $Documents::top;
my $node = IdemkitNode->launch('main');

Documents::install_client(PostgreSQL::Test::Utils::tempdir());

# One blank for each stretch of white space.
sub flat
{
	my ($string) = @_;

	$string =~ s/\s+/ /g;
	$string =~ s/\( /(/g;
	return $string;
}

# Rows of a query, as arrays.
sub rows
{
	my ($query) = @_;

	return map { [ split(/\|/, $_, -1) ] } split(/\n/, $node->value($query));
}

# The sentence of a COMMENT, as text has it.
sub sentence
{
	my ($comment) = @_;

	return ucfirst($comment) . '.';
}

# A list in order, each once, as one string.
sub set
{
	my %seen;

	return join(' ', sort grep { !$seen{$_}++ } @_);
}

#
# docs/sql.md: functions
#
my $reference = 'docs/sql.md';
my $members   = q{
	FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid AND d.refclassid = 'pg_extension'::regclass
	JOIN %s o ON d.objid = o.oid AND d.classid = '%s'::regclass
	WHERE e.extname = 'idemkit' AND d.deptype = 'e'};
my %described;

foreach my $row (
	rows(q{SELECT proname, prokind, pg_get_function_arguments(o.oid), pg_get_function_result(o.oid),
			obj_description(o.oid, 'pg_proc'), array_to_string(proargnames, ' '), prosecdef, provolatile::text || proparallel::text}
		  . sprintf($members, 'pg_proc', 'pg_proc') . ' ORDER BY 1'))
{
	my ($name, $kind, $arguments, $result, $comment, $names, $definer, $traits) = @$row;
	my $section = Documents::section($reference, $name);
	my %named = map { $_ => 1 } split(/ /, $names);

	# Types of defaults, and IN, are left out for the reader's sake.
	$arguments =~ s/::[\w ]+(\[\])?//g;
	$arguments =~ s/(^|, )IN /$1/g;
	my $signature = $kind eq 'p' ? "CALL $name($arguments)" : "$name($arguments) RETURNS $result";

	ok(flat($section) =~ /\Q``` \E?text \Q$signature\E(?= ```)/, "$reference: the signature of $name")
	  or diag("wanted: $signature");
	like(flat($section), qr/\Q${\ sentence($comment)}\E/, "$reference: what $name does");
	my ($table) = $section =~ /^\| argument \| meaning \|\n\|[-|]+\|\n((?:\|.*\n)+)/m;
	is(join(' ', grep { !$named{$_} } ($table // '') =~ /^\| (\w+) \|/mg), '', "$reference: the arguments of $name");
	is("$definer $traits", $name eq 'idemkit_effective_key' ? 'f is' : 'f vu', "$reference: the rules for all functions hold for $name");
	$described{$name} = 1;
}

#
# docs/sql.md: types, the table, settings and errors
#

# The rows of the table in a section, by their first two columns in code style.
sub columns
{
	my ($name) = @_;
	my $section = Documents::section($reference, $name);
	my @columns = $section =~ /^\| `([^`]+)` \| `([^`]+)`/mg;
	my @pairs;

	push @pairs, join(' ', splice(@columns, 0, 2)) while @columns;
	push @pairs, columns('idemkit_record') if $section =~ /then all columns of \[`idemkit_record`\]/;
	return @pairs;
}

my $attributes = q{SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), E'\n' ORDER BY attnum)
	FROM pg_attribute WHERE attrelid = '%s'::regclass AND attnum > 0 AND NOT attisdropped};

foreach my $row (
	rows(q{SELECT typname, obj_description(o.oid, 'pg_type')} . sprintf($members, 'pg_type', 'pg_type')
		. " AND typtype = 'c' AND EXISTS (SELECT FROM pg_class WHERE oid = typrelid AND relkind = 'c') ORDER BY 1"))
{
	my ($name, $comment) = @$row;

	is(join("\n", columns($name)), $node->value(sprintf($attributes, $name)), "$reference: columns of $name");
	like(flat(Documents::section($reference, $name)), qr/\Q${\ sentence($comment)}\E/, "$reference: what $name is");
	$described{$name} = 1;
}

is(join("\n", columns('idemkit_records')),
	$node->value(sprintf($attributes, 'idemkit_records')), "$reference: columns of idemkit_records");
$described{idemkit_records} = 1;

# The library, and with it the settings, is there after the first call.
foreach my $row (rows(q{SELECT idemkit_effective_key('x'); SELECT name, boot_val, enumvals FROM pg_settings
		WHERE name LIKE 'idemkit.%' ORDER BY 1}))
{
	my ($name, $default, $values) = @$row;
	my $section = Documents::section($reference, $name);

	next if !defined $default;
	like($section, qr/^Default: `\Q$default\E`/m, "$reference: the default of $name");
	is(set($section =~ /^\| `(\w+)` \|/mg), set(($values // '') =~ /(\w+)/g), "$reference: the values of $name");
	$described{$name} = 1;
}

{
	my %raised = map { $_ => 1 } Documents::text('src/idemkit.h') =~ m{^\#define IDEMKIT_ERRCODE_\w+.*/\* (\w{5}) \*/$}mg;
	my @listed = Documents::section($reference, 'Errors of idemkit') =~ /^\| `(\w{5})` \|/mg;

	is("@listed", join(' ', sort keys %raised), "$reference: the errors that the library raises");
}

is(set(Documents::prose($reference) =~ /^#+ (idemkit[\w.]+)$/mg), set(keys %described), "$reference: describes what there is, and nothing else");

#
# client/man/idemkit.1 against --help
#
my $manual = Documents::text('client/man/idemkit.1');
my ($summary) = (Documents::run_command($top, 'idemkit', '--help'))[1];
my @verbs = map { /^  (\w+)/mg } $summary =~ /^Verbs:\n(.*?)\n\n/ms;
my %help  = map { $_ => (Documents::run_command($top, 'idemkit', $_, '--help'))[1] } @verbs;

# The part of the manual page under a heading.
sub manual_section
{
	my ($heading) = @_;
	my ($section) = $manual =~ /^\.Sh \Q$heading\E\n(.*?)(?:^\.Sh |\z)/ms or die "idemkit.1 has no $heading";

	return $section;
}

# What the manual page has of a verb but its options of all verbs.
sub manual_of
{
	my ($verb) = @_;

	return manual_section('THE VERB RUN') if $verb eq 'run';
	my ($item) = manual_section('THE OTHER VERBS') =~ /^\.It Cm \Q$verb\E\b(.*?)(?=^\.It Cm|^\.El)/ms;
	return $item // '';
}

# The options that a verb's --help has: long name to letter and default, either of
# which may be empty.
sub options_of
{
	my ($verb) = @_;
	my %options;

	while ($help{$verb} =~ /^  (?:-(\w), |    )--([\w-]+)(?:=\w+)?(.*\n(?: {29}.*\n)*)/mg)
	{
		my ($letter, $name) = ($1 // '', $2);
		my ($default) = flat($3) =~ /\(default: ([^)]*)\)/;

		$options{$name} = [ $letter, $default // '' ];
	}
	return %options;
}

# How a default is said in the manual page.
my %wording = (
	'30s' => '30 s(econds)?', '10s' => '10 s', '60s' => '60 seconds', '1d' => 'one day', '1' => '1', '16M' => '16M',
	'empty' => 'the empty text', 'forever' => 'forever', 'none' => 'null where it is not given');

my ($common) = manual_section('DESCRIPTION') =~ /^Options of all verbs:\n(.*)/ms;
my %common = reverse $common =~ /^\.It Fl (\w)(?: Ar \w+)? , Fl -([\w-]+)/mg;

is(set(keys %common), 'dbname help json table', 'idemkit.1: the options of all verbs');
foreach my $verb (@verbs)
{
	my %options = options_of($verb);
	my $text    = manual_of($verb);
	my $intro   = $verb =~ /^(?:complete|release|renew)$/ ? manual_section('THE OTHER VERBS') =~ s/^\.Bl.*//msr : '';
	my %letters = map { $options{$_}[0] => $_ } grep { $options{$_}[0] ne '' } keys %options;
	my @named   = "$intro$text" =~ /\bFl -([a-z][\w-]+)/g;
	my @lettered = map { $letters{$_} // "-$_" } "$intro$text" =~ /\bFl (\w)\b/g;

	# What it says of other verbs' options is in the text of run only by its own.
	is(set(grep { !$common{$_} } @named, @lettered), set(grep { !$common{$_} } keys %options), "idemkit.1: the options of $verb");
	is(set(map { "$_ $common{$_}" } grep { exists $options{$_} } keys %common),
		set(map { "$_ $options{$_}[0]" } grep { $common{$_} } keys %options), "idemkit.1: the common options of $verb");
	my %pairs = reverse "$intro$text" =~ /\bFl (\w)(?: Ar \w+)? , (?:Fl )?-([\w-]+)/g;
	is($pairs{$_}, $options{$_}[0], "idemkit.1: $verb: the letter of --$_") foreach sort keys %pairs;
	foreach my $name (grep { !$common{$_} } sort keys %options)
	{
		my $wording = $wording{ $options{$name}[1] } // next;

		like(flat("$intro$text"), qr/\b$wording/, "idemkit.1: $verb: the default of --$name");
	}
}
is(set(map { split(/ \| /) } manual_section('SYNOPSIS') =~ /^\.Cm ([\w |]+)/mg), set(@verbs), 'idemkit.1: the verbs');
is(set(manual_section('EXIT STATUS') =~ /^\.It (\d+)$/mg),
	set(126, 127, map { /(\d+)  /g } $summary =~ /^Exit statuses.*?:\n(.*)/ms), 'idemkit.1: the exit statuses');
is(set($manual =~ /^\.It Ev (IDEMKIT_\w+)$/mg),
	set(map { /"(IDEMKIT_\w+)=?"/g } map { Documents::text("client/src/command/$_") } 'environment.c', 'command.h'),
	'idemkit.1: the environment of the command');
{
	my $sources = join('', map { Documents::text(s{^\Q$top/}{}r) } glob("$top/client/src/command/*.c"));

	is(join(' ', grep { $sources !~ /"$_"/ } map { /^\.It Li ([a-z_]+)$/mg } $manual =~ /^\.Ss The report\n(.*?)^\.Sh/ms),
		'', 'idemkit.1: what a report says');
}

#
# What the documents point at is there
#
my %known = map { $_->[0] => 1 } rows('SELECT relname FROM pg_class');

foreach my $file ('idemkit--1.0.sql', 'src/idemkit.h', 'client/include/idemkit.h')
{
	$known{$_} = 1 foreach Documents::text($file) =~ /\b(idemkit_\w+|IDEMKIT_\w+|Idemkit\w+)/g;
}
$known{$_} = 1 foreach Documents::text('monitoring/alerts.yml') =~ /alert: (\w+)/g;
my $options = join('', values %help);

foreach my $document (@Documents::all)
{
	my $prose = Documents::prose($document);
	my ($folder) = $document =~ m{^(.*/)?[^/]+$};
	my @bad;

	foreach my $link ($prose =~ /\]\(([^)\s]+)\)/g)
	{
		next if $link =~ /^https?:/;
		my ($path, $anchor) = split(/#/, $link, 2);
		my $file = $path eq '' ? $document : ($folder // '') . $path;

		push @bad, "link: $link"
		  if !-e "$top/$file" || (defined $anchor && !grep { $_ eq $anchor } Documents::anchors($file));
	}
	foreach my $code ($prose =~ /`([^`\n]+)`/g)
	{
		push @bad, "path: $code"
		  if $code =~ m{^(?:bench|client|docs|examples|monitoring|script|specs|sql|src|t)/[\w./-]*$}
		  && $code !~ m{^bench/(?:output|results)\b} && !-e "$top/$code";
		push @bad, "name: $code"
		  if $code =~ /^(idemkit_\w+|IDEMKIT_\w+|Idemkit\w+)(\(\))?$/ && !$known{$1};
		push @bad, "option: $code"
		  if $code =~ /^(--[\w-]+)/ && $document eq 'docs/client.md' && $options !~ /\s\Q$1\E\b/;
	}
	is(join("\n", @bad), '', "$document: links, paths, names and options");
}

$node->log_is_clean;
done_testing();
