# ALTER EXTENSION idemkit UPDATE, with a next version that exists in this test only:
# until it is run the new library refuses to work with the old SQL objects, then the old
# library with the new ones, in sessions that are running too; every record is kept.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cwd qw(abs_path);
use File::Copy qw(copy);
use IdemkitNode;
use PostgreSQL::Test::Utils ();
use StoredRecords;
use Test::More;

my $source = abs_path("$FindBin::RealBin/..");
my $next   = '1.1test';
my ($current) = PostgreSQL::Test::Utils::slurp_file("$source/idemkit.control") =~ /^default_version = '(.*)'$/m
  or die 'idemkit.control has no default_version';

# The output of a command.
sub run
{
	my @command = @_;

	open(my $output, '-|', @command) or die "cannot run @command: $!";
	local $/;
	my $text = <$output> // '';
	close $output or die "failed: @command";
	return $text =~ s/\n\z//r;
}

# Replaces a file by another of its name: whoever has the old one loaded keeps it.
sub install
{
	my ($file, $directory) = @_;
	my $path = "$directory/" . $file =~ s{.*/}{}r;

	copy($file, "$path.new") or die "cannot copy $file: $!";
	chmod 0755, "$path.new";
	rename("$path.new", $path) or die "cannot rename $path.new: $!";
	return;
}

# Replaces the first of a text in a file.
sub rewrite
{
	my ($file, $from, $to) = @_;
	my $text = PostgreSQL::Test::Utils::slurp_file($file);

	$text =~ s/\Q$from\E/$to/ or die "$file has no $from";
	unlink $file;
	PostgreSQL::Test::Utils::append_to_file($file, $text);
	return;
}

# Both versions are installed into a copy of the PostgreSQL that is tested.
my $work = PostgreSQL::Test::Utils::tempdir();
my $private = run("$source/script/private-install", IdemkitNode::pg_config('--bindir') . '/pg_config', "$work/pg");

my $library_dir = IdemkitNode::pg_config('--pkglibdir', $private);
my $script_dir  = IdemkitNode::pg_config('--sharedir', $private) . '/extension';
install(IdemkitNode::pg_config('--pkglibdir') . '/idemkit.so', $library_dir);
install($_, $script_dir)
  foreach map { IdemkitNode::pg_config('--sharedir') . "/extension/$_" } 'idemkit.control', "idemkit--$current.sql";

# The next version has one more function; the table is the same.
PostgreSQL::Test::Utils::system_or_bail('cp', '-r', map({ "$source/$_" } qw(src Makefile idemkit.control)), $work);
rewrite("$work/src/idemkit.h", qq{IDEMKIT_EXTENSION_VERSION "$current"}, qq{IDEMKIT_EXTENSION_VERSION "$next"});
rewrite("$work/idemkit.control", "default_version = '$current'", "default_version = '$next'");
PostgreSQL::Test::Utils::append_to_file("$work/idemkit--$current--$next.sql", q{
CREATE FUNCTION idemkit_next_version() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'it is here' $$;
COMMENT ON FUNCTION idemkit_next_version() IS 'of the next version';
});
{
	# What the make that runs the tests tells its children is not for this one.
	local @ENV{qw(MAKEFLAGS MAKELEVEL MFLAGS)};
	delete @ENV{qw(MAKEFLAGS MAKELEVEL MFLAGS)};
	unlink glob("$work/src/*.o"), glob("$work/src/*.bc");
	run('make', '--silent', '-j2', '-C', $work, "PG_CONFIG=$private", 'COPT=-O0', 'with_llvm=no', 'idemkit.so');
}

$ENV{PATH} = IdemkitNode::pg_config('--bindir', $private) . ":$ENV{PATH}";
my $node = IdemkitNode->prepare('main');
$node->start;
$node->value(q{
	CREATE EXTENSION idemkit;
	SELECT idemkit_create_table('orders');
	CREATE ROLE owner LOGIN;
	CREATE DATABASE owned OWNER owner});
is($node->value("SELECT extversion FROM pg_extension WHERE extname = 'idemkit'"), $current, 'this version');
my @tables = ('idemkit_records', 'orders');
StoredRecords::fill($node, 'postgres', 'public', $_) foreach @tables;
my %rows = map { ($_ => StoredRecords::rows($node, 'postgres', $_)) } @tables;
my $token = $node->value("SELECT claim_token FROM idemkit_records WHERE effective_key = 'claimed'");

# What a statement raises in a session: SQLSTATE and hint, or nothing.
sub raised
{
	my ($session, $sql) = @_;

	$session->query("\\set VERBOSITY verbose\n$sql");
	my ($state) = $session->{stderr} =~ /ERROR: +(\w{5}):/;
	my ($hint)  = $session->{stderr} =~ /^HINT: +(.*)$/m;
	$session->{stderr} = '';
	return join(' ', grep { defined } $state, $hint);
}

# Statements of every function that uses a table, none of which finds what it names.
my @calls = map { "SELECT idemkit_$_" }
  "claim('body 1')", "complete('no', '')", "release('no', '')", "renew('no', '')", "get('no')",
  "subscribe(ARRAY['no'])", "wait('no')", "claim_many(ARRAY['body 1'])", "complete_many(ARRAY['no'], ARRAY[''])",
  'vacuum()', 'verify_schema()', 'stats()', "get('no', 'orders')";
my $update_hint = qr/^55000 Run: ALTER EXTENSION idemkit UPDATE TO '\Q$next\E'; and connect again\./;
my $connect_hint = qr/^55000 Run: ALTER EXTENSION idemkit UPDATE TO '\Q$current\E'; and connect again\.  If the installed version is newer, install the library/;

# Sessions that run on: they have loaded the library of this version.
my $idle = $node->session;
my $busy = $node->session;
is(raised($idle, $_), '', "before: $_") foreach @calls;
$busy->query_safe("SELECT idemkit_get('no')");

# The new files are there.
install("$work/idemkit.so", $library_dir);
install("$work/idemkit.control", $script_dir);
install("$work/idemkit--$current--$next.sql", $script_dir);
is(raised($idle, $calls[0]), '', 'new files: a running session goes on');
my $early = $node->session;
like(raised($early, $_), $update_hint, "new files: a new session refuses $_") foreach @calls;
is($node->value("SELECT idemkit_effective_key('a') = encode(sha256('\\x0000000161'), 'hex')"),
	't', 'new files: what needs no table works');

# An update that is rolled back has not been.
my $admin = $node->session;
$admin->query_safe('BEGIN');
$admin->query_safe('ALTER EXTENSION idemkit UPDATE');
is(raised($idle, $calls[0]), '', 'an update under way: a running session goes on');
$admin->query_safe('ROLLBACK');
is(raised($idle, $calls[0]), '', 'an update rolled back: a running session goes on');
like(raised($early, $calls[0]), $update_hint, 'an update rolled back: a new session still refuses');

# The update, in the middle of somebody's transaction.
$busy->query_safe('BEGIN');
is($busy->query_safe("SELECT result FROM idemkit_claim('under way')"), 'new_claimed', 'a transaction is under way');
is($node->sqlstate('ALTER EXTENSION idemkit UPDATE'), '00000', 'ALTER EXTENSION idemkit UPDATE');
is($node->value("SELECT extversion, idemkit_next_version() FROM pg_extension WHERE extname = 'idemkit'"),
	"$next|it is here", 'updated: the next version');
is(StoredRecords::rows($node, 'postgres', $_), $rows{$_}, "updated: every column of every row of $_") foreach @tables;

like(raised($idle, $_), $connect_hint, "updated: a running session refuses $_") foreach @calls;
like(raised($busy, "SELECT idemkit_complete('under way', '')"), $connect_hint,
	'updated: in the middle of a transaction, too');
$busy->query('ROLLBACK');
is(raised($early, $_), '', "updated: a session that waited for it goes on: $_") foreach @calls;
$early->query_safe('\set VERBOSITY default');
is($early->query_safe("SELECT count(*) FROM idemkit_get('under way')"), '0', 'updated: nothing is left of that transaction');
is($early->query_safe("SELECT idemkit_complete('claimed', '$token', response_body => 'x')"),
	't', 'updated: a claim is its owner\'s');
is($early->query_safe("SELECT result, response_body FROM idemkit_claim('claimed')"),
	'already_completed|\x78', 'updated: and the result replayed');
$node->all_verbs_work($early, 'updated', 'public', $_) foreach undef, 'orders';

# By the owner of a database, who is no superuser; from the first version, and at once.
is($node->sqlstate("CREATE EXTENSION idemkit VERSION '$current'", 'owner', 'owned'), '00000',
	'the version before is still to be had');
is($node->sqlstate("SELECT idemkit_get('no')", 'owner', 'owned'), '55000', 'which the new library refuses');
is($node->sqlstate('ALTER EXTENSION idemkit UPDATE', 'owner', 'owned'), '00000', 'the owner of a database updates it');
is($node->sqlstate("SELECT idemkit_get('no')", 'owner', 'owned'), '00000', 'and it works');
is($node->sqlstate('DROP EXTENSION idemkit', 'owner', 'owned'), '00000', 'dropped');
is($node->sqlstate('CREATE EXTENSION idemkit', 'owner', 'owned'), '00000', 'created anew, through both scripts');
is($node->safe_psql('owned', 'SELECT extversion, idemkit_next_version() FROM pg_extension'
		  . " WHERE extname = 'idemkit'"), "$next|it is here", 'in the next version');

$_->quit foreach $idle, $busy, $early, $admin;
$node->stop;
$node->log_is_clean;
done_testing();
