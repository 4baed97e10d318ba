# The extension works in any schema, whatever the search_path, and follows its
# objects when they are moved and renamed under a running session.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->prepare('main');
$node->start;
$node->value(q{
	CREATE SCHEMA "Keys & more";
	CREATE SCHEMA moved;
	CREATE EXTENSION idemkit SCHEMA "Keys & more"});
is($node->value(q{
		SELECT DISTINCT nspname FROM pg_depend d
		JOIN LATERAL (SELECT pronamespace AS ns FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = objid
			UNION ALL SELECT typnamespace FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = objid
			UNION ALL SELECT relnamespace FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = objid) o ON true
		JOIN pg_namespace n ON n.oid = ns
		WHERE refclassid = 'pg_extension'::regclass
			AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idemkit')}),
	'Keys & more', 'every object of the extension is in the schema it was given');

my $session = $node->session;

$node->all_verbs_work($session, 'in a schema that needs quotes, not on the search_path', '"Keys & more"');
$session->query_safe(q{SET search_path = ''});
$node->all_verbs_work($session, 'with an empty search_path', '"Keys & more"');

$node->value('ALTER EXTENSION idemkit SET SCHEMA moved');
$node->all_verbs_work($session, 'after ALTER EXTENSION SET SCHEMA, in a session that had plans', 'moved');
$node->value('ALTER SCHEMA moved RENAME TO renamed');
$node->all_verbs_work($session, 'after the schema was renamed', 'renamed');
$node->value('ALTER TABLE renamed.idemkit_records RENAME TO "Own table"');
$node->all_verbs_work($session, 'after the own table was renamed', 'renamed');
$node->value('ALTER TABLE renamed."Own table" SET SCHEMA "Keys & more"');
$node->all_verbs_work($session, 'after the own table was moved away from the functions', 'renamed');

# Another table takes the old name: it is another table.
$node->value(q{
	ALTER TABLE "Keys & more"."Own table" RENAME TO idemkit_records;
	ALTER TABLE "Keys & more".idemkit_records SET SCHEMA renamed;
	SET search_path = "Keys & more";
	SELECT renamed.idemkit_create_table('idemkit_records')});
$session->query_safe('SET search_path = "Keys & more"');
is($session->query_safe(q{SELECT result FROM renamed.idemkit_claim('whose')}), 'new_claimed', 'claim');
is($node->value('SELECT count(*) FROM renamed.idemkit_records'),
	'1', 'the own table is meant, not one of its name that is first on the search_path');
is($node->value('SELECT count(*) FROM "Keys & more".idemkit_records'), '0', 'which stays empty');

# Tables of custom names, moved, dropped and made again under the session.
$node->value("SELECT renamed.idemkit_create_table('orders')");
$node->all_verbs_work($session, 'a custom table', 'renamed', 'public.orders');
my $oid = $node->value("SELECT 'orders'::regclass::oid");
$node->value('ALTER TABLE orders RENAME TO "Orders; DROP TABLE x"');
$node->all_verbs_work($session, 'a custom table that was renamed to something that needs quotes', 'renamed', $oid);
$node->value('DROP TABLE "Orders; DROP TABLE x"');
$session->query('\set VERBOSITY sqlstate');
is($node->session_sqlstate($session, "SELECT renamed.idemkit_claim('k', records => $oid)"),
	'42P01', 'a custom table that was dropped');
$node->value("SELECT renamed.idemkit_create_table('orders')");
$node->all_verbs_work($session, 'a custom table made again under its name', 'renamed', 'public.orders');

# The extension dropped and made again, elsewhere, under the session.
$node->value('DROP EXTENSION idemkit; CREATE EXTENSION idemkit SCHEMA public');
$node->all_verbs_work($session, 'the extension dropped and created in another schema', 'public');
is($session->query_safe("SELECT result FROM public.idemkit_claim('whose')"), 'new_claimed', 'with a new table');

# A search_path in front of which somebody put traps.
$node->value(q{
	CREATE SCHEMA trap;
	CREATE FUNCTION trap.boom(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION trap.boom(timestamptz, timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.boom);
	CREATE OPERATOR trap.= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = trap.boom);
	CREATE OPERATOR trap.< (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = trap.boom);
	CREATE TABLE trap.idemkit_records (effective_key text);
	CREATE DOMAIN trap.text AS integer;
	CREATE DOMAIN trap.timestamptz AS integer;
	CREATE DOMAIN trap.boolean AS integer});
$session->quit;
$session = $node->session;
$session->query_safe('SET search_path = trap, pg_catalog, public');
$node->all_verbs_work($session, 'operators, types and a table that shadow ours', 'public');
is($session->query_safe("SELECT public.idemkit_create_table('laid_bare')"), 'laid_bare', 'create a table there');
$node->all_verbs_work($session, 'a table made with that search_path', 'public', 'trap.laid_bare');
is($session->query_safe('SHOW search_path'), 'trap, pg_catalog, public', 'the search_path is left as it was');
$session->quit;

# As a newcomer does it.
$node->value('CREATE DATABASE fresh');
$node->safe_psql('fresh', 'CREATE SCHEMA x; CREATE EXTENSION idemkit SCHEMA x');
is($node->safe_psql('fresh', "SELECT result FROM x.idemkit_claim('k')"), 'new_claimed', 'CREATE EXTENSION … SCHEMA x');
$node->safe_psql('fresh', 'DROP EXTENSION idemkit; CREATE EXTENSION idemkit');
is($node->safe_psql('fresh', "SELECT result FROM idemkit_claim('k')"), 'new_claimed', 'dropped and created anew');

$node->log_is_clean;
done_testing();
