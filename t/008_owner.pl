# The owner of a database, no superuser, can install the extension, owns its
# table, and can let others use it.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->prepare('main');
$node->start;
$node->value('CREATE ROLE owner LOGIN; CREATE ROLE app LOGIN; CREATE ROLE other LOGIN');
$node->value('CREATE DATABASE shop OWNER owner');
my @owner = (extra_params => [ '-U', 'owner' ]);

is($node->sqlstate('CREATE EXTENSION idemkit', 'other', 'shop'), '42501', 'not just anybody can install it');
is($node->sqlstate('CREATE EXTENSION idemkit', 'owner', 'shop'), '00000', 'the owner of the database can');
is($node->safe_psql('shop', q{SELECT tableowner FROM pg_tables WHERE tablename = 'idemkit_records'}, @owner),
	'owner', 'the owner of the database owns the table');
is($node->safe_psql('shop', q{
		SELECT our_claim_token AS token FROM idemkit_claim('k') \gset
		SELECT idemkit_complete('k', :'token', 200);
		SELECT result, response_status FROM idemkit_claim('k')}, @owner),
	"t\nalready_completed|200", 'and uses it');
is($node->sqlstate("SELECT idemkit_claim('k')", 'app', 'shop'), '42501', 'nobody else may');
is($node->sqlstate('GRANT SELECT, INSERT, UPDATE, DELETE ON idemkit_records TO app', 'owner', 'shop'),
	'00000', 'the owner can grant it');
is($node->sqlstate("SELECT idemkit_claim('k2')", 'app', 'shop'), '00000', 'to a role that can then use it');
is($node->sqlstate(q{ALTER TABLE idemkit_records SET (fillfactor = 80);
		CREATE POLICY p ON idemkit_records USING (true);
		ALTER TABLE idemkit_records ENABLE ROW LEVEL SECURITY}, 'owner', 'shop'),
	'00000', 'and can tune and protect it');
is($node->sqlstate("SELECT idemkit_create_table('orders'); SELECT idemkit_claim('k', records => 'orders')", 'owner', 'shop'),
	'00000', 'and makes tables');

# The owner's dump restores into a database of the owner, without a superuser.
$node->value('CREATE DATABASE copy OWNER owner TEMPLATE template0');
my $file = $node->basedir . '/shop.dump';
$node->command_ok([ 'pg_dump', '-U', 'owner', '-Fc', '-f', $file, 'shop' ], 'pg_dump by the owner');
$node->command_ok([ 'pg_restore', '-U', 'owner', '--no-comments', '--exit-on-error', '-d', 'copy', $file ],
	'pg_restore by the owner');
is($node->safe_psql('copy', 'SELECT effective_key, state FROM idemkit_records ORDER BY 1', @owner),
	"k|COMPLETED\nk2|CLAIMED", 'with the records');

is($node->sqlstate('DROP EXTENSION idemkit', 'app', 'shop'), '42501', 'others cannot drop it');
is($node->sqlstate('DROP EXTENSION idemkit', 'owner', 'shop'), '00000', 'the owner can');
is($node->safe_psql('shop', q{SELECT count(*) FROM orders}, @owner), '1', 'and keeps the custom table');

# A table of the extension's name that is there already is not taken over: the
# script runs as superuser and must not touch what others have put there.
foreach my $case (
	[ 'some table', 'CREATE TABLE idemkit_records (id int)' ],
	[ 'a view', 'CREATE VIEW idemkit_records AS SELECT 1 AS id' ],
	[ 'a records table of another role', 'CREATE TABLE idemkit_records (LIKE orders INCLUDING ALL)' ])
{
	my ($name, $sql) = @$case;

	$node->safe_psql('shop', "GRANT CREATE ON SCHEMA public TO other; GRANT SELECT ON orders TO other", @owner);
	$node->safe_psql('shop', $sql, extra_params => [ '-U', 'other' ]);
	is($node->sqlstate('CREATE EXTENSION idemkit', 'owner', 'shop'),
		'42P07', "CREATE EXTENSION is refused where $name has the name of its table");
	is($node->safe_psql('shop', q{SELECT rolname FROM pg_class c JOIN pg_roles r ON r.oid = relowner
			WHERE relname = 'idemkit_records'}),
		'other', "which goes on belonging to whom it belonged: $name");
	$node->safe_psql('shop', $sql =~ /VIEW/ ? 'DROP VIEW idemkit_records' : 'DROP TABLE idemkit_records');
}
is($node->sqlstate('CREATE EXTENSION idemkit', 'owner', 'shop'), '00000', 'without it, it works');

$node->log_is_clean;
done_testing();
