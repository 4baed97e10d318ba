--
-- What CREATE EXTENSION makes, where, and what DROP EXTENSION leaves.
--
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS idemkit;
CREATE EXTENSION idemkit;
RESET client_min_messages;

SELECT extrelocatable FROM pg_extension WHERE extname = 'idemkit';

-- Its members; the types that come with a table or a type are left out.
CREATE TEMPORARY VIEW members AS
SELECT classid, objid, pg_describe_object(classid, objid, 0) AS member
FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idemkit')
AND NOT (classid = 'pg_type'::regclass AND NOT EXISTS (
    SELECT FROM pg_type AS t JOIN pg_class AS c ON c.oid = typrelid
    WHERE t.oid = objid AND relkind = 'c'));
SELECT member FROM members ORDER BY member COLLATE "C";

-- Signatures: names, order and defaults of arguments are fixed.
SELECT proname || '(' || regexp_replace(pg_get_function_arguments(oid), '\mIN ', '', 'g') || ')'
           AS signature,
       pg_get_function_result(oid) AS result
FROM pg_proc WHERE proname LIKE 'idemkit\_%' ORDER BY proname COLLATE "C";

-- Nobody's rights but the caller's; NULLs reach the function; a result that
-- depends on a table is volatile.
SELECT proname, provolatile, proisstrict, proparallel, prosecdef, proleakproof
FROM pg_proc WHERE proname LIKE 'idemkit\_%'
AND (provolatile, proisstrict, proparallel, prosecdef, proleakproof)
    IS DISTINCT FROM ('v', false, 'u', false, false)
ORDER BY proname;

-- Everything has a comment.
SELECT member AS without_comment FROM members
WHERE obj_description(objid, classid::regclass::name) IS NULL;

-- Columns of the table and of the composite types.
SELECT attname, format_type(atttypid, atttypmod) AS type, attnotnull AS not_null,
       pg_get_expr(adbin, adrelid) AS default,
       (SELECT collname FROM pg_collation AS c WHERE c.oid = attcollation) AS collation
FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = 'idemkit_records'::regclass AND attnum > 0 ORDER BY attnum;
SELECT indexdef FROM pg_indexes WHERE tablename = 'idemkit_records' ORDER BY indexname;
SELECT pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = 'idemkit_records'::regclass AND contype IN ('c', 'p') ORDER BY contype;
SELECT c.relname AS type, string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', '
                                     ORDER BY attnum) AS columns
FROM pg_class AS c JOIN pg_attribute AS a ON attrelid = c.oid
WHERE c.relname LIKE 'idemkit\_%' AND relkind = 'c' AND NOT attisdropped
GROUP BY c.relname ORDER BY c.relname COLLATE "C";

-- A dump keeps its rows, and all of them.
SELECT extconfig = ARRAY['idemkit_records'::regclass::oid] AS dumped, extcondition
FROM pg_extension WHERE extname = 'idemkit';

-- It belongs to whoever created the extension, and nobody else may use it yet.
SELECT pg_get_userbyid(relowner) = current_user AS mine, relacl FROM pg_class
WHERE oid = 'idemkit_records'::regclass;

-- Dropping the extension takes its table along and leaves the others.
SELECT idemkit_create_table('install_records');
SELECT result FROM idemkit_claim('k', records => 'install_records');
DROP EXTENSION idemkit;
SELECT to_regclass('idemkit_records'), to_regproc('idemkit_claim'), to_regtype('idemkit_record');
SELECT effective_key, state FROM install_records;

-- Into another schema, under the eyes of the same session; the table from
-- before goes on working.
CREATE SCHEMA install_one;
CREATE EXTENSION idemkit SCHEMA install_one;
SELECT result FROM install_one.idemkit_claim('k');
SELECT result FROM install_one.idemkit_claim('k', records => 'install_records');
SELECT effective_key FROM install_one.idemkit_records;
DROP EXTENSION idemkit;
CREATE EXTENSION idemkit SCHEMA install_one;
SELECT result FROM install_one.idemkit_claim('k');
DROP EXTENSION idemkit;

-- A table of the same name that is there already is not taken over.
CREATE TABLE install_one.idemkit_records (id integer);
\set VERBOSITY sqlstate
CREATE EXTENSION idemkit SCHEMA install_one;
\set VERBOSITY default
SELECT count(*) FROM pg_attribute
WHERE attrelid = 'install_one.idemkit_records'::regclass AND attnum > 0;
DROP TABLE install_one.idemkit_records;
SET search_path = install_one;
CREATE TABLE idemkit_records (LIKE public.install_records INCLUDING ALL);
RESET search_path;
\set VERBOSITY sqlstate
CREATE EXTENSION idemkit SCHEMA install_one;
\set VERBOSITY default
SELECT count(*) FROM pg_extension WHERE extname = 'idemkit';

-- Undone with its transaction.
BEGIN;
CREATE EXTENSION idemkit;
SELECT result FROM idemkit_claim('k');
ROLLBACK;
SELECT count(*) FROM pg_extension WHERE extname = 'idemkit';
CREATE EXTENSION idemkit;
SELECT result FROM idemkit_claim('k');

-- The extension's own table cannot be dropped alone, nor detached by mistake.
\set VERBOSITY sqlstate
DROP TABLE idemkit_records;
\set VERBOSITY default
SET client_min_messages = warning;
DROP SCHEMA install_one CASCADE;
DROP TABLE install_records;
