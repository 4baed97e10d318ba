# A foreign table is no records table, whatever its columns: every function refuses it
# with 55000, and reads and writes nothing there.  As a child of a records table it is
# what any child is: its rows are found, settled and removed.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main', "idemkit.notify = 'never'");

foreach my $extension ('postgres_fdw', 'file_fdw')
{
	plan skip_all => "unavailable: $extension"
	  if $node->value("SELECT count(*) FROM pg_available_extensions WHERE name = '$extension'") eq '0';
	$node->value("CREATE EXTENSION $extension");
}

my ($host, $port) = ($node->host, $node->port);
$node->value(qq{
	SELECT idemkit_create_table('remote');
	CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '$host', port '$port', dbname 'postgres');
	CREATE USER MAPPING FOR PUBLIC SERVER here;
	CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
	DO \$\$
	DECLARE
		columns text := (SELECT string_agg(format('%I %s%s%s', attname, format_type(atttypid, atttypmod),
				CASE attname WHEN 'effective_key' THEN ' COLLATE "C"' END, CASE WHEN attnotnull THEN ' NOT NULL' END), ', ' ORDER BY attnum)
			FROM pg_attribute WHERE attrelid = 'remote'::regclass AND attnum > 0);
	BEGIN
		EXECUTE 'CREATE FOREIGN TABLE far (' || columns || ') SERVER here OPTIONS (table_name ''remote'')';
		EXECUTE 'CREATE FOREIGN TABLE file (' || columns || ') SERVER files OPTIONS (filename ''/dev/null'')';
	END \$\$});
is($node->value('SELECT count(*) FROM far, file'), '0', 'the foreign tables can be read');

foreach my $table ('far', 'file')
{
	foreach my $call (
		"idemkit_claim('k', records => '$table')",
		"idemkit_claim_many(ARRAY['k'], records => '$table')",
		"idemkit_renew('k', 't', records => '$table')",
		"idemkit_guard('k', 't', '$table')",
		"idemkit_complete('k', 't', records => '$table')",
		"idemkit_complete_many(ARRAY['k'], ARRAY['t'], records => '$table')",
		"idemkit_release('k', 't', records => '$table')",
		"idemkit_get('k', '$table')",
		"idemkit_subscribe(ARRAY['k'], '$table')",
		"idemkit_wait('k', 0, '$table')",
		"idemkit_vacuum(records => '$table')",
		"idemkit_stats('$table')",
		"idemkit_verify_schema('$table')",
		"idemkit_create_table('$table')")
	{
		is($node->sqlstate("SELECT $call"), '55000', $call);
	}
	is($node->sqlstate("CALL idemkit_sweep(records => '$table')"), '55000', "idemkit_sweep of $table");
}
is($node->value('SELECT count(*) FROM remote'), '0', 'nothing has come to the table behind it');

# A foreign child.  In a session whose direct way to the rows was open before.
my $session = $node->session;
$node->value(q{
	SELECT idemkit_create_table('parent');
	SELECT idemkit_claim('remote key', records => 'remote');
	SELECT idemkit_claim('remote result', records => 'remote');
	UPDATE remote SET claim_token = 'token'});
is($session->query_safe("SELECT result FROM idemkit_claim('local key', records => 'parent')"), 'new_claimed', 'a table without children');
$node->value('ALTER TABLE parent DROP CONSTRAINT parent_state_check; ALTER FOREIGN TABLE far INHERIT parent');
is($session->query_safe("SELECT result FROM idemkit_claim('remote key', records => 'parent')"),
	'already_claimed', 'a row of a foreign child that came later is seen');
is($session->query_safe("SELECT result FROM idemkit_claim('local key', records => 'parent')"), 'already_claimed', 'beside those of the table');
is($session->query_safe("SELECT idemkit_renew('remote key', 'token', 60, 'parent'),
		idemkit_complete('remote result', 'token', 201, records => 'parent'), idemkit_complete('remote key', 'wrong', records => 'parent')"),
	't|t|f', 'it is renewed and completed');
is($session->query_safe("SELECT result, response_status FROM idemkit_claim('remote result', records => 'parent')"),
	'already_completed|201', 'and replayed');
is($node->value("SELECT result, response_status FROM idemkit_claim('remote result', records => 'remote')"),
	'already_completed|201', 'also where it is');
is($session->query_safe("SELECT idemkit_release('remote key', 'token', records => 'parent')"), 't', 'and released');
is($node->value("SELECT string_agg(effective_key, ' ') FROM remote"), 'remote result', 'where it was');
$node->value('ALTER FOREIGN TABLE far NO INHERIT parent');
is($session->query_safe("SELECT count(*) FROM idemkit_get('remote result', 'parent')"), '0', 'a child that has left is not');
$session->quit;

$node->log_is_clean;
done_testing();
