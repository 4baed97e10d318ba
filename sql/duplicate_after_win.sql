--
-- A duplicate only reads, also right after this backend has won new keys: no
-- sequence goes on, no trigger, default, constraint or generated column is
-- evaluated, and a role that may only read is answered.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
TRUNCATE idemkit_records;
RESET client_min_messages;
CREATE ROLE regress_idemkit_owner;
CREATE ROLE regress_idemkit_winner;
CREATE ROLE regress_idemkit_onlooker;
GRANT SELECT ON idemkit_records TO regress_idemkit_owner;
CREATE SCHEMA after_win AUTHORIZATION regress_idemkit_owner;
SET ROLE regress_idemkit_owner;
GRANT USAGE ON SCHEMA after_win TO PUBLIC;
SET search_path = after_win, public;

-- Counts every evaluation, whatever becomes of the transaction.
CREATE SEQUENCE evaluated MINVALUE 0;
CREATE FUNCTION evaluate(anyelement) RETURNS anyelement LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN PERFORM nextval('after_win.evaluated'); RETURN $1; END $$;
CREATE FUNCTION evaluate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM nextval('after_win.evaluated'); RETURN NEW; END $$;

-- What duplicates of each kind are told, how often something was evaluated for
-- them, and whether they took a transaction id.
CREATE FUNCTION duplicates(way text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    told text;
    before bigint;
BEGIN
    SELECT last_value INTO before FROM evaluated;
    FOR i IN 1..2 LOOP
        told := concat_ws(' ', told, CASE way
            WHEN 'single' THEN (SELECT string_agg(concat(result, ':', response_status), ' ' ORDER BY key)
                FROM unnest(ARRAY['claimed', 'completed', 'lapsed']) AS key,
                     idemkit_claim(key, reclaim => false, records => 'after_win.r'))
            ELSE (SELECT string_agg(concat(result, ':', response_status), ' ')
                FROM idemkit_claim_many(ARRAY['claimed', 'completed', 'lapsed'], reclaim => false,
                                        records => 'after_win.r')) END);
    END LOOP;
    RETURN concat_ws(', ', told, (SELECT last_value - before || ' evaluated' FROM evaluated),
        CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN 'no transaction id'
             ELSE 'a transaction id' END);
END $$;

-- Makes a table with a row of each kind, changes it, wins some keys, and asks in
-- a transaction of its own.
CREATE PROCEDURE try_duplicates(change text, way text, INOUT told text) LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL client_min_messages = warning;
    DROP TABLE IF EXISTS after_win.r;
    CREATE TABLE after_win.r (LIKE public.idemkit_records INCLUDING ALL);
    EXECUTE change;
    PERFORM idemkit_claim(key, records => 'after_win.r')
    FROM unnest(ARRAY['claimed', 'completed', 'lapsed']) AS key;
    UPDATE after_win.r SET lease_until = clock_timestamp() - interval '1 hour'
    WHERE effective_key = 'lapsed';
    PERFORM idemkit_complete('completed', claim_token, 200, records => 'after_win.r')
    FROM after_win.r WHERE effective_key = 'completed';
    COMMIT;
    PERFORM idemkit_claim('won ' || i, records => 'after_win.r') FROM generate_series(1, 3) AS i;
    PERFORM idemkit_claim_many(ARRAY['won also', 'and won'], records => 'after_win.r');
    PERFORM idemkit_claim('won last', records => 'after_win.r');
    COMMIT;
    told := duplicates(way);
    COMMIT;
END $$;

CREATE FUNCTION add_triggers(kind text, level text) RETURNS text LANGUAGE sql AS $$
    SELECT format('CREATE TRIGGER t %s INSERT OR UPDATE OR DELETE ON after_win.r
                   FOR EACH %s EXECUTE FUNCTION after_win.evaluate()', kind, level) $$;
CREATE TABLE kinds (i serial, kind text, change text);
INSERT INTO kinds (kind, change) VALUES
    ('plain', 'SELECT'),
    ('serial', 'ALTER TABLE after_win.r ADD n bigint DEFAULT nextval(''after_win.evaluated'')'),
    ('volatile default', 'ALTER TABLE after_win.r ADD n integer DEFAULT after_win.evaluate(1)'),
    ('check', 'ALTER TABLE after_win.r ADD CHECK (after_win.evaluate(attempts) > 0)'),
    ('another check', 'ALTER TABLE after_win.r DROP CONSTRAINT idemkit_records_state_check,
      ADD CHECK (after_win.evaluate(attempts) > 0)'),
    ('a check of the state', 'ALTER TABLE after_win.r DROP CONSTRAINT idemkit_records_state_check,
      ADD CHECK (after_win.evaluate(state) > ''A'')'),
    ('a volatile check', 'ALTER TABLE after_win.r DROP CONSTRAINT idemkit_records_state_check,
      ADD CHECK (nextval(''after_win.evaluated'') > 0 AND state > ''A'')'),
    ('generated', 'ALTER TABLE after_win.r
      ADD n integer GENERATED ALWAYS AS (after_win.evaluate(attempts)) STORED'),
    ('expression index', 'CREATE INDEX ON after_win.r (after_win.evaluate(attempts))'),
    ('index predicate', 'CREATE INDEX ON after_win.r (attempts) WHERE after_win.evaluate(attempts) > 0'),
    ('before row', add_triggers('BEFORE', 'ROW')), ('after row', add_triggers('AFTER', 'ROW')),
    ('before statement', add_triggers('BEFORE', 'STATEMENT')),
    ('after statement', add_triggers('AFTER', 'STATEMENT')),
    ('policy', 'ALTER TABLE after_win.r ENABLE ROW LEVEL SECURITY; ALTER TABLE after_win.r FORCE ROW LEVEL SECURITY;
      CREATE POLICY p ON after_win.r FOR SELECT USING (true);
      CREATE POLICY i ON after_win.r FOR INSERT WITH CHECK (nextval(''after_win.evaluated'') > 0);
      CREATE POLICY u ON after_win.r FOR UPDATE USING (true)');

-- One line for all that is alike.
CREATE TABLE outcomes (i serial, kind text, way text, told text);
DO $$
DECLARE
    k kinds;
    way text;
    told text;
BEGIN
    FOR k IN SELECT * FROM kinds ORDER BY i LOOP
        FOREACH way IN ARRAY ARRAY['single', 'many'] LOOP
            CALL try_duplicates(k.change, way, told);
            INSERT INTO outcomes (kind, way, told) VALUES (k.kind, way, told);
            COMMIT;
        END LOOP;
    END LOOP;
END $$;
SELECT told FROM outcomes WHERE kind = 'plain' AND way = 'single';
SELECT kind, way,
       CASE told WHEN (SELECT told FROM outcomes ORDER BY i LIMIT 1) THEN 'the same' ELSE told END AS told
FROM outcomes ORDER BY i;

-- Identity columns too; the numbers of three winners have no gap for duplicates.
CREATE TABLE counted (LIKE public.idemkit_records INCLUDING ALL, n bigint GENERATED ALWAYS AS IDENTITY);
SELECT string_agg(left(result, 3), ' ') AS results
FROM unnest(ARRAY['a', 'a', 'b', 'a', 'b', 'b', 'c', 'c']) AS key, idemkit_claim(key, records => 'counted');
SELECT string_agg(result, ' ') FROM idemkit_claim_many(ARRAY['d', 'a', 'd', 'b'], records => 'counted');
SELECT string_agg(result, ' ') FROM idemkit_claim_many(ARRAY['d', 'a', 'd', 'b'], records => 'counted');
SELECT result FROM idemkit_claim('e', records => 'counted');
SELECT effective_key, n FROM counted ORDER BY n;

-- A constraint that the question of a duplicate does not keep is no business of it.
CREATE TABLE picky (LIKE public.idemkit_records INCLUDING ALL);
ALTER TABLE picky DROP CONSTRAINT idemkit_records_state_check, ADD CHECK (fingerprint <> 'refused');
SELECT result FROM idemkit_claim('k', records => 'picky');
SELECT result, fingerprint_matches FROM idemkit_claim('k', 'refused', records => 'picky');

-- Rows of a child table are found, also where the child came after a win.
CREATE TABLE parent (LIKE public.idemkit_records INCLUDING ALL);
CREATE TABLE child (LIKE public.idemkit_records INCLUDING ALL);
SELECT result FROM idemkit_claim('in the child', records => 'child');
SELECT result FROM idemkit_claim('in the parent', records => 'parent');
ALTER TABLE child INHERIT parent;
SELECT result FROM idemkit_claim('in the child', records => 'parent');
SELECT result FROM idemkit_claim('new', records => 'parent');
SELECT result FROM idemkit_claim('in the child', records => 'parent');
SELECT string_agg(effective_key, ' ' ORDER BY effective_key) FROM ONLY parent;

-- In a read-only transaction, right after a win.
CREATE TABLE shared (LIKE public.idemkit_records INCLUDING ALL);
SELECT result FROM idemkit_claim('won', records => 'shared');
SELECT result FROM idemkit_claim('just won', records => 'shared');
BEGIN READ ONLY;
SELECT result FROM idemkit_claim('just won', records => 'shared');
SELECT result FROM idemkit_claim('won', records => 'shared');
\set VERBOSITY sqlstate
SELECT result FROM idemkit_claim('absent', records => 'shared');
ROLLBACK;
TRUNCATE shared;

-- Roles: one that won, and one that may only read, by the table or by columns.
GRANT SELECT, INSERT ON shared TO regress_idemkit_winner;
GRANT SELECT ON shared TO regress_idemkit_onlooker;
SET ROLE regress_idemkit_winner;
SELECT string_agg(result, ' ') FROM generate_series(1, 3) AS i, idemkit_claim('k' || i, records => 'shared');
SET ROLE regress_idemkit_onlooker;
SELECT string_agg(result, ' ') FROM generate_series(1, 3) AS i, idemkit_claim('k' || i, records => 'shared');
SELECT string_agg(result, ' ') FROM idemkit_claim_many(ARRAY['k1', 'k2'], records => 'shared');
SELECT idemkit_claim('absent', records => 'shared');
SELECT idemkit_claim_many(ARRAY['absent', 'k1'], records => 'shared');
SELECT result FROM idemkit_claim('k1', records => 'shared');
SET ROLE regress_idemkit_winner;
SELECT result FROM idemkit_claim('k4', records => 'shared');
SET ROLE regress_idemkit_owner;
REVOKE SELECT ON shared FROM regress_idemkit_onlooker;
GRANT SELECT (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at,
              lease_until, completed_at, response_status, response_headers, response_body,
              attempts, schema_version) ON shared TO regress_idemkit_onlooker;
SELECT result FROM idemkit_claim('k5', records => 'shared');
SET ROLE regress_idemkit_onlooker;
SELECT result FROM idemkit_claim('k5', records => 'shared');
-- One that may insert and not read is not told who has a key.
SET ROLE regress_idemkit_owner;
REVOKE ALL ON shared FROM regress_idemkit_onlooker;
GRANT INSERT ON shared TO regress_idemkit_onlooker;
SELECT result FROM idemkit_claim('k6', records => 'shared');
SET ROLE regress_idemkit_onlooker;
SELECT idemkit_claim('k6', records => 'shared');
SELECT idemkit_claim('absent', records => 'shared');
SET ROLE regress_idemkit_owner;
\set VERBOSITY default
SELECT string_agg(effective_key, ' ' ORDER BY effective_key) FROM shared;

RESET ROLE;
RESET search_path;
SET client_min_messages = warning;
REVOKE ALL ON idemkit_records FROM regress_idemkit_owner;
DROP SCHEMA after_win CASCADE;
DROP ROLE regress_idemkit_owner, regress_idemkit_winner, regress_idemkit_onlooker;
