--
-- Claims inside what transactions are made of: savepoints, exception blocks,
-- cursors, procedures that commit, prepared statements, queries that could be
-- parallel.  What is rolled back has not happened; the rest goes on.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;
CREATE SCHEMA transactions;
SET search_path = transactions, public;

CREATE VIEW claims AS
SELECT effective_key AS key, state, attempts FROM idemkit_records ORDER BY 1;
CREATE FUNCTION token(key text) RETURNS text LANGUAGE sql AS
    'SELECT claim_token FROM idemkit_records WHERE effective_key = key';

-- Exception blocks: each verb undone by an error after it, and by its own error.
DO $$
DECLARE
    verdicts text[] := '{}';
    held text := (idemkit_claim('held')).our_claim_token;
BEGIN
    FOR i IN 1..3 LOOP
        BEGIN
            verdicts := verdicts || (idemkit_claim('undone')).result;
            verdicts := verdicts || (SELECT string_agg(result, '+') FROM idemkit_claim_many(ARRAY['undone too', 'held']));
            ASSERT idemkit_complete('held', held, 200);
            RAISE division_by_zero;
        EXCEPTION WHEN division_by_zero THEN
            verdicts := verdicts || 'undone'::text;
        END;
        BEGIN
            ASSERT idemkit_release('held', held);
            PERFORM idemkit_guard('held', held);
        EXCEPTION WHEN SQLSTATE 'IK001' THEN
            verdicts := verdicts || 'IK001'::text;
        END;
        BEGIN
            PERFORM idemkit_claim_many(ARRAY['fine', NULL]);
        EXCEPTION WHEN null_value_not_allowed THEN
            verdicts := verdicts || '22004'::text;
        END;
        PERFORM idemkit_guard('held', held);
        ASSERT idemkit_renew('held', held, 60);
    END LOOP;
    RAISE NOTICE '%', verdicts;
END $$;
SELECT * FROM claims;

-- An error inside the statement that claims takes the claim with it.
\set VERBOSITY sqlstate
SELECT result, 1 / (attempts - 1) FROM idemkit_claim('divided');
SELECT (idemkit_claim('k' || i)).result, 1 / (3 - i) FROM generate_series(1, 5) AS i;
INSERT INTO idemkit_records SELECT (idemkit_claim('twice')).effective_key;
\set VERBOSITY default
SELECT * FROM claims;

-- Savepoints, deep and many, and a claim won in an inner one that is kept.
BEGIN;
SELECT result FROM idemkit_claim('outer');
SAVEPOINT a;
SELECT result FROM idemkit_claim('inner');
SAVEPOINT b;
SELECT idemkit_complete('outer', token('outer'), 200), idemkit_complete('inner', token('inner'), 200);
SAVEPOINT c;
SELECT result FROM idemkit_claim_many(ARRAY['outer', 'inner', 'innermost']);
ROLLBACK TO b;
SELECT result FROM idemkit_claim_many(ARRAY['outer', 'inner', 'innermost']);
RELEASE a;
SELECT idemkit_complete('inner', token('inner'), 201);
COMMIT;
SELECT * FROM claims;
DO $$
BEGIN
    FOR i IN 1..500 LOOP
        BEGIN
            PERFORM idemkit_claim('many ' || i);
            IF i % 2 = 0 THEN
                RAISE division_by_zero;
            END IF;
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END LOOP;
END $$;
SELECT count(*), count(*) FILTER (WHERE right(effective_key, 1)::integer % 2 = 1) AS odd
FROM idemkit_records WHERE effective_key LIKE 'many %';
DELETE FROM idemkit_records WHERE effective_key LIKE 'many %';

-- Procedures and DO blocks that commit and roll back between calls.
DO $$
DECLARE
    token text;
BEGIN
    FOR i IN 1..6 LOOP
        token := (idemkit_claim('loop ' || i)).our_claim_token;
        IF i % 3 = 0 THEN
            ROLLBACK;
        ELSE
            COMMIT;
        END IF;
        IF idemkit_complete('loop ' || i, token, i) <> (i % 3 <> 0) THEN
            RAISE 'wrong';
        END IF;
        COMMIT;
        PERFORM idemkit_claim_many(ARRAY['loop ' || i, 'batch ' || i]);
        PERFORM idemkit_subscribe(ARRAY['batch ' || i]);
        ROLLBACK;
    END LOOP;
END $$;
SELECT effective_key, state, response_status FROM idemkit_records WHERE effective_key LIKE 'loop%' ORDER BY 1;
SELECT count(*) FROM claims WHERE key LIKE 'batch%';
-- A loop over claims that commits inside: the cursor is held.
DO $$
DECLARE
    r record;
    won text := '';
BEGIN
    FOR r IN SELECT i, (idemkit_claim('looped ' || i % 3)).result AS result FROM generate_series(1, 5) AS i LOOP
        won := won || ' ' || r.result;
        COMMIT;
    END LOOP;
    RAISE NOTICE '%', won;
END $$;

-- Cursors: a claim is made when its row is fetched; one held over the end of
-- the transaction makes the rest then.
BEGIN;
DECLARE c NO SCROLL CURSOR FOR
    SELECT i, (idemkit_claim('cursor ' || i)).result FROM generate_series(1, 4) AS i;
FETCH 2 FROM c;
SELECT count(*) FROM claims WHERE key LIKE 'cursor%';
FETCH ALL FROM c;
SELECT count(*) FROM claims WHERE key LIKE 'cursor%';
DECLARE h CURSOR WITH HOLD FOR SELECT key, result FROM unnest(ARRAY['cursor 4', 'held 1', 'held 1']) AS key,
                                      LATERAL idemkit_claim(key);
COMMIT;
FETCH ALL FROM h;
CLOSE h;
SELECT key FROM claims WHERE key LIKE 'held %';
BEGIN;
DECLARE r CURSOR FOR SELECT effective_key, idemkit_renew(effective_key, claim_token)
    FROM idemkit_records WHERE effective_key LIKE 'cursor%' ORDER BY 1;
FETCH 1 FROM r;
SELECT idemkit_release('cursor 2', token('cursor 2'));
SELECT idemkit_release('cursor 3', token('cursor 3'), true);
FETCH ALL FROM r;
COMMIT;

-- Prepared statements, by custom and by generic plan.
PREPARE claim(text) AS SELECT result FROM idemkit_claim($1, lease_ttl_seconds => 60);
EXECUTE claim('prepared');
EXECUTE claim('prepared');
SET plan_cache_mode = force_generic_plan;
EXECUTE claim('prepared generic');
EXECUTE claim('prepared generic');
RESET plan_cache_mode;
DEALLOCATE claim;

-- Queries that could be parallel: those with a verb are not, the digest may be.
CREATE TABLE keys AS SELECT 'parallel ' || i AS key FROM generate_series(1, 5000) AS i;
ANALYZE keys;
DO $$
BEGIN
    PERFORM set_config(name, CASE WHEN name LIKE 'm%worker%' THEN '4' WHEN vartype = 'enum' THEN 'on' ELSE '0' END, false)
    FROM pg_settings
    WHERE name IN ('parallel_setup_cost', 'parallel_tuple_cost', 'min_parallel_table_scan_size',
                   'max_parallel_workers_per_gather', 'force_parallel_mode', 'debug_parallel_query');
END $$;
SELECT count(*) FILTER (WHERE result = 'new_claimed') AS new
FROM (SELECT (idemkit_claim(key)).result FROM keys WHERE key ~ '9$') AS c;
SELECT count(*) FROM keys WHERE key ~ '9$' AND (idemkit_claim(key)).result = 'already_claimed';
SELECT count(*) FILTER (WHERE idemkit_complete(key, token(key), 200)) AS completed FROM keys WHERE key ~ '99$';
SELECT sum(c.response_status) FROM keys, LATERAL idemkit_claim(key) AS c WHERE key ~ '99$';
SELECT count(*) FROM keys, LATERAL idemkit_get(key) WHERE key ~ '9$';
SELECT count(DISTINCT idemkit_effective_key('tenant', key)) FROM keys;
CREATE FUNCTION is_parallel(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    RETURN plan::text LIKE '%"Gather%';
END $$;
SELECT is_parallel('SELECT count(*) FROM transactions.keys WHERE idemkit_claim(key) IS NULL') AS claim,
       is_parallel('SELECT count(*) FROM transactions.keys WHERE idemkit_effective_key(key) = ''''') AS digest;

RESET ALL;
SET client_min_messages = warning;
DROP SCHEMA transactions CASCADE;
TRUNCATE idemkit_records;
