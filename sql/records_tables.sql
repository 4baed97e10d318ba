--
-- The argument "records": which tables are records tables.
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

CREATE SCHEMA records_other;
SET search_path = records_other;
SELECT public.idemkit_create_table('in_other');
RESET search_path;
SELECT idemkit_create_table('Records_Plain');
SELECT idemkit_create_table('records_unlogged', true);
SELECT idemkit_create_table('records_dropped') \gset
DROP TABLE records_dropped;

-- Each function works on the table it is given and on no other.
SELECT t, result, our_claim_token IS NOT NULL AS won
FROM (VALUES (NULL), ('records_plain'), ('records_other.in_other'), ('records_unlogged'),
             ('idemkit_records')) AS v (t),
     idemkit_claim('k', records => t::regclass);
SELECT count(*) FROM idemkit_records;
SELECT effective_key, state FROM records_other.in_other;
SELECT claim_token AS token FROM records_plain \gset
SELECT idemkit_renew('k', :'token'), idemkit_complete('k', :'token'),
       idemkit_release('k', :'token'), idemkit_release('k', :'token', true);
SELECT idemkit_renew('k', :'token', 30, 'records_plain') AS renew,
       idemkit_guard('k', :'token', 'records_plain') AS guard,
       idemkit_complete('k', :'token', 200, records => 'records_plain') AS complete;
SELECT state, response_status FROM idemkit_get('k', 'records_plain');
SELECT state FROM idemkit_get('k');
SELECT idemkit_release('k', claim_token, records => 'records_unlogged') FROM records_unlogged;
SELECT count(*) FROM records_unlogged;
SELECT idemkit_vacuum(0, records => 'records_plain');
SELECT count(*) FROM idemkit_records;
SELECT count(*) FROM records_plain;

-- Order of columns and further columns do not matter, nor does a constraint
-- that says the same as the primary key.
CREATE TABLE records_wide (
    note text DEFAULT 'x', attempts integer NOT NULL DEFAULT 1, awaited boolean NOT NULL,
    schema_version integer NOT NULL, response_body bytea, response_headers jsonb,
    response_status integer, completed_at timestamptz, lease_until timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL, claim_token text NOT NULL, fingerprint_version integer NOT NULL,
    fingerprint text NOT NULL, state text NOT NULL, effective_key text NOT NULL UNIQUE,
    tenant integer DEFAULT 7);
SELECT result FROM idemkit_claim('k', records => 'records_wide');
SELECT idemkit_complete('k', claim_token, 200, '{}', 'body', records => 'records_wide')
FROM records_wide;
SELECT result, response_status, response_headers, convert_from(response_body, 'UTF8') AS body
FROM idemkit_claim('k', records => 'records_wide');
SELECT note, tenant FROM records_wide;

-- A partitioned table.
CREATE TABLE records_parts (LIKE idemkit_records INCLUDING ALL) PARTITION BY HASH (effective_key);
CREATE TABLE records_part0 PARTITION OF records_parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE records_part1 PARTITION OF records_parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
SELECT result, count(*)
FROM generate_series(1, 20) AS i, idemkit_claim('k' || i % 10, records => 'records_parts')
GROUP BY result ORDER BY result;
SELECT count(*) > 0 AS used FROM records_part0;
SELECT count(*) > 0 AS used FROM records_part1;
SELECT count(*) FROM records_parts AS r,
       idemkit_complete(effective_key, claim_token, 200, expires_after_seconds => 0,
                        records => 'records_parts') AS done WHERE done;
SELECT pg_sleep(0.001);
SELECT idemkit_vacuum(records => 'records_parts');

-- What is none: 55000, with what is wrong and a hint.
CREATE VIEW records_view AS SELECT * FROM idemkit_records;
CREATE MATERIALIZED VIEW records_matview AS SELECT * FROM idemkit_records;
CREATE SEQUENCE records_sequence;
CREATE TABLE records_short (LIKE idemkit_records INCLUDING ALL);
ALTER TABLE records_short DROP COLUMN awaited;
CREATE TABLE records_type (LIKE idemkit_records INCLUDING ALL);
ALTER TABLE records_type ALTER COLUMN response_body TYPE text USING NULL;
CREATE TABLE records_varchar (LIKE idemkit_records INCLUDING ALL);
ALTER TABLE records_varchar ALTER COLUMN effective_key TYPE varchar(1024);
CREATE TABLE records_nullable (LIKE idemkit_records INCLUDING ALL);
ALTER TABLE records_nullable ALTER COLUMN claim_token DROP NOT NULL;
CREATE TABLE records_no_key (LIKE idemkit_records);
CREATE TABLE records_partial (LIKE idemkit_records);
CREATE UNIQUE INDEX ON records_partial (effective_key) WHERE state = 'CLAIMED';
CREATE TABLE records_two_keys (LIKE idemkit_records);
ALTER TABLE records_two_keys ADD PRIMARY KEY (effective_key, state);
CREATE TABLE records_not_unique (LIKE idemkit_records);
CREATE INDEX ON records_not_unique (effective_key);
CREATE TABLE records_deferrable (LIKE idemkit_records);
ALTER TABLE records_deferrable ADD UNIQUE (effective_key) DEFERRABLE;
CREATE TABLE records_expression (LIKE idemkit_records);
CREATE UNIQUE INDEX ON records_expression (lower(effective_key));
CREATE TABLE records_generated (LIKE idemkit_records INCLUDING ALL);
ALTER TABLE records_generated DROP COLUMN attempts,
    ADD COLUMN attempts integer NOT NULL GENERATED ALWAYS AS (1) STORED;
CREATE TYPE records_composite AS (effective_key text);
-- A collation that takes different keys for equal.  A server without ICU has
-- none; a view stands in for the table there.
SET client_min_messages = warning;
DO $$
BEGIN
    CREATE COLLATION records_other.loose (provider = icu, locale = 'und-u-ks-level2',
                                          deterministic = false);
    CREATE TABLE records_loose (LIKE idemkit_records INCLUDING ALL);
    ALTER TABLE records_loose ALTER COLUMN effective_key TYPE text COLLATE records_other.loose;
EXCEPTION WHEN feature_not_supported OR invalid_parameter_value THEN
    CREATE VIEW records_loose AS SELECT 1 AS one;
END $$;
RESET client_min_messages;

CREATE TEMPORARY TABLE wrong (i serial, t text);
INSERT INTO wrong (t) VALUES
    ('records_view'), ('records_matview'), ('records_sequence'), ('records_short'),
    ('records_type'), ('records_varchar'), ('records_nullable'), ('records_no_key'),
    ('records_partial'), ('records_two_keys'), ('records_not_unique'), ('records_deferrable'),
    ('records_expression'), ('records_generated'), ('records_loose'), ('records_composite'),
    ('records_plain_pkey'), ('pg_class'), ('pg_catalog.pg_type'), ('information_schema.tables');
SELECT t,
       pg_temp.outcome(format('SELECT result FROM idemkit_claim(''x'', records => %L)', t)) AS claim,
       pg_temp.outcome(format('SELECT idemkit_complete(''x'', ''t'', records => %L)', t)) AS complete,
       pg_temp.outcome(format('SELECT idemkit_release(''x'', ''t'', false, %L)', t)) AS release,
       pg_temp.outcome(format('SELECT idemkit_renew(''x'', ''t'', 1, %L)', t)) AS renew,
       pg_temp.outcome(format('SELECT idemkit_guard(''x'', ''t'', %L)', t)) AS guard,
       pg_temp.outcome(format('SELECT state FROM idemkit_get(''x'', %L)', t)) AS get,
       pg_temp.outcome(format('SELECT idemkit_vacuum(records => %L)', t)) AS vacuum
FROM wrong ORDER BY i;
SELECT idemkit_claim('x', records => 'records_view');
SELECT idemkit_claim('x', records => 'pg_class');
SELECT idemkit_claim('x', records => 'records_short');
SELECT idemkit_claim('x', records => 'records_type');
SELECT idemkit_claim('x', records => 'records_nullable');
SELECT idemkit_claim('x', records => 'records_no_key');

-- What is not there: 42P01, also where only the OID is left.
SELECT pg_temp.outcome($$SELECT idemkit_claim('x', records => 'records_nowhere')$$) AS by_name,
       pg_temp.outcome($$SELECT idemkit_claim('x', records => 1)$$) AS by_oid,
       pg_temp.outcome($$SELECT idemkit_claim('x', records => 0)$$) AS zero,
       pg_temp.outcome($$SELECT idemkit_claim('x', records => 4294967295)$$) AS largest,
       pg_temp.outcome($$SELECT idemkit_verify_schema(1)$$) AS verify,
       pg_temp.outcome($$SELECT idemkit_vacuum(records => 'records_dropped')$$) AS dropped;

-- A temporary table is as good as any.
CREATE TEMPORARY TABLE records_temp (LIKE idemkit_records INCLUDING ALL);
SELECT result FROM idemkit_claim('k', records => 'records_temp');
SELECT idemkit_complete('k', claim_token, records => 'records_temp') FROM records_temp;
SELECT result FROM idemkit_claim('k', records => 'records_temp');

SET client_min_messages = warning;
DROP SCHEMA records_other CASCADE;
DROP VIEW records_view;
DROP MATERIALIZED VIEW records_matview;
DROP SEQUENCE records_sequence;
DROP TYPE records_composite;
DROP TABLE records_plain, records_unlogged, records_wide, records_parts, records_short,
    records_type, records_varchar, records_nullable, records_no_key, records_partial,
    records_two_keys, records_not_unique, records_deferrable, records_expression,
    records_generated;
