# A database moves to another major version, by pg_upgrade and by dump and restore:
# every record is there as it was, and every claim is held by who held it.
#
# From the server that OLD_PG_CONFIG names (script/test installs the extension there);
# where it names none, from one of the same version, which pg_upgrade moves the same way.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use Cwd qw(getcwd);
use IdemkitNode;
use PostgreSQL::Test::Utils ();
use StoredRecords;
use Test::More;

my $new_bindir = IdemkitNode::pg_config('--bindir');
my $old_bindir = defined $ENV{OLD_PG_CONFIG} ? IdemkitNode::pg_config('--bindir', $ENV{OLD_PG_CONFIG}) : $new_bindir;
# Checksums are the default of some versions, and have to be the same in both.
my %initdb = (initdb => ['--data-checksums']);
my %old_install = $old_bindir eq $new_bindir ? () : (install_path => $old_bindir =~ s{/bin$}{}r);
my $old = IdemkitNode->prepare('old', { %old_install, %initdb });
my $new = IdemkitNode->prepare('new', {%initdb});

$old->start;
my $copies = IdemkitNode->prepare('copies');
$copies->start;

# A pair of servers between which nobody can move a table tells nothing of ours: one
# that is the earlier minor release may not understand what the other has stored.
$old->value('CREATE TABLE plain (a int)');
my $plain = $old->basedir . '/plain.sql';
$copies->command_ok([ 'pg_dump', '-t', 'plain', '-f', $plain, '-d', $old->connstr('postgres') ], 'pg_dump of a plain table');
if ($copies->psql('postgres', PostgreSQL::Test::Utils::slurp_file($plain)) != 0)
{
	SKIP: { skip 'unavailable: these two servers cannot exchange a plain table (t/070_upgrade.pl)', 1; }
	done_testing();
	exit;
}

IdemkitNode::report('from ' . IdemkitNode::pg_config('--version', "$old_bindir/pg_config")
	  . ' to ' . IdemkitNode::pg_config('--version'));

# Two databases: the extension in its usual schema, and in another one; tables of
# every kind; a role with rights; a setting; and a trigger, which is the user's own.
$old->value(q{
	CREATE EXTENSION idemkit;
	CREATE ROLE app LOGIN;
	CREATE SCHEMA shop;
	GRANT USAGE ON SCHEMA shop TO app;
	SELECT idemkit_create_table('scratch', unlogged => true);
	SET search_path = shop, public;
	SELECT idemkit_create_table('payments');
	GRANT SELECT, INSERT, UPDATE, DELETE ON idemkit_records, payments TO app;
	ALTER DATABASE postgres SET idemkit.notify = 'awaited';
	CREATE TABLE shop.seen (effective_key text);
	CREATE FUNCTION shop.see() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO shop.seen VALUES (NEW.effective_key); RETURN NEW; END $$;
	CREATE TRIGGER see BEFORE INSERT ON payments FOR EACH ROW EXECUTE FUNCTION shop.see()});
$old->value('CREATE DATABASE moved');
$old->safe_psql('moved', 'CREATE SCHEMA keys; CREATE EXTENSION idemkit SCHEMA keys;'
	  . " SELECT keys.idemkit_create_table('more')");

my %databases = (
	postgres => { schema => 'public', tables => [ 'idemkit_records', 'scratch', 'shop.payments' ] },
	moved    => { schema => 'keys', tables => [ 'keys.idemkit_records', 'more' ] });
my %before;

# For each table of each database: code($database, $schema, $table).
sub each_table
{
	my ($code) = @_;

	foreach my $database (sort keys %databases)
	{
		$code->($database, $databases{$database}{schema}, $_) foreach @{ $databases{$database}{tables} };
	}
	return;
}

# The functions and tables of the extension.  (From version 17 on the types that come
# along with others are written down as well.)
sub members
{
	my ($node, $database) = @_;

	return $node->safe_psql($database, q{
		SELECT extversion, nspname FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace
		WHERE extname = 'idemkit';
		SELECT pg_describe_object(classid, objid, 0) FROM pg_depend
		WHERE deptype = 'e' AND classid IN ('pg_proc'::regclass, 'pg_class'::regclass)
			AND refclassid = 'pg_extension'::regclass
			AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idemkit') ORDER BY 1});
}

each_table(sub {
	my ($database, $schema, $table) = @_;

	StoredRecords::fill($old, $database, $schema, $table);
	# A lease that is over: to be taken over after the move.
	$old->safe_psql($database, qq{
		SELECT $schema.idemkit_claim('over', records => '$table');
		UPDATE $table SET lease_until = clock_timestamp() - interval '1 min' WHERE effective_key = 'over'});
	$before{$database}{$table} = {
		rows   => StoredRecords::rows($old, $database, $table),
		layout => StoredRecords::layout($old, $database, $table),
	};
	is(scalar(split(/\n/, $before{$database}{$table}{rows})), 11, "$database: $table is filled");
});
$before{$_}{members} = members($old, $_) foreach sort keys %databases;

# Tests that a database is what it was, and then that it goes on from there.
sub same_as_before
{
	my ($node, $name, $prefix) = @_;

	each_table(sub {
		my ($database, $schema, $table) = @_;
		my $what = "$name: $table";

		$database = "$prefix$database";
		my $was = $before{ $database =~ s/^\Q$prefix\E//r }{$table};
		is(StoredRecords::rows($node, $database, $table), $was->{rows}, "$what: every column of every row");
		is(StoredRecords::layout($node, $database, $table), $was->{layout}, "$what: layout");
		is($node->sqlstate("SELECT $schema.idemkit_verify_schema('$table')", undef, $database),
			'00000', "$what: a complete records table");
		goes_on($node, $database, $schema, $table, $what);
	});
	is(members($node, "$prefix$_"), $before{$_}{members}, "$name: the extension in database $_")
	  foreach sort keys %databases;
	is($node->safe_psql("${prefix}postgres", q{
			SELECT string_agg(p, ',') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p
			WHERE has_table_privilege('app', 'idemkit_records', p)}),
		'SELECT,INSERT,UPDATE,DELETE', "$name: the rights of an ordinary role");
	is($node->sqlstate("SELECT idemkit_claim('by app')", 'app', "${prefix}postgres"),
		'00000', "$name: which can claim");
	is($node->safe_psql("${prefix}postgres",
			q{SELECT idemkit_claim('seen', records => 'shop.payments'); SELECT effective_key FROM shop.seen
			  WHERE effective_key = 'seen'}) =~ /^seen$/m,
		1, "$name: the table's own trigger");
	return;
}

# Tests that claims and results made before count, and that every function works.
# (All is done in the one session that listens.)
sub goes_on
{
	my ($node, $database, $schema, $table, $what) = @_;
	my $session = $node->session(database => $database);
	my $f       = "$schema.idemkit_";
	my ($token, $old_token, $old_fence) = map {
		$node->safe_psql($database, "SELECT $_->[0] FROM $table t, LATERAL ${f}get(t.effective_key, '$table') r"
			  . " WHERE t.effective_key = '$_->[1]'")
	} [ 't.claim_token', 'claimed' ], [ 't.claim_token', 'over' ], [ 'r.fence', 'over' ];

	$session->query_safe('LISTEN idemkit_completions');
	is($session->query_safe("SELECT result, our_claim_token IS NULL, fingerprint_matches
			FROM ${f}claim('claimed', 'print', 3, records => '$table')"),
		'already_claimed|t|t', "$what: a live claim is nobody else's");
	is($session->query_safe("SELECT ${f}complete('claimed', repeat('0', 32), records => '$table')"),
		'f', "$what: a token that is not its own");
	is($session->query_safe("SELECT ${f}renew('claimed', '$token', 60, records => '$table')"),
		't', "$what: renewed by its owner");
	is($session->query_safe("SELECT ${f}guard('claimed', '$token', records => '$table')"),
		'', "$what: guarded by its owner");
	$session->query_safe("SET idemkit.notify = 'awaited'");
	my $output = $session->query("SELECT ${f}complete('claimed', '$token', 201, '{}', '\\x0001', records => '$table')");
	like($output, qr/^t$/m, "$what: completed by its owner");
	like($output . "\n" . $session->query('SELECT'), qr/"claimed" received/,
		"$what: and announced, since somebody awaited it before");
	is($session->query_safe("SELECT result, response_status, response_body
			FROM ${f}claim('claimed', records => '$table')"),
		'already_completed|201|\x0001', "$what: then replayed");

	is($session->query_safe("SELECT result, length(response_body), our_claim_token IS NULL
			FROM ${f}claim('body 4', records => '$table')"),
		'already_completed|640000|t', "$what: a large result is replayed");
	is($session->query_safe("SELECT result, response_body IS NULL, response_headers IS NULL
			FROM ${f}claim('body 1', records => '$table')"),
		'already_completed|t|t', "$what: one without a body");

	is($session->query_safe("SELECT result, attempts, fence > $old_fence FROM ${f}claim('over', records => '$table')"),
		'lease_reclaimed|2|t', "$what: a lease that was over is taken over");
	is($session->query_safe("SELECT ${f}complete('over', '$old_token', records => '$table')"),
		'f', "$what: and the old token is worth nothing");
	$session->query_safe('UNLISTEN *');
	$node->all_verbs_work($session, $what, $schema, $table);
	$session->quit;
	return;
}

# By dump, with the programs of the newer version, as its documentation says.
$copies->value('CREATE ROLE app LOGIN');
foreach my $database (sort keys %databases)
{
	my $file = $old->basedir . "/$database.dump";

	$copies->command_ok([ 'pg_dump', '-F', 'custom', '-f', $file, '-d', $old->connstr($database) ],
		"pg_dump of $database");
	$copies->value("CREATE DATABASE copy_of_$database TEMPLATE template0");
	$copies->command_ok([ 'pg_restore', '--exit-on-error', '-d', "copy_of_$database", $file ],
		"restored without an error");
}
same_as_before($copies, 'restored', 'copy_of_');
$copies->stop;
$copies->log_is_clean;

# By pg_upgrade.  It writes into its working directory.
$old->stop;
my $directory = getcwd;
chdir $new->basedir or die "cannot change into " . $new->basedir . ": $!";
$new->command_ok(
	[
		'pg_upgrade',
		'-b', $old_bindir, '-B', $new_bindir,
		'-d', $old->data_dir, '-D', $new->data_dir,
		'-s', $new->host, '-p', $old->port, '-P', $new->port
	],
	'pg_upgrade');
chdir $directory or die "cannot change into $directory: $!";
$new->start;
is($new->value('SHOW idemkit.notify'), 'awaited', 'upgraded: a setting of the database');
same_as_before($new, 'upgraded', '');
$new->value('DROP TABLE shop.payments');
is($new->sqlstate('DROP TABLE idemkit_records'), '2BP01', 'upgraded: the own table belongs to the extension');
$new->value('DROP EXTENSION idemkit; CREATE EXTENSION idemkit');
is($new->value("SELECT result FROM idemkit_claim('claimed')"), 'new_claimed', 'upgraded: dropped and created anew');
$new->stop;
$new->log_is_clean;

done_testing();
