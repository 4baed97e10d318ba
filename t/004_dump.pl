# pg_dump and pg_restore carry every record of every records table; DROP
# EXTENSION leaves the tables that it did not make.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use StoredRecords;
use Test::More;

my $node = IdemkitNode->launch('main');

$node->value(q{
	CREATE ROLE clerk;
	GRANT SELECT, UPDATE ON idemkit_records TO clerk;
	SELECT idemkit_create_table('orders');
	SELECT idemkit_create_table('scratch', unlogged => true);
	CREATE SCHEMA elsewhere;
	SET search_path = elsewhere, public;
	SELECT idemkit_create_table('payments');});
$node->value('CREATE DATABASE moved');
$node->safe_psql('moved', 'CREATE SCHEMA keys; CREATE EXTENSION idemkit SCHEMA keys;'
	  . " SELECT keys.idemkit_create_table('more')");

my %databases = (
	postgres => {
		schema => 'public',
		tables => [ 'idemkit_records', 'orders', 'scratch', 'elsewhere.payments' ]
	},
	moved => { schema => 'keys', tables => [ 'keys.idemkit_records', 'more' ] });

foreach my $database (sort keys %databases)
{
	my ($schema, $tables) = @{ $databases{$database} }{ 'schema', 'tables' };
	my (%rows, %layout);

	foreach my $table (@$tables)
	{
		StoredRecords::fill($node, $database, $schema, $table);
		$rows{$table}   = StoredRecords::rows($node, $database, $table);
		$layout{$table} = StoredRecords::layout($node, $database, $table);
		is(scalar(split(/\n/, $rows{$table})), 10, "$database: $table is filled");
	}

	foreach my $format ('custom', 'plain')
	{
		my $file = $node->basedir . "/$database.$format";
		my $copy = "${database}_$format";

		$node->command_ok([ 'pg_dump', '-F', $format, '-f', $file, $database ],
			"$database, $format: pg_dump");
		$node->value("CREATE DATABASE $copy TEMPLATE template0");
		$node->command_ok(
			$format eq 'custom'
			? [ 'pg_restore', '--exit-on-error', '-d', $copy, $file ]
			: [ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', $copy, '-f', $file ],
			"$database, $format: restored without an error");
		foreach my $table (@$tables)
		{
			is(StoredRecords::rows($node, $copy, $table), $rows{$table}, "$database, $format: every column of every row of $table");
			is(StoredRecords::layout($node, $copy, $table), $layout{$table}, "$database, $format: layout of $table");
			is($node->sqlstate("SELECT $schema.idemkit_verify_schema('$table')", undef, $copy),
				'00000', "$database, $format: $table is a complete records table");
		}
		is($node->safe_psql($copy, qq{
				SELECT result, our_claim_token IS NULL, length(response_body) FROM $schema.idemkit_claim('body 4');
				SELECT result, attempts FROM $schema.idemkit_claim('body 6');
				SELECT result FROM $schema.idemkit_claim('new')}),
			"already_completed|t|640000\nalready_claimed|2\nnew_claimed",
			"$database, $format: the copy goes on where the original was");
	}
}

is($node->safe_psql('postgres_custom', q{
		SELECT string_agg(p, ',') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
		WHERE has_table_privilege('clerk', 'idemkit_records', p)}),
	'SELECT,UPDATE', 'rights granted on the own table are dumped with it');

# DROP EXTENSION takes its own table along and no other.
my %kept = map { ($_ => StoredRecords::rows($node, 'postgres', $_)) } 'orders', 'scratch', 'elsewhere.payments';
is($node->sqlstate('DROP TABLE idemkit_records'), '2BP01', 'the own table cannot be dropped by itself');
$node->value('DROP EXTENSION idemkit');
is($node->value("SELECT to_regclass('idemkit_records') IS NULL, count(*) FROM pg_proc WHERE proname LIKE 'idemkit%'"),
	't|0', 'DROP EXTENSION removes its table and its functions');
is(StoredRecords::rows($node, 'postgres', $_), $kept{$_}, "DROP EXTENSION leaves $_ with its rows") foreach sort keys %kept;
$node->value('CREATE EXTENSION idemkit');
is($node->value("SELECT result, length(response_body) FROM idemkit_claim('body 4', records => 'orders')"),
	'already_completed|640000', 'and a new CREATE EXTENSION works with it');
is($node->value('SELECT count(*) FROM idemkit_records'), '0', 'the new own table is empty');
$node->value('DROP TABLE orders');
is($node->sqlstate("SELECT idemkit_get('k', 'elsewhere.payments')"), '00000',
	'a custom table can be dropped without the extension');

$node->log_is_clean;
done_testing();
