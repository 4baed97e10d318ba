# Records of every kind in a records table, and all there is to know of a table: for
# tests that carry records from one database to another.
package StoredRecords;

use strict;
use warnings;

# Fills an empty table with ten records; the extension is in that schema.
sub fill
{
	my ($node, $database, $schema, $table) = @_;
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

# Every column of every row of a table.  bytea and floats print exactly.
sub rows
{
	my ($node, $database, $table) = @_;

	return $node->safe_psql($database,
		"SET timezone = 'UTC'; SELECT to_jsonb(t) FROM $table t ORDER BY effective_key");
}

# Columns, defaults, constraints, indexes and storage parameters of a table.  (From
# version 18 on NOT NULL, which the columns tell, is a constraint besides.)
sub layout
{
	my ($node, $database, $table) = @_;

	return $node->safe_psql($database, qq{
		SELECT attnum, attname, format_type(atttypid, atttypmod), attnotnull, attcollation::regcollation,
			pg_get_expr(adbin, adrelid)
		FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		WHERE attrelid = '$table'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum;
		SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
		WHERE conrelid = '$table'::regclass AND contype <> 'n' ORDER BY conname;
		SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = '$table'::regclass ORDER BY 1;
		SELECT relpersistence, array_to_string(reloptions, ',') FROM pg_class WHERE oid = '$table'::regclass});
}

1;
