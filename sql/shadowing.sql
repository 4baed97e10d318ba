--
-- An ordinary role that has its own schema first in search_path, full of operators,
-- functions, types, tables and casts that stand in for those of pg_catalog.  None is
-- ever used, and the functions do what they do for everybody.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;
CREATE ROLE regress_idemkit_shadow LOGIN;
GRANT SELECT, INSERT, UPDATE, DELETE ON idemkit_records TO regress_idemkit_shadow;
CREATE SCHEMA shadow AUTHORIZATION regress_idemkit_shadow;
SELECT current_user AS superuser \gset
\c - regress_idemkit_shadow
CREATE TABLE shadow.log (what text);

-- For every operator and function of pg_catalog that takes types as the statements
-- have them, one of the same name and types that tells on whoever uses it.
DO $$
DECLARE
    types oid[] := ARRAY['text', 'name', 'timestamptz', 'int4', 'int8', 'bool', 'jsonb', 'bytea', 'oid',
                         'regclass', 'float4', 'float8', '"char"', 'text[]', 'timestamptz[]', 'int4[]',
                         'jsonb[]', 'bytea[]', 'interval', 'anyarray', 'anyelement', '"any"',
                         'internal']::regtype[]::oid[];
    o record;
BEGIN
    FOR o IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result,
                    row_number() OVER (ORDER BY oid) AS n
             FROM pg_operator
             WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprleft = ANY (types) AND oprright = ANY (types)
                   AND oprresult <> 'trigger'::regtype AND NOT 'internal'::regtype = ANY (ARRAY[oprleft, oprright]::regtype[]) LOOP
        EXECUTE format('CREATE FUNCTION shadow.operator_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L',
                       o.n, o.l, o.r, o.result,
                       format('BEGIN INSERT INTO shadow.log VALUES (%L); RETURN NULL; END',
                              concat_ws(' ', o.l, o.oprname, o.r)));
        EXECUTE format('CREATE OPERATOR shadow.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = shadow.operator_%s)',
                       o.oprname, o.l, o.r, o.n);
    END LOOP;
    FOR o IN SELECT DISTINCT proname, oidvectortypes(proargtypes) AS arguments, proretset,
                    prorettype::regtype AS result
             FROM pg_proc
             WHERE pronamespace = 'pg_catalog'::regnamespace AND proargtypes::oid[] <@ types
                   AND prorettype = ANY (types) AND proargmodes IS NULL
                   AND NOT 'internal'::regtype = ANY (prorettype || proargtypes::oid[])
                   AND (prorettype NOT IN ('anyarray'::regtype, 'anyelement'::regtype, '"any"'::regtype)
                        OR 'anyarray'::regtype = ANY (proargtypes) OR 'anyelement'::regtype = ANY (proargtypes))
                   AND NOT '"any"'::regtype = ANY (prorettype || proargtypes::oid[]) LOOP
        EXECUTE format('CREATE FUNCTION shadow.%I(%s) RETURNS %s%s LANGUAGE plpgsql AS %L',
                       o.proname, o.arguments, CASE WHEN o.proretset THEN 'SETOF ' END, o.result,
                       format('BEGIN INSERT INTO shadow.log VALUES (%L); RETURN%s; END',
                              o.proname, CASE WHEN NOT o.proretset THEN ' NULL' END));
    END LOOP;
END $$;
CREATE DOMAIN shadow.text AS pg_catalog.int4;
CREATE DOMAIN shadow.timestamptz AS pg_catalog.int4;
CREATE DOMAIN shadow.jsonb AS pg_catalog.int4;
CREATE DOMAIN shadow.bytea AS pg_catalog.int4;
CREATE DOMAIN shadow.int4 AS pg_catalog.text;
CREATE DOMAIN shadow.oid AS pg_catalog.text;
CREATE DOMAIN shadow.regclass AS pg_catalog.text;
CREATE DOMAIN shadow."char" AS pg_catalog.text;
CREATE TYPE shadow.idemkit_record AS (effective_key pg_catalog.int4);
CREATE TYPE shadow.idemkit_claim_result AS (result pg_catalog.int4);
CREATE TABLE shadow.idemkit_records (LIKE public.idemkit_records INCLUDING ALL);
CREATE TABLE shadow.pg_class (oid pg_catalog.oid, relkind pg_catalog."char");
CREATE TABLE shadow.pg_extension (oid pg_catalog.oid, extname name, extversion pg_catalog.text);
CREATE TABLE shadow.pg_depend (objid pg_catalog.oid);
SELECT count(*) > 150 AS operators FROM pg_operator WHERE oprnamespace = 'shadow'::regnamespace;
SELECT count(*) > 600 AS functions FROM pg_proc WHERE pronamespace = 'shadow'::regnamespace;

-- Only a superuser may make casts between types of the server.
\c - :superuser
CREATE FUNCTION shadow.to_text(jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN INSERT INTO shadow.log VALUES ('cast'); RETURN 'cast'; END $$;
CREATE FUNCTION shadow.to_timestamptz(text) RETURNS timestamptz LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN INSERT INTO shadow.log VALUES ('cast'); RETURN 'infinity'; END $$;
CREATE FUNCTION shadow.to_text(bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN INSERT INTO shadow.log VALUES ('cast'); RETURN 'cast'; END $$;
CREATE CAST (jsonb AS text) WITH FUNCTION shadow.to_text(jsonb) AS IMPLICIT;
CREATE CAST (text AS timestamptz) WITH FUNCTION shadow.to_timestamptz(text) AS IMPLICIT;
CREATE CAST (bytea AS text) WITH FUNCTION shadow.to_text(bytea) AS IMPLICIT;
GRANT ALL ON shadow.log TO PUBLIC;

-- A session whose first look at anything has that path, temporary objects in front.
\c - regress_idemkit_shadow
CREATE TEMPORARY TABLE idemkit_records (LIKE public.idemkit_records INCLUDING ALL);
CREATE TEMPORARY TABLE pg_class (oid oid);
CREATE DOMAIN pg_temp.text AS pg_catalog.int4;
SET search_path = pg_temp, shadow, public, pg_catalog;
SELECT result FROM public.idemkit_claim('k', 'print');
SELECT result, fingerprint_matches FROM public.idemkit_claim('k', 'print');
SELECT claim_token AS token FROM public.idemkit_records \gset
SELECT public.idemkit_renew('k', :'token') AS renew, public.idemkit_renew('k', 'wrong') AS wrong,
       public.idemkit_guard('k', :'token') AS guard, public.idemkit_release('k', 'wrong') AS release;
SELECT state FROM public.idemkit_subscribe('{k,none}');
SELECT outcome, state FROM public.idemkit_wait('k', 0);
SELECT public.idemkit_complete('k', :'token', 200, '{"h": 1}', 'body') AS complete;
SELECT result, response_status, response_headers, response_body FROM public.idemkit_claim('k', 'print');
SELECT state FROM public.idemkit_get('k');
SELECT result, our_claim_token FROM public.idemkit_claim_many('{a,k,a,b}', '{x,print,y,z}') \g /dev/null
SELECT public.idemkit_complete_many('{a,b,k}', '{wrong,wrong,wrong}', '{1,2,3}', NULL, NULL);
SELECT live_claims, lapsed_claims, live_completions, expired_completions FROM public.idemkit_stats();
SELECT result FROM public.idemkit_claim('lapses', lease_ttl_seconds => 0.000001);
SELECT result FROM public.idemkit_claim('lapses', reclaim => false);
SELECT result, attempts FROM public.idemkit_claim('lapses', lease_ttl_seconds => 0.000001);
SELECT result, attempts FROM public.idemkit_claim_many('{lapses}', lease_ttl_seconds => 0.000001);
SELECT claim_token AS token FROM public.idemkit_get('lapses') \gset
SELECT public.idemkit_release('lapses', :'token', true) AS keeping;
SELECT claim_token AS token FROM public.idemkit_claim('lapses') \gset
SELECT public.idemkit_release('lapses', :'token') AS release;
SELECT public.idemkit_vacuum(lease_grace_seconds => 0), public.idemkit_vacuum(1000, 0, 5);
CALL public.idemkit_sweep(lease_grace_seconds => 0);
SELECT public.idemkit_verify_schema();
SELECT public.idemkit_effective_key('tenant', 'orders', 'key');

-- A table of its own, made, worked with and adopted under that path.
SET search_path = shadow, public, pg_catalog;
SELECT public.idemkit_create_table('own');
SELECT result FROM public.idemkit_claim('k', records => 'own');
SELECT result FROM public.idemkit_claim_many('{k,l}', records => 'own');
ALTER TABLE own DROP COLUMN attempts;
SET client_min_messages = warning;
SELECT public.idemkit_create_table('own');
RESET client_min_messages;
SELECT public.idemkit_verify_schema('own');
SELECT public.idemkit_vacuum(0, records => 'own'), public.idemkit_vacuum(records => 'own');

-- Nobody told, and the right table has the rows.
RESET search_path;
SELECT * FROM shadow.log;
SELECT effective_key, state FROM public.idemkit_records ORDER BY 1;
SELECT count(*) FROM shadow.idemkit_records;
SELECT count(*) FROM pg_temp.idemkit_records;
SELECT attname, atttypid::regtype FROM pg_catalog.pg_attribute
WHERE attrelid = 'shadow.own'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum;
-- The instruments work.
SET search_path = shadow, pg_catalog;
SELECT 1 WHERE 'a' = 'a'::pg_catalog.text;
SELECT what FROM log LIMIT 1;
RESET search_path;

\c - :superuser
SET client_min_messages = warning;
REVOKE ALL ON idemkit_records FROM regress_idemkit_shadow;
DROP SCHEMA shadow CASCADE;
DROP ROLE regress_idemkit_shadow;
TRUNCATE idemkit_records;
