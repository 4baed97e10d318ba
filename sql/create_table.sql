--
-- idemkit_create_table: names, schema, idempotence.  Adoption of a table that
-- was made by the Python package is in adopt.sql.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- What a query that returns one value returns, or the SQLSTATE it raises.
CREATE FUNCTION pg_temp.outcome(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    value text;
BEGIN
    EXECUTE query INTO value;
    RETURN coalesce(value, 'null');
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE;
END $$;

-- The table has the layout, the index and the settings of the extension's own.
SELECT idemkit_create_table('create_one');
SELECT count(*) AS differences FROM (
    SELECT attname, atttypid, attnotnull, attcollation, pg_get_expr(adbin, adrelid), attnum
    FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = attrelid AND d.adnum = attnum
    WHERE attrelid IN ('create_one'::regclass, 'idemkit_records'::regclass) AND attnum > 0
    GROUP BY 1, 2, 3, 4, 5, 6 HAVING count(*) <> 2) AS different;
SELECT indexdef FROM pg_indexes WHERE tablename = 'create_one' ORDER BY indexname;
SELECT pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = 'create_one'::regclass AND contype IN ('c', 'p') ORDER BY contype;
SELECT a.reloptions = b.reloptions AS same_settings, a.relpersistence,
       pg_get_userbyid(a.relowner) = current_user AS mine
FROM pg_class AS a, pg_class AS b
WHERE a.oid = 'create_one'::regclass AND b.oid = 'idemkit_records'::regclass;
SELECT idemkit_verify_schema('create_one');
SELECT count(*) AS members FROM pg_depend WHERE objid = 'create_one'::regclass AND deptype = 'e';

-- It may be repeated, and keeps the rows.
SELECT result FROM idemkit_claim('k', records => 'create_one');
SELECT pg_relation_filenode('create_one') AS filenode \gset
SELECT idemkit_create_table('create_one');
SELECT idemkit_create_table('CREATE_One');
SELECT idemkit_create_table('create_one', true);
SELECT pg_relation_filenode('create_one') = :filenode AS same_file, relpersistence
FROM pg_class WHERE oid = 'create_one'::regclass;
SELECT result FROM idemkit_claim('k', records => 'create_one');
SELECT idemkit_create_table('idemkit_records');

-- Unlogged.
SELECT idemkit_create_table('create_unlogged', true);
SELECT relname, relpersistence FROM pg_class WHERE relname LIKE 'create_unlogged%' ORDER BY 1;

-- Names: one to 46 characters, folded to lower case; a key word is a name.
CREATE TEMPORARY TABLE names (i serial, name text);
INSERT INTO names (name) VALUES
    ('a'), ('_'), ('_1'), ('Create_Mixed'), ('create'), ('select'), ('user'),
    ('c234567890123456789012345678901234567890123456'),
    ('c2345678901234567890123456789012345678901234567'),
    (''), ('1a'), ('a b'), (' a'), ('a '), ('a.b'), ('"a"'), ('a"b'), ('a''b'), ('a;b'), ('a-b'),
    ('a$b'), ('a%sb'), (E'a\nb'), (U&'\00e9'), (U&'a\00e9'), (U&'\212a'), (repeat('a', 10000));
SELECT CASE WHEN length(name) = octet_length(name) THEN to_json(left(name, 47))::text
            ELSE 'beyond ASCII' END AS name, length(name),
       pg_temp.outcome(format('SELECT idemkit_create_table(%L)', name)) AS outcome
FROM names ORDER BY i;
SELECT result FROM idemkit_claim('k', records => '"select"');
SELECT result FROM idemkit_claim('k', records => 'c234567890123456789012345678901234567890123456');
SELECT indexname FROM pg_indexes
WHERE tablename = 'c234567890123456789012345678901234567890123456' ORDER BY 1;
DROP TABLE a, _, _1, create_mixed, "create", "select", "user",
    c234567890123456789012345678901234567890123456;

-- The current schema is where it is made, whatever that is called.
CREATE SCHEMA "Create ""Odd"" %s";
SET search_path = "Create ""Odd"" %s", public;
SELECT idemkit_create_table('create_one') = 'public.create_one'::regclass AS same;
SELECT result FROM idemkit_claim('k', records => 'create_one');
SELECT nspname, tablename, indexname FROM pg_indexes JOIN pg_namespace ON nspname = schemaname
WHERE tablename = 'create_one' ORDER BY 1, 3;
SELECT idemkit_verify_schema('create_one');
RESET search_path;
SELECT count(*) FROM create_one;

-- No current schema: 3F000.
SET search_path = create_nowhere;
SELECT public.idemkit_create_table('create_two');
SET search_path = '';
SELECT public.idemkit_create_table('create_two');
RESET search_path;

-- A name that is taken by something else: 55000, and it is left alone.
CREATE VIEW create_view AS SELECT 1 AS one;
CREATE SEQUENCE create_sequence;
CREATE TABLE create_other (id integer PRIMARY KEY, effective_key text);
SELECT pg_temp.outcome('SELECT idemkit_create_table(''create_view'')') AS view,
       pg_temp.outcome('SELECT idemkit_create_table(''create_sequence'')') AS sequence,
       pg_temp.outcome('SELECT idemkit_create_table(''create_other'')') AS other,
       pg_temp.outcome('SELECT idemkit_create_table(''create_one_pkey'')') AS index;
SELECT idemkit_create_table('create_other');
SELECT count(*) FROM pg_attribute WHERE attrelid = 'create_other'::regclass AND attnum > 0;

-- Created in a transaction that is rolled back, it is gone, and a claim in it.
BEGIN;
SELECT idemkit_create_table('create_rollback');
SELECT result FROM idemkit_claim('k', records => 'create_rollback');
ROLLBACK;
SELECT to_regclass('create_rollback');
SELECT idemkit_create_table('create_rollback');
SELECT result FROM idemkit_claim('k', records => 'create_rollback');

-- A read-only transaction makes none.
\set VERBOSITY sqlstate
BEGIN READ ONLY;
SELECT idemkit_create_table('create_read_only');
ROLLBACK;
\set VERBOSITY default
-- But one that is complete needs no writing.
BEGIN READ ONLY;
SELECT idemkit_create_table('create_rollback');
ROLLBACK;

SET client_min_messages = warning;
DROP SCHEMA "Create ""Odd"" %s" CASCADE;
DROP VIEW create_view;
DROP SEQUENCE create_sequence;
DROP TABLE create_one, create_unlogged, create_other, create_rollback;
