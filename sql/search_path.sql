--
-- No search_path redirects what the functions do: objects of a schema that
-- comes first do not stand in for operators, functions, types or tables.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

CREATE SCHEMA search_path_evil;
CREATE TABLE search_path_evil.idemkit_records (LIKE idemkit_records INCLUDING ALL);
CREATE TABLE search_path_log (what text);
-- Operators, functions and types that tell on whoever uses them.
CREATE FUNCTION search_path_evil.text_equal(text, text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.search_path_log VALUES ('='); RETURN true; END $$;
CREATE FUNCTION search_path_evil.time_before(timestamptz, timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.search_path_log VALUES ('<'); RETURN true; END $$;
CREATE FUNCTION search_path_evil.time_not_before(timestamptz, timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.search_path_log VALUES ('>='); RETURN true; END $$;
CREATE FUNCTION search_path_evil.name_equal(name, text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.search_path_log VALUES ('name ='); RETURN true; END $$;
CREATE OPERATOR search_path_evil.= (LEFTARG = text, RIGHTARG = text,
                                    FUNCTION = search_path_evil.text_equal);
CREATE OPERATOR search_path_evil.< (LEFTARG = timestamptz, RIGHTARG = timestamptz,
                                    FUNCTION = search_path_evil.time_before);
CREATE OPERATOR search_path_evil.>= (LEFTARG = timestamptz, RIGHTARG = timestamptz,
                                     FUNCTION = search_path_evil.time_not_before);
CREATE OPERATOR search_path_evil.= (LEFTARG = name, RIGHTARG = text,
                                    FUNCTION = search_path_evil.name_equal);
CREATE FUNCTION search_path_evil.telling(text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.search_path_log VALUES ($1); END $$;
CREATE FUNCTION search_path_evil.unnest(text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN PERFORM search_path_evil.telling('unnest'); RETURN NEXT 'evil'; END $$;
CREATE FUNCTION search_path_evil.count() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN PERFORM search_path_evil.telling('count'); RETURN 666; END $$;
CREATE FUNCTION search_path_evil.max(timestamptz) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN PERFORM search_path_evil.telling('max'); RETURN 'infinity'; END $$;
CREATE FUNCTION search_path_evil.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN PERFORM search_path_evil.telling('clock_timestamp'); RETURN 'infinity'; END $$;
CREATE FUNCTION search_path_evil.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM search_path_evil.telling('pg_notify'); END $$;
CREATE DOMAIN search_path_evil.text AS pg_catalog.varchar;
CREATE DOMAIN search_path_evil.timestamptz AS pg_catalog.text;
CREATE DOMAIN search_path_evil.jsonb AS pg_catalog.text;
CREATE DOMAIN search_path_evil.bytea AS pg_catalog.text;
CREATE TABLE search_path_evil.pg_extension (extname text);
CREATE TABLE search_path_evil.pg_depend (objid oid);
CREATE TABLE search_path_evil.pg_class (oid oid);

-- A new session, whose first look at anything has that path.
\c -
SET search_path = search_path_evil, public, pg_catalog;
SELECT result, attempts FROM idemkit_claim('k', 'print');
SELECT result, fingerprint_matches FROM idemkit_claim('k', 'print');
SELECT result FROM idemkit_claim('other');
SELECT claim_token AS token FROM public.idemkit_records
WHERE effective_key OPERATOR(pg_catalog.=) 'k' \gset
SELECT idemkit_renew('k', 'wrong') AS renew, idemkit_complete('k', 'wrong') AS complete,
       idemkit_release('k', 'wrong') AS release, idemkit_release('k', 'wrong', true) AS keeping;
SELECT idemkit_renew('k', :'token') AS renew, idemkit_guard('k', :'token') AS guard,
       idemkit_release('k', :'token', true) AS release_keeping;
SELECT result, attempts, our_claim_token AS token FROM idemkit_claim('k', 'print') \gset
SELECT idemkit_complete('k', :'token', 200, '{}', 'body') AS complete;
SELECT result, response_status FROM idemkit_claim('k', 'print');
SELECT state FROM idemkit_get('k');
SELECT idemkit_vacuum(), idemkit_vacuum(1000), idemkit_vacuum(1000, 1000, 5);
SELECT idemkit_verify_schema();
SELECT idemkit_create_table('idemkit_records');
SELECT idemkit_create_table('search_path_records');
SELECT idemkit_verify_schema('search_path_records');
SELECT result FROM idemkit_claim('k', records => 'search_path_records');
SELECT idemkit_effective_key('tenant', 'orders', 'key');

-- Nobody told, and the right table has the rows.
RESET search_path;
SELECT what, count(*) FROM search_path_log GROUP BY what;
SELECT effective_key, state FROM idemkit_records ORDER BY 1;
SELECT count(*) FROM search_path_evil.idemkit_records;
SELECT effective_key FROM search_path_evil.search_path_records;
SELECT attname, atttypid::regtype FROM pg_attribute
WHERE attrelid = 'search_path_evil.search_path_records'::regclass AND attnum > 0 ORDER BY attnum;

-- A temporary table does not stand in either, nor does an empty path.
CREATE TEMPORARY TABLE idemkit_records (LIKE public.idemkit_records INCLUDING ALL);
SELECT result FROM idemkit_claim('k', 'print');
SET search_path = '';
SELECT result FROM public.idemkit_claim('k', 'print');
SELECT public.idemkit_vacuum();
RESET search_path;
SELECT count(*) FROM pg_temp.idemkit_records;
DROP TABLE pg_temp.idemkit_records;

-- The caller's path is the caller's again, also after an error.
SET search_path = search_path_evil, public;
\set VERBOSITY sqlstate
SELECT public.idemkit_create_table('no good');
SELECT public.idemkit_create_table('pg_extension');
\set VERBOSITY default
SHOW search_path;
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA search_path_evil CASCADE;
DROP TABLE search_path_log;
