# The documentation is true: its examples run as they are written and print what
# it shows, and the reference names what the catalogue has.
#
# A fenced block is run according to the first word behind the fence:
#
#   sql      by psql, stopping at the first error; in the document's own database
#   c        compiled, warnings being errors, as the program of its file=NAME.c,
#            which a later sh block must run
#   sh       by bash -eu, in the document's own directory, on the same database
#   output   what the block before it printed, exactly but for blanks at line ends
#   text     not run
#
# and what follows that word:
#
#   error=SQLSTATE      (sql) the block ends with this error; output shows it too
#   needs=EXTENSION     (sql) skipped where the server does not have it
#   not-run="REASON"    not run
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cwd qw(abs_path);
use File::Path qw(make_path);
use IPC::Run;

use IdemkitNode;
use Test::More;

my $top       = abs_path("$FindBin::RealBin/..");
my $scratch   = PostgreSQL::Test::Utils::tempdir();
my @documents = ('README.md', 'docs/sql.md', 'docs/client.md', 'docs/operations.md');
my %text      = map { $_ => PostgreSQL::Test::Utils::slurp_file("$top/$_") } @documents;

# Runs a command; returns its status, standard output and standard error.
sub run_command
{
	my ($directory, @command) = @_;
	my ($out, $err) = ('', '');
	my $run = IPC::Run::start(\@command, '<', \'', '>', \$out, '2>', \$err,
		init => sub { chdir($directory) or die "$directory: $!" },
		IPC::Run::timeout($IdemkitNode::patience));

	$run->finish;
	my $status = $run->full_result(0);
	return ($status & 127 ? 'signal ' . ($status & 127) : $status >> 8, $out, $err);
}

# Without blanks at the ends of lines and empty lines at the end.
sub trimmed
{
	my ($string) = @_;

	$string =~ s/[ \t]+$//mg;
	$string =~ s/\s+\z//;
	return $string;
}

# The blocks of a document: language, attributes, text and line number.
sub blocks
{
	my ($document) = @_;
	my @blocks;
	my $block;
	my $number = 0;

	foreach my $line (split(/\n/, $text{$document}))
	{
		$number++;
		if (!defined $block && $line =~ /^```(\w*) ?(.*)$/)
		{
			$block = { language => $1, line => $number, text => '', attributes => {} };
			my $rest = $2;
			$block->{attributes}{$1} = $2 // $3 while $rest =~ /\G([\w-]+)=(?:"([^"]+)"|(\S+)) */gc;
			$block->{unread} = substr($rest, pos($rest) // 0);
		}
		elsif (defined $block && $line eq '```')
		{
			push @blocks, $block;
			undef $block;
		}
		elsif (defined $block)
		{
			$block->{text} .= "$line\n";
		}
	}
	die "$document: the block of line $block->{line} does not end" if defined $block;
	return @blocks;
}

#
# A server, the client built and installed for it, and an environment in which
# the examples find both.
#
my $has_cron = -f server_file('--sharedir', 'extension/pg_cron.control');
my $node     = IdemkitNode->prepare('main',
	$has_cron ? ("shared_preload_libraries = 'pg_cron'", "cron.database_name = 'operations'") : ());
my $client = "$scratch/client";

# Where PG_CONFIG says that a file of the installation is.
sub server_file
{
	my ($kind, $file) = @_;
	my $directory = qx{"@{[pg_config()]}" $kind};

	chomp $directory;
	return defined $file ? "$directory/$file" : $directory;
}

sub pg_config
{
	return $ENV{PG_CONFIG} // 'pg_config';
}

$node->start;
delete @ENV{qw(MAKEFLAGS MAKELEVEL MFLAGS)};
{
	my ($status, $out, $err) =
	  run_command($top, 'make', '-C', 'client', 'PG_CONFIG=' . pg_config(),
		"BUILD=$client/build", "prefix=$client", 'install');
	is($status, 0, 'the client is built and installed') or BAIL_OUT("$out$err");
}

$ENV{PATH} = join(':', "$client/bin", server_file('--bindir'), $ENV{PATH});
$ENV{LD_LIBRARY_PATH} = join(':', "$client/lib", server_file('--libdir'), $ENV{LD_LIBRARY_PATH} // ());
$ENV{PKG_CONFIG_PATH} = join(':', "$client/lib/pkgconfig", server_file('--libdir', 'pkgconfig'));
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
delete $ENV{PGUSER};

# psql's complaints as they look at a terminal, and the SQLSTATE of the last.
sub complaints
{
	my ($err) = @_;
	my $sqlstate = '00000';

	$err =~ s/^psql:[^ ]*:\d+: //mg;
	$err =~ s/^(ERROR|FATAL):  ([0-9A-Z]{5}): /$sqlstate = $2; "$1:  "/meg;
	$err =~ s/^LOCATION: .*\n//mg;
	return ($err, $sqlstate);
}

# Runs a block of SQL; a test.  Returns what it printed.
sub run_sql
{
	my ($block, $name, $directory) = @_;
	my $expected = $block->{attributes}{error} // '00000';
	my $file     = $node->script($block->{text});
	my ($status, $out, $err) = run_command($directory, 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-v',
		'VERBOSITY=verbose', '-f', $file);
	my ($complaints, $sqlstate) = complaints($err);

	is("$status $sqlstate", ($expected eq '00000' ? 0 : 3) . " $expected", $name) or diag($err);
	return $expected eq '00000' ? $out : $out . $complaints;
}

# Compiles a block of C; a test.
sub compile
{
	my ($block, $name, $directory) = @_;
	my $file = $block->{attributes}{file} // die "$name: no file=NAME.c";
	my ($status, undef, $err);

	PostgreSQL::Test::Utils::append_to_file("$directory/$file", $block->{text});
	($status, undef, $err) = run_command($directory, $ENV{CC} // 'cc', '-std=c11', '-Wall', '-Wextra',
		'-Werror', "-I$client/include", '-I' . server_file('--includedir'), '-fsyntax-only', $file);
	is("$status$err", '0', $name);
	return;
}

# Runs a block of shell commands; a test.  Returns what it printed.
sub run_shell
{
	my ($block, $name, $directory) = @_;
	my ($status, $out, $err) = run_command($directory, 'bash', '-eu', '-c', $block->{text});

	is($status, 0, $name) or diag($err);
	return $out;
}

my %runners = (sql => \&run_sql, c => \&compile, sh => \&run_shell);

# Runs the blocks of a document in order.
sub run_document
{
	my ($document) = @_;
	my $database = $document =~ /(\w+)\.md$/ ? lc $1 : die;
	my $directory = "$scratch/$database";
	my $printed;    # by the block before; undefined if that was not run
	my %to_run;     # programs that were compiled and not yet run

	make_path($directory);
	symlink("$top/client", "$directory/client") or die $!;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	local $ENV{PGDATABASE} = $database;
	foreach my $block (blocks($document))
	{
		my ($language, $attributes) = @{$block}{ 'language', 'attributes' };
		my $name = "$document:$block->{line}: $language";

		die "$name: what is \"$block->{unread}\"?" if $block->{unread} ne '';
		if ($language eq 'output')
		{
			is(trimmed($printed), trimmed($block->{text}), "$name: what the block before it prints")
			  if defined $printed;
		}
		elsif (exists $attributes->{'not-run'} || $language eq 'text')
		{
			note("$name: not run: " . ($attributes->{'not-run'} // 'text'));
			undef $printed;
		}
		elsif (exists $attributes->{needs}
			&& !-f server_file('--sharedir', "extension/$attributes->{needs}.control"))
		{
			SKIP: { skip("unavailable: $attributes->{needs}", 1) }
			undef $printed;
		}
		else
		{
			my $runner = $runners{$language} // die "$name: how is this run?";

			$printed = $runner->($block, $name, $directory);
			$to_run{ $attributes->{file} =~ s/\.c$//r } = $name if $language eq 'c';
			delete @to_run{ grep { $block->{text} =~ m{(^|\s)\./\Q$_\E\b} } keys %to_run };
		}
	}
	is(join("\n", values %to_run), '', "$document: every program was run");
	return;
}

run_document($_) foreach @documents;

#
# The reference against the catalogue
#
$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS idemkit');

# The part of docs/sql.md under the heading that is this name, up to the next of
# its level or above.
sub section
{
	my ($name) = @_;
	my ($level, $rest) = $text{'docs/sql.md'} =~ /^(#+) \Q$name\E\n(.*)/ms or return '';
	my $above = '#{1,' . length($level) . '} ';

	return $rest =~ /\A(.*?)^$above/ms ? $1 : $rest;
}

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

	return map { [ split(/\|/, $_, -1) ] } split(/\n/, $node->safe_psql('postgres', $query));
}

# The sentence of a COMMENT, as text has it.
sub sentence
{
	my ($comment) = @_;

	return ucfirst($comment) . '.';
}

my $members = q{
	FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid AND d.refclassid = 'pg_extension'::regclass
	JOIN %s o ON d.objid = o.oid AND d.classid = '%s'::regclass
	WHERE e.extname = 'idemkit' AND d.deptype = 'e'};

foreach my $row (
	rows(q{SELECT proname, prokind, pg_get_function_arguments(o.oid), pg_get_function_result(o.oid),
			obj_description(o.oid, 'pg_proc')} . sprintf($members, 'pg_proc', 'pg_proc') . ' ORDER BY 1'))
{
	my ($name, $kind, $arguments, $result, $comment) = @$row;
	my $section = flat(section($name));

	# Types of defaults, and IN, are left out for the reader's sake.
	$arguments =~ s/::[\w ]+(\[\])?//g;
	$arguments =~ s/(^|, )IN /$1/g;
	my $signature = $kind eq 'p' ? "CALL $name($arguments)" : "$name($arguments) RETURNS $result";

	ok($section =~ /\Q``` \E?text \Q$signature\E(?= ```)/, "docs/sql.md: the signature of $name")
	  or diag("wanted: $signature");
	like($section, qr/\Q${\ sentence($comment)}\E/, "docs/sql.md: what $name does");
}

# The rows of the table in a section, by their first two columns in code style.
sub columns
{
	my ($name) = @_;
	my $section = section($name);
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

	is(join("\n", columns($name)),
		$node->safe_psql('postgres', sprintf($attributes, $name)), "docs/sql.md: columns of $name");
	like(flat(section($name)), qr/\Q${\ sentence($comment)}\E/, "docs/sql.md: what $name is");
}

is(join("\n", columns('idemkit_records')),
	$node->safe_psql('postgres', sprintf($attributes, 'idemkit_records')),
	'docs/sql.md: columns of idemkit_records');

# The library, and with it the settings, is there after the first call.
foreach my $row (rows(q{SELECT idemkit_effective_key('x'); SELECT name, boot_val, enumvals FROM pg_settings
		WHERE name LIKE 'idemkit.%' ORDER BY 1}))
{
	my ($name, $default, $values) = @$row;

	next if !defined $default;
	like(section($name), qr/^Default: `\Q$default\E`/m, "docs/sql.md: the default of $name");
	like(section($name), qr/^\| `\Q$_\E` \|/m, "docs/sql.md: value $_ of $name")
	  foreach ($values // '') =~ /(\w+)/g;
}

{
	my $header = PostgreSQL::Test::Utils::slurp_file("$top/src/idemkit.h");
	my %raised = map { $_ => 1 } $header =~ m{^\#define IDEMKIT_ERRCODE_\w+.*/\* (\w{5}) \*/$}mg;
	my @listed = section('Errors of idemkit') =~ /^\| `(\w{5})` \|/mg;

	is("@listed", join(' ', sort keys %raised), 'docs/sql.md: the errors that the library raises');
}

#
# What the documents point at is there
#
my %known = map { $_->[0] => 1 } rows('SELECT relname FROM pg_class');

foreach my $file ("$top/idemkit--1.0.sql", "$top/src/idemkit.h", "$top/client/include/idemkit.h")
{
	$known{$_} = 1
	  foreach PostgreSQL::Test::Utils::slurp_file($file) =~ /\b(idemkit_\w+|IDEMKIT_\w+|Idemkit\w+)/g;
}
my $help = join('', map { (run_command($top, 'idemkit', $_, '--help'))[1] }
	qw(run claim complete release renew get wait vacuum init verify stats));

# A document without its blocks.
sub prose
{
	my ($document) = @_;

	return $document =~ s/^```.*?^```$//msgr;
}

# The anchors that a document's headings make.
sub anchors
{
	my ($document) = @_;
	my @headings = prose($document) =~ /^#+ (.+)$/mg;

	return map { s/`//gr =~ s/[^\w -]//gr =~ s/ /-/gr } map { lc } @headings;
}

foreach my $document (@documents)
{
	my $prose = prose($text{$document});
	my ($folder) = $document =~ m{^(.*/)?[^/]+$};
	my @bad;

	foreach my $link ($prose =~ /\]\(([^)\s]+)\)/g)
	{
		next if $link =~ /^https?:/;
		my ($path, $anchor) = split(/#/, $link, 2);
		my $file = $path eq '' ? "$top/$document" : "$top/" . ($folder // '') . $path;

		push @bad, "link: $link"
		  if !-e $file
		  || (defined $anchor
			&& !grep { $_ eq $anchor } anchors(PostgreSQL::Test::Utils::slurp_file($file)));
	}
	foreach my $code ($prose =~ /`([^`\n]+)`/g)
	{
		push @bad, "path: $code"
		  if $code =~ m{^(?:bench|client|docs|script|specs|sql|src|t)/[\w./-]*$} && !-e "$top/$code";
		push @bad, "name: $code"
		  if $code =~ /^(idemkit_\w+|IDEMKIT_\w+|Idemkit\w+)(\(\))?$/ && !$known{$1};
		push @bad, "option: $code"
		  if $code =~ /^(--[\w-]+)/ && $document eq 'docs/client.md' && $help !~ /\s\Q$1\E\b/;
	}
	is(join("\n", @bad), '', "$document: links, paths, names and options");
}

$node->log_is_clean;
done_testing();
