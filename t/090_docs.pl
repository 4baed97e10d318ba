# The documentation is true: its examples run as they are written and print what
# it shows.
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
#   needs=NAME          skipped where the server has no such extension, nor the
#                       machine such a command; where a command line of several
#                       words fails
#   file=NAME           (any language but the above) a program in a file of that
#                       name, which a later sh block must run
#   from=PATH           not run: these lines stand in that file of the source, whose
#                       own test runs it
#   not-run="REASON"    not run
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use File::Path qw(make_path);

use Documents;
use Drivers;
use IdemkitNode;
use Test::More;

my $top     = $Documents::top;
my $scratch = PostgreSQL::Test::Utils::tempdir();
my $client  = "$scratch/client";

# Without blanks at the ends of lines and empty lines at the end.
sub trimmed
{
	my ($string) = @_;

	$string =~ s/[ \t]+$//mg;
	$string =~ s/\s+\z//;
	return $string;
}

# Whether the server has the extension of that name.
sub has_extension
{
	my ($name) = @_;

	return -f Documents::server_file('--sharedir', "extension/$name.control");
}

my $node = IdemkitNode->prepare('main',
	has_extension('pg_cron') ? ("shared_preload_libraries = 'pg_cron'", "cron.database_name = 'operations'") : ());

$node->start;
Documents::install_client($client);
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
delete $ENV{PGUSER};
$ENV{USER} = getpwuid($<);    # as it is where somebody has logged in
Drivers::node();

# Whether what a block needs is there.
sub is_there
{
	my ($name) = @_;

	return (Documents::run_command($scratch, 'bash', '-c', $name))[0] eq '0' if $name =~ / /;
	return has_extension($name) || grep { -x "$_/$name" } split(/:/, $ENV{PATH});
}

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
	my ($status, $out, $err) = Documents::run_command($directory, 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-v',
		'VERBOSITY=verbose', '-f', $file);
	my ($complaints, $sqlstate) = complaints($err);

	is("$status $sqlstate", ($expected eq '00000' ? 0 : 3) . " $expected", $name) or diag($err);
	return $expected eq '00000' ? $out : $out . $complaints;
}

# Writes the program of a block into its file.
sub write_program
{
	my ($block, $name, $directory) = @_;
	my $file = $block->{attributes}{file} // die "$name: how is this run?";

	PostgreSQL::Test::Utils::append_to_file("$directory/$file", $block->{text});
	return $file;
}

# Compiles a block of C; a test.
sub compile
{
	my ($block, $name, $directory) = @_;
	my $file = write_program(@_);
	my ($status, undef, $err) = Documents::run_command($directory, $ENV{CC} // 'cc', '-std=c11', '-Wall', '-Wextra',
		'-Werror', "-I$client/include", '-I' . Documents::server_file('--includedir'), '-fsyntax-only', $file);

	is("$status$err", '0', $name);
	return;
}

# Runs a block of shell commands; a test.  Returns what it printed.
sub run_shell
{
	my ($block, $name, $directory) = @_;
	my ($status, $out, $err) = Documents::run_command($directory, 'bash', '-eu', '-c', $block->{text});

	is($status, 0, $name) or diag($err);
	return $out;
}

# That an excerpt stands in the file it says, whatever its indentation; a test.
sub look_up
{
	my ($block, $name) = @_;
	my ($excerpt, $file) = map { s/^[ \t]+//mgr } $block->{text}, Documents::text($block->{attributes}{from});

	ok(index("\n$file", "\n$excerpt") >= 0, "$name: stands in $block->{attributes}{from}") or diag($excerpt);
	return;
}

my %runners = (sql => \&run_sql, c => \&compile, sh => \&run_shell);

# Runs a block that is to be run; a test.  Returns what it printed, and undefined
# where that cannot be said.
sub run_block
{
	my ($block, $name, $directory) = @_;
	my ($language, $attributes) = @{$block}{ 'language', 'attributes' };

	if (exists $attributes->{from})
	{
		return look_up($block, $name);
	}
	if (exists $attributes->{'not-run'} || $language eq 'text')
	{
		note("$name: not run: " . ($attributes->{'not-run'} // 'text'));
		return;
	}
	if (exists $attributes->{needs} && !is_there($attributes->{needs}))
	{
		SKIP: { skip("unavailable: $attributes->{needs}", 1) }
		return;
	}
	return ($runners{$language} // sub { write_program(@_); return })->($block, $name, $directory);
}

# Runs the blocks of a document in order.
sub run_document
{
	my ($document) = @_;
	my $database = lc($document =~ s/\.md$//r =~ s{^docs/}{}r =~ s/\W/_/gr);
	my $directory = "$scratch/documents/$database";
	my $printed;    # by the block before; undefined if that was not run
	my %to_run;     # programs that were written and not yet run

	make_path($directory);
	symlink("$top/$_", "$directory/$_") or die $! foreach grep { -e "$top/$_" } qw(client examples);
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	local $ENV{PGDATABASE} = $database;
	foreach my $block (Documents::blocks($document))
	{
		my $name = "$document:$block->{line}: $block->{language}";

		die "$name: what is \"$block->{unread}\"?" if $block->{unread} ne '';
		if ($block->{language} eq 'output')
		{
			is(trimmed($printed), trimmed($block->{text}), "$name: what the block before it prints")
			  if defined $printed;
			next;
		}
		$printed = run_block($block, $name, $directory);
		$to_run{ $block->{attributes}{file} } = $name if exists $block->{attributes}{file};
		delete @to_run{ grep { runs($block->{text}, $_) } keys %to_run } if $block->{language} eq 'sh';
	}
	is(join("\n", values %to_run), '', "$document: every program was run");
	return;
}

# Whether shell commands run the program of a file: by its name, or compiled.
sub runs
{
	my ($commands, $file) = @_;
	my $program = $file =~ s/\.c$//r;

	return $commands =~ ($file eq $program ? qr{(^|\s)\Q$file\E\b}m : qr{(^|\s)\./\Q$program\E\b}m);
}

run_document($_) foreach @Documents::all;
$node->log_is_clean;
done_testing();
