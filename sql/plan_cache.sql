--
-- What a session keeps (saved plans, table names) survives whatever happens to
-- tables, schemas, transactions and the session itself.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- Every verb once, so that all plans are made for the table.
CREATE FUNCTION plan_cache_cycle(records regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    key text := 'cycle:' || clock_timestamp();
    token text;
    verdicts text;
BEGIN
    token := (idemkit_claim(key, records => records)).our_claim_token;
    verdicts := concat_ws(' ', (idemkit_claim(key, records => records)).result,
        idemkit_renew(key, token, records => records), idemkit_guard(key, token, records),
        idemkit_release(key, token, true, records));
    token := (idemkit_claim(key, records => records)).our_claim_token;
    verdicts := concat_ws(' ', verdicts,
        idemkit_complete(key, token, 200, expires_after_seconds => 0, records => records),
        (SELECT state FROM idemkit_get(key, records)));
    PERFORM pg_sleep(0.001);
    token := (idemkit_claim(key, records => records)).our_claim_token;
    verdicts := concat_ws(' ', verdicts, idemkit_release(key, token, false, records),
        idemkit_vacuum(records => records), idemkit_vacuum(0, records => records));
    RETURN verdicts;
END $$;
SELECT idemkit_create_table('plan_cache_records');
SELECT plan_cache_cycle('plan_cache_records');
SELECT plan_cache_cycle('idemkit_records');
SELECT result FROM idemkit_claim('k', records => 'plan_cache_records');

-- ALTER TABLE RENAME; another table gets the old name.
ALTER TABLE plan_cache_records RENAME TO plan_cache_renamed;
SELECT plan_cache_cycle('plan_cache_renamed');
SELECT result FROM idemkit_claim('k', records => 'plan_cache_renamed');
SELECT idemkit_create_table('plan_cache_other');
ALTER TABLE plan_cache_other RENAME TO plan_cache_records;
SELECT result FROM idemkit_claim('k', records => 'plan_cache_records');
SELECT result FROM idemkit_claim('k', records => 'plan_cache_renamed');
SELECT plan_cache_cycle('plan_cache_renamed'), plan_cache_cycle('plan_cache_records');

-- ALTER TABLE SET SCHEMA.
CREATE SCHEMA plan_cache_one;
ALTER TABLE plan_cache_renamed SET SCHEMA plan_cache_one;
SELECT plan_cache_cycle('plan_cache_one.plan_cache_renamed');
SELECT result FROM idemkit_claim('k', records => 'plan_cache_one.plan_cache_renamed');

-- ALTER SCHEMA RENAME; another schema gets the old name, with such a table.
ALTER SCHEMA plan_cache_one RENAME TO plan_cache_two;
SELECT plan_cache_cycle('plan_cache_two.plan_cache_renamed');
CREATE SCHEMA plan_cache_one;
SET search_path = plan_cache_one;
SELECT public.idemkit_create_table('plan_cache_renamed');
RESET search_path;
SELECT result FROM idemkit_claim('k', records => 'plan_cache_two.plan_cache_renamed');
SELECT result FROM idemkit_claim('k', records => 'plan_cache_one.plan_cache_renamed');
SELECT plan_cache_cycle('plan_cache_two.plan_cache_renamed'),
       plan_cache_cycle('plan_cache_one.plan_cache_renamed');

-- DROP and recreate under the same name.
DROP TABLE plan_cache_records;
\set VERBOSITY sqlstate
SELECT result FROM idemkit_claim('k', records => 'plan_cache_records');
\set VERBOSITY default
SELECT idemkit_create_table('plan_cache_records');
SELECT result FROM idemkit_claim('k', records => 'plan_cache_records');
SELECT plan_cache_cycle('plan_cache_records');
BEGIN;
DROP TABLE plan_cache_records;
SELECT idemkit_create_table('plan_cache_records');
SELECT result FROM idemkit_claim('k', records => 'plan_cache_records');
ROLLBACK;
SELECT result FROM idemkit_claim('k', records => 'plan_cache_records');

-- A column comes and goes; a column the verbs need goes.
ALTER TABLE plan_cache_records ADD COLUMN note text DEFAULT 'x';
SELECT plan_cache_cycle('plan_cache_records');
ALTER TABLE plan_cache_records DROP COLUMN note;
SELECT plan_cache_cycle('plan_cache_records');
ALTER TABLE plan_cache_records RENAME COLUMN claim_token TO token;
\set VERBOSITY sqlstate
SELECT result FROM idemkit_claim('k', records => 'plan_cache_records');
\set VERBOSITY default
ALTER TABLE plan_cache_records RENAME COLUMN token TO claim_token;
SELECT plan_cache_cycle('plan_cache_records');

-- Indexes: one more, one fewer, the table rewritten.
CREATE INDEX plan_cache_index ON plan_cache_records (claimed_at);
SELECT plan_cache_cycle('plan_cache_records');
DROP INDEX plan_cache_index, plan_cache_records_lease_until_idx;
SELECT plan_cache_cycle('plan_cache_records');
CREATE INDEX ON plan_cache_records (lease_until);
CLUSTER plan_cache_records USING plan_cache_records_pkey;
SELECT plan_cache_cycle('plan_cache_records');
TRUNCATE plan_cache_records;
SELECT plan_cache_cycle('plan_cache_records');

-- The extension's own table and the extension move.
CREATE SCHEMA plan_cache_home;
ALTER TABLE idemkit_records RENAME TO plan_cache_own;
SELECT result FROM idemkit_claim('own');
ALTER TABLE plan_cache_own RENAME TO idemkit_records;
SELECT result FROM idemkit_claim('own');
ALTER TABLE idemkit_records SET SCHEMA plan_cache_home;
SELECT result FROM idemkit_claim('own');
ALTER TABLE plan_cache_home.idemkit_records SET SCHEMA public;
ALTER EXTENSION idemkit SET SCHEMA plan_cache_home;
SELECT result FROM plan_cache_home.idemkit_claim('own');
SELECT plan_cache_home.idemkit_complete('own', claim_token, 200)
FROM plan_cache_home.idemkit_records;
SELECT result, response_status FROM plan_cache_home.idemkit_claim('own');
ALTER SCHEMA plan_cache_home RENAME TO plan_cache_house;
SELECT result FROM plan_cache_house.idemkit_claim('own');
ALTER EXTENSION idemkit SET SCHEMA public;
SELECT result FROM idemkit_claim('own');
DROP SCHEMA plan_cache_house;

-- DISCARD ALL, and plans thrown away.
DISCARD ALL;
SELECT plan_cache_cycle('plan_cache_records');
DISCARD PLANS;
SELECT result FROM idemkit_claim('own');
SET plan_cache_mode = force_custom_plan;
SELECT plan_cache_cycle('plan_cache_records');
RESET plan_cache_mode;

-- A failed call, then a good one: in turn, in one transaction, in PL/pgSQL.
\set VERBOSITY sqlstate
SELECT result FROM idemkit_claim('');
SELECT idemkit_guard('own', 'wrong');
\set VERBOSITY default
SELECT result FROM idemkit_claim('own');
ALTER TABLE plan_cache_records ADD CONSTRAINT no_bad CHECK (effective_key <> 'bad');
BEGIN;
SAVEPOINT s;
\set VERBOSITY sqlstate
SELECT result FROM idemkit_claim('bad', records => 'plan_cache_records');
\set VERBOSITY default
ROLLBACK TO s;
SELECT result FROM idemkit_claim('good', records => 'plan_cache_records');
RELEASE s;
COMMIT;
SELECT result FROM idemkit_claim('good', records => 'plan_cache_records');
DO $$
DECLARE
    good integer := 0;
    bad integer := 0;
BEGIN
    FOR i IN 1 .. 200 LOOP
        BEGIN
            PERFORM idemkit_claim('loop:' || i, records => 'plan_cache_records');
            good := good + 1;
            PERFORM idemkit_claim('bad', records => 'plan_cache_records');
        EXCEPTION WHEN check_violation THEN
            bad := bad + 1;
        END;
    END LOOP;
    RAISE NOTICE 'good %, bad %', good, bad;
END $$;
SELECT count(*) FROM plan_cache_records WHERE effective_key LIKE 'loop:%';

-- Subtransactions: a table renamed, then not; plans made inside one that is
-- rolled back.
BEGIN;
SAVEPOINT s;
ALTER TABLE plan_cache_records RENAME TO plan_cache_sub;
SELECT plan_cache_cycle('plan_cache_sub');
ROLLBACK TO s;
SELECT plan_cache_cycle('plan_cache_records');
SAVEPOINT s2;
SELECT idemkit_create_table('plan_cache_sub');
SELECT plan_cache_cycle('plan_cache_sub');
ROLLBACK TO s2;
SELECT plan_cache_cycle('plan_cache_records');
COMMIT;
SELECT plan_cache_cycle('plan_cache_records');

-- Prepared statements, across a rename, a move and a new table.
PREPARE claim(text, regclass) AS SELECT result FROM idemkit_claim($1, records => $2);
EXECUTE claim('prepared', 'plan_cache_records');
EXECUTE claim('prepared', 'plan_cache_records');
ALTER TABLE plan_cache_records RENAME TO plan_cache_moved;
EXECUTE claim('prepared', 'plan_cache_moved');
ALTER TABLE plan_cache_moved SET SCHEMA plan_cache_one;
EXECUTE claim('prepared', 'plan_cache_one.plan_cache_moved');
DROP TABLE plan_cache_one.plan_cache_moved;
SELECT idemkit_create_table('plan_cache_records');
EXECUTE claim('prepared', 'plan_cache_records');
EXECUTE claim('prepared', 'plan_cache_records');
DEALLOCATE claim;

-- Triggers: on a table of the caller's ...
CREATE TABLE plan_cache_orders (id text);
CREATE FUNCTION plan_cache_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (idemkit_claim('order:' || NEW.id)).our_claim_token IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER once BEFORE INSERT ON plan_cache_orders
    FOR EACH ROW EXECUTE FUNCTION plan_cache_order();
INSERT INTO plan_cache_orders SELECT i % 5 FROM generate_series(1, 20) AS i;
INSERT INTO plan_cache_orders VALUES ('1'), ('5');
SELECT count(*), count(DISTINCT id) FROM plan_cache_orders;
DROP TABLE plan_cache_orders;
DROP FUNCTION plan_cache_order();

-- ... and on a records table, calling the verbs on the same table while one of
-- them runs, with the schema renamed under the running plan.
CREATE SCHEMA plan_cache_busy;
SET search_path = plan_cache_busy, public;
SELECT idemkit_create_table('busy');
RESET search_path;
CREATE TABLE plan_cache_log (entry text);
CREATE FUNCTION plan_cache_watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.effective_key LIKE 'log:%' THEN
        RETURN NULL;
    END IF;
    EXECUTE format('ALTER SCHEMA %I RENAME TO plan_cache_busy2', TG_TABLE_SCHEMA);
    INSERT INTO plan_cache_log
    SELECT concat_ws(' ', TG_OP, NEW.state,
                     (idemkit_claim('log:' || TG_OP, records => TG_RELID::regclass)).result,
                     (idemkit_claim('log:' || TG_OP, records => TG_RELID::regclass)).result);
    EXECUTE format('ALTER SCHEMA plan_cache_busy2 RENAME TO %I', TG_TABLE_SCHEMA);
    -- Long enough for the claim or completion to write its times again.
    PERFORM pg_sleep(0.05);
    RETURN NULL;
END $$;
CREATE TRIGGER watch AFTER INSERT OR UPDATE ON plan_cache_busy.busy
    FOR EACH ROW EXECUTE FUNCTION plan_cache_watch();
SELECT result FROM idemkit_claim('a', records => 'plan_cache_busy.busy');
SELECT idemkit_complete('a', claim_token, 200, records => 'plan_cache_busy.busy')
FROM plan_cache_busy.busy WHERE effective_key = 'a';
SELECT result, response_status FROM idemkit_claim('a', records => 'plan_cache_busy.busy');
SELECT entry FROM plan_cache_log;
SELECT effective_key, state FROM plan_cache_busy.busy ORDER BY 1;

-- In the middle of a query: a cursor over claims, with changes between.
BEGIN;
DECLARE c CURSOR FOR
    SELECT (idemkit_claim('cursor:' || i, records => 'plan_cache_records')).result
    FROM generate_series(1, 3) AS i;
FETCH 1 FROM c;
ALTER SCHEMA plan_cache_one RENAME TO plan_cache_three;
FETCH 1 FROM c;
SELECT result FROM idemkit_claim('cursor:1', records => 'plan_cache_records');
FETCH 1 FROM c;
COMMIT;

-- Very many tables in one session.
DO $$
BEGIN
    FOR i IN 1 .. 50 LOOP
        PERFORM idemkit_create_table('plan_cache_t' || i);
        PERFORM plan_cache_cycle(('plan_cache_t' || i)::regclass);
        EXECUTE 'DROP TABLE plan_cache_t' || i;
    END LOOP;
END $$;
SELECT result FROM idemkit_claim('own');

SET client_min_messages = warning;
DROP SCHEMA plan_cache_two, plan_cache_three, plan_cache_busy CASCADE;
DROP TABLE plan_cache_records, plan_cache_log;
DROP FUNCTION plan_cache_cycle(regclass), plan_cache_watch();
