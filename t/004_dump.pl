# pg_dump and pg_restore carry every record of every records table; DROP
# EXTENSION leaves the tables that it did not make.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IdemkitNode;
use Test::More;

my $node = IdemkitNode->launch('main');

# All there is to know of a table's rows.  bytea and floats print exactly.
sub rows
{
	my ($database, $table) = @_;

	return $node->safe_psql($database,
		"SET timezone = 'UTC'; SELECT to_jsonb(t) FROM $table t ORDER BY effective_key");
}

# Columns, defaults, constraints, indexes and storage parameters of a table.
sub layout
{
	my ($database, $table) = @_;

	return $node->safe_psql($database, qq{
		SELECT attnum, attname, format_type(atttypid, atttypmod), attnotnull, attcollation::regcollation,
			pg_get_expr(adbin, adrelid)
		FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		WHERE attrelid = '$table'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum;
		SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
		WHERE conrelid = '$table'::regclass ORDER BY conname;
		SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = '$table'::regclass ORDER BY 1;
		SELECT relpersistence, array_to_string(reloptions, ',') FROM pg_class WHERE oid = '$table'::regclass});
}

# Fills a table with a record of every kind.
sub fill
{
	my ($database, $schema, $table) = @_;
	my $records = "records => '$table'::regclass";
	my $f       = "$schema.idemkit_";

	$node->safe_psql($database, qq{
		SELECT ${f}claim('claimed', 'print', 3, 600, $records);
		SELECT ${f}claim('ключ ''quoted'' \\ back' || chr(9) || chr(10) || '\\.', $records);
		SELECT ${f}claim(repeat(chr(8364), 341), $records);
		SELECT ${f}claim('body ' || n, $records) FROM generate_series(1, 6) n;
		SELECT ${f}complete(r.effective_key, r.claim_token, n, h, b, 3600, '$table')
		FROM (VALUES
			(1, NULL::int, NULL::jsonb, NULL::bytea),
			(2, 200, '{}', ''),
			(3, -5, '{"a": "ü", "b": [1, 2.50, null], "c": {"d": "\\u0001\\\\"}}', '\\x00ff5c0a0d09'),
			(4, 2147483647, NULL, (SELECT string_agg(sha256(i::text::bytea), '') FROM generate_series(1, 20000) i)),
			(5, 0, '{"k": "v"}', convert_to(repeat('x', 100000), 'UTF8'))) v (n, s, h, b)
		JOIN $table r ON r.effective_key = 'body ' || v.n;
		UPDATE $table SET lease_until = clock_timestamp() - interval '1 day' WHERE effective_key = 'body 6';
		SELECT ${f}claim('body 6', $records);
		UPDATE $table SET awaited = true WHERE effective_key = 'claimed';
		SELECT ${f}claim('lapsed', $records);
		UPDATE $table SET lease_until = 'infinity' WHERE effective_key = 'lapsed'});
	return;
}

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
		fill($database, $schema, $table);
		$rows{$table}   = rows($database, $table);
		$layout{$table} = layout($database, $table);
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
			is(rows($copy, $table), $rows{$table}, "$database, $format: every column of every row of $table");
			is(layout($copy, $table), $layout{$table}, "$database, $format: layout of $table");
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
my %kept = map { ($_ => rows('postgres', $_)) } 'orders', 'scratch', 'elsewhere.payments';
is($node->sqlstate('DROP TABLE idemkit_records'), '2BP01', 'the own table cannot be dropped by itself');
$node->value('DROP EXTENSION idemkit');
is($node->value("SELECT to_regclass('idemkit_records') IS NULL, count(*) FROM pg_proc WHERE proname LIKE 'idemkit%'"),
	't|0', 'DROP EXTENSION removes its table and its functions');
is(rows('postgres', $_), $kept{$_}, "DROP EXTENSION leaves $_ with its rows") foreach sort keys %kept;
$node->value('CREATE EXTENSION idemkit');
is($node->value("SELECT result, length(response_body) FROM idemkit_claim('body 4', records => 'orders')"),
	'already_completed|640000', 'and a new CREATE EXTENSION works with it');
is($node->value('SELECT count(*) FROM idemkit_records'), '0', 'the new own table is empty');
$node->value('DROP TABLE orders');
is($node->sqlstate("SELECT idemkit_get('k', 'elsewhere.payments')"), '00000',
	'a custom table can be dropped without the extension');

$node->log_is_clean;
done_testing();
