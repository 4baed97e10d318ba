# The project's documents and what is in them, and the client built for the
# commands that they show.
package Documents;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IPC::Run;

use IdemkitNode;
use PostgreSQL::Test::Utils ();
use Test::More;

our $top = abs_path(dirname(__FILE__) . '/../..');

# Their paths, from the top of the source.
our @all = map { s{^\Q$top/}{}r } ("$top/README.md", sort glob("$top/docs/*.md $top/*/README.md"));

my %text;

# The text of a document, or of another file.
sub text
{
	my ($path) = @_;

	return $text{$path} //= PostgreSQL::Test::Utils::slurp_file("$top/$path");
}

# The fenced blocks of a document: language, attributes, text and line number.
sub blocks
{
	my ($document) = @_;
	my @blocks;
	my $block;
	my $number = 0;

	foreach my $line (split(/\n/, text($document)))
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

# A document without its blocks.
sub prose
{
	my ($document) = @_;

	return text($document) =~ s/^```.*?^```$//msgr;
}

# The part of a document under a heading, up to the next heading of its level or
# above; empty where there is none.
sub section
{
	my ($document, $heading) = @_;
	my ($level, $rest) = text($document) =~ /^(#+) \Q$heading\E\n(.*)/ms or return '';
	my $above = '#{1,' . length($level) . '} ';

	return $rest =~ /\A(.*?)^$above/ms ? $1 : $rest;
}

# The anchors that a document's headings make.
sub anchors
{
	my ($document) = @_;
	my @headings = prose($document) =~ /^#+ (.+)$/mg;

	return map { s/`//gr =~ s/[^\w -]//gr =~ s/ /-/gr } map { lc } @headings;
}

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

sub pg_config
{
	return $ENV{PG_CONFIG} // 'pg_config';
}

# Where PG_CONFIG says that a file of the installation is.
sub server_file
{
	my ($kind, $file) = @_;
	my $directory = qx{"@{[pg_config()]}" $kind};

	chomp $directory;
	return defined $file ? "$directory/$file" : $directory;
}

# Builds the client and installs it into a directory; a test.  Then the
# environment finds the command and the library there.
sub install_client
{
	my ($directory) = @_;

	delete @ENV{qw(MAKEFLAGS MAKELEVEL MFLAGS)};
	my ($status, $out, $err) =
	  run_command($top, 'make', '-C', 'client', 'PG_CONFIG=' . pg_config(),
		"BUILD=$directory/build", "prefix=$directory", 'install');
	is($status, 0, 'the client is built and installed') or BAIL_OUT("$out$err");
	$ENV{PATH} = join(':', "$directory/bin", server_file('--bindir'), $ENV{PATH});
	$ENV{LD_LIBRARY_PATH} = join(':', "$directory/lib", server_file('--libdir'), $ENV{LD_LIBRARY_PATH} // ());
	$ENV{PKG_CONFIG_PATH} = join(':', "$directory/lib/pkgconfig", server_file('--libdir', 'pkgconfig'));
	return;
}

1;
