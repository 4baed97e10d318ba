--
-- Triggers and rules on a records table that change rows, suppress them, raise, or
-- use the functions themselves: every call ends, in a verdict that is true or in an
-- error of those below, and nothing half done is left.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
TRUNCATE idemkit_records;
RESET client_min_messages;
CREATE SCHEMA triggers;
SET search_path = triggers, public;

-- What a query that returns one value returns, or the SQLSTATE it raises.
CREATE FUNCTION outcome(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    value text;
BEGIN
    EXECUTE query INTO value;
    RETURN coalesce(value, 'null');
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE;
END $$;

-- A table with a row of each kind, then changed.
CREATE PROCEDURE make(change text) LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL client_min_messages = warning;
    DROP TABLE IF EXISTS triggers.r CASCADE;
    CREATE TABLE triggers.r (LIKE public.idemkit_records INCLUDING ALL);
    INSERT INTO triggers.r (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at,
                            lease_until, completed_at)
    SELECT key, state, '', 1, 'token', '2001-01-01', clock_timestamp() + hours * interval '1 hour',
           CASE state WHEN 'COMPLETED' THEN '2001-01-01'::timestamptz END
    FROM (VALUES ('claim', 'CLAIMED', 1), ('lapsed', 'CLAIMED', -1), ('result', 'COMPLETED', 1),
                 ('over', 'COMPLETED', -1)) AS v (key, state, hours);
    EXECUTE change;
END $$;

-- Every verb on it.  Each is undone, so that each finds the same rows.
CREATE TABLE calls (i serial, name text, call text);
INSERT INTO calls (name, call) VALUES
    ('new', 'SELECT result FROM idemkit_claim(''new'', records => ''r'')'),
    ('lapsed', 'SELECT result FROM idemkit_claim(''lapsed'', records => ''r'')'),
    ('over', 'SELECT result FROM idemkit_claim(''over'', records => ''r'')'),
    ('live', 'SELECT result FROM idemkit_claim(''claim'', records => ''r'')'),
    ('many', 'SELECT string_agg(result, '' '') FROM
      idemkit_claim_many(ARRAY[''new'', ''lapsed'', ''over'', ''claim'', ''result''], records => ''r'')'),
    ('renew', 'SELECT idemkit_renew(''claim'', ''token'', records => ''r'')'),
    ('guard', 'SELECT idemkit_guard(''claim'', ''token'', ''r'')'),
    ('complete', 'SELECT idemkit_complete(''claim'', ''token'', records => ''r'')'),
    ('complete many', 'SELECT string_agg(d::text, '' '')
      FROM idemkit_complete_many(ARRAY[''lapsed'', ''claim''], ARRAY[''token'', ''token''], records => ''r'') AS d'),
    ('release', 'SELECT idemkit_release(''claim'', ''token'', records => ''r'')'),
    ('keeping', 'SELECT idemkit_release(''claim'', ''token'', true, ''r'')'),
    ('subscribe', 'SELECT string_agg(state, '' '') FROM idemkit_subscribe(ARRAY[''claim'', ''over''], ''r'')'),
    ('wait', 'SELECT outcome FROM idemkit_wait(''result'', 0, ''r'')'),
    ('vacuum', 'SELECT idemkit_vacuum(records => ''r'')'),
    ('vacuum by age', 'SELECT idemkit_vacuum(0, records => ''r'')'),
    ('stats', 'SELECT live_claims FROM idemkit_stats(''r'')');
CREATE FUNCTION try(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    told text;
BEGIN
    BEGIN
        told := outcome(call);
        RAISE EXCEPTION USING ERRCODE = 'ZZ999';
    EXCEPTION WHEN SQLSTATE 'ZZ999' THEN
        RETURN told;
    END;
END $$;

CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''refused'' USING ERRCODE = ''ZZ001''; END';
CREATE FUNCTION upper_key() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN NEW.effective_key := upper(NEW.effective_key); RETURN NEW; END';
CREATE FUNCTION other_token() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN NEW.claim_token := ''another''; RETURN NEW; END';
CREATE FUNCTION short_lease() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN NEW.lease_until := ''2001-01-01''; RETURN NEW; END';
CREATE FUNCTION no_state() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN NEW.state := ''BROKEN''; RETURN NEW; END';
CREATE FUNCTION remove_row() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN DELETE FROM triggers.r WHERE effective_key = NEW.effective_key; RETURN NEW; END';
CREATE FUNCTION add_trigger(timing text, event text, what text) RETURNS text LANGUAGE sql AS $$
    SELECT format('CREATE TRIGGER t %s %s ON triggers.r FOR EACH ROW EXECUTE FUNCTION triggers.%s()',
                  timing, event, what) $$;
CREATE TABLE changes (i serial, what text, change text);
INSERT INTO changes (what, change) VALUES ('nothing', 'SELECT');
INSERT INTO changes (what, change)
SELECT concat_ws(' ', what, timing, event), add_trigger(timing, event, what)
FROM unnest(ARRAY['suppress', 'upper_key', 'other_token', 'short_lease', 'no_state']) WITH ORDINALITY AS w (what, n),
     unnest(ARRAY['BEFORE']) AS timing, unnest(ARRAY['INSERT', 'UPDATE', 'DELETE']) AS event
WHERE what = 'suppress' OR event <> 'DELETE'
ORDER BY n, event COLLATE "C";
INSERT INTO changes (what, change)
SELECT concat_ws(' ', what, timing, event), add_trigger(timing, event, what)
FROM unnest(ARRAY['refuse', 'remove_row']) WITH ORDINALITY AS w (what, n),
     unnest(ARRAY['BEFORE', 'AFTER']) AS timing, unnest(ARRAY['INSERT', 'UPDATE', 'DELETE']) AS event
WHERE what = 'refuse' OR event <> 'DELETE'
ORDER BY n, timing COLLATE "C", event COLLATE "C";
INSERT INTO changes (what, change)
SELECT concat_ws(' ', 'rule', event, action), format('CREATE RULE t AS ON %s TO triggers.r DO %s', event, action)
FROM unnest(ARRAY['INSERT', 'UPDATE', 'DELETE']) AS event,
     unnest(ARRAY['INSTEAD NOTHING', 'ALSO SELECT 1', 'INSTEAD SELECT 1']) AS action;

CREATE TABLE outcomes (change text, call text, told text);
DO $$
DECLARE
    c changes;
BEGIN
    FOR c IN SELECT * FROM changes ORDER BY i LOOP
        CALL make(c.change);
        INSERT INTO outcomes SELECT c.what, name, try(call) FROM calls ORDER BY i;
    END LOOP;
END $$;
SELECT call, told FROM outcomes WHERE change = 'nothing';
-- What is different where something is in the way.
SELECT o.change, string_agg(concat(o.call, ': ', o.told), ', ' ORDER BY calls.i) AS told
FROM outcomes AS o JOIN outcomes AS plain ON plain.change = 'nothing' AND plain.call = o.call
     JOIN calls ON calls.name = o.call JOIN changes ON changes.what = o.change
WHERE o.told <> plain.told GROUP BY o.change, changes.i ORDER BY changes.i;

-- A batch whose keys are changed says so.
CALL make(add_trigger('BEFORE', 'INSERT', 'upper_key'));
SELECT idemkit_claim_many(ARRAY['new'], records => 'r');

-- A trigger that uses the functions itself, on the same table and on another: every
-- win claims a second key, every completion completes that.
CREATE TABLE echoes (LIKE public.idemkit_records INCLUDING ALL);
CREATE FUNCTION echo() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() > 1 THEN
        RETURN NULL;
    END IF;
    IF NEW.state = 'CLAIMED' THEN
        PERFORM idemkit_claim(NEW.effective_key || suffix, records => 'triggers.r'),
                idemkit_claim(NEW.effective_key || suffix, records => 'triggers.echoes')
        FROM unnest(ARRAY[':1', ':2']) AS suffix;
        PERFORM idemkit_claim_many(ARRAY[NEW.effective_key || ':1', NEW.effective_key || ':3'],
                                   records => 'triggers.r');
    ELSE
        PERFORM idemkit_complete(effective_key, claim_token, NEW.response_status, records => 'triggers.r')
        FROM triggers.r WHERE effective_key LIKE NEW.effective_key || ':%';
    END IF;
    RETURN NULL;
END $$;
CALL make('CREATE TRIGGER t AFTER INSERT OR UPDATE ON triggers.r FOR EACH ROW EXECUTE FUNCTION triggers.echo()');
SELECT result FROM idemkit_claim('a', records => 'r');
SELECT string_agg(result, ' ') FROM idemkit_claim_many(ARRAY['b', 'c', 'a:3'], records => 'r');
SELECT idemkit_complete('b', claim_token, 201, records => 'r') FROM r WHERE effective_key = 'b';
SELECT idemkit_release('c', claim_token, records => 'r') FROM r WHERE effective_key = 'c';
SELECT effective_key, state, response_status FROM r WHERE effective_key ~ '^[abc](:|$)' ORDER BY 1;
SELECT string_agg(effective_key, ' ' ORDER BY effective_key) FROM echoes;

-- Deferred constraint triggers run at COMMIT.  They may complete what was claimed;
-- what they raise takes everything with it.
CREATE TABLE orders (id integer PRIMARY KEY, key text);
CREATE FUNCTION finish() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.id < 0 THEN
        RAISE EXCEPTION 'refused' USING ERRCODE = 'ZZ001';
    END IF;
    PERFORM idemkit_guard(NEW.key, (SELECT claim_token FROM triggers.r WHERE effective_key = NEW.key), 'triggers.r');
    IF NOT idemkit_complete(NEW.key, (SELECT claim_token FROM triggers.r WHERE effective_key = NEW.key), NEW.id,
                            records => 'triggers.r') THEN
        RAISE EXCEPTION 'not held';
    END IF;
    PERFORM idemkit_claim(NEW.key || ':next', records => 'triggers.r');
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER finish AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION finish();
CALL make('SELECT');
\set VERBOSITY sqlstate
BEGIN;
SELECT result FROM idemkit_claim('order 1', records => 'r');
INSERT INTO orders VALUES (1, 'order 1');
SELECT result FROM idemkit_claim('order 1', records => 'r');
COMMIT;
SELECT result, response_status FROM idemkit_claim('order 1', records => 'r');
SELECT result FROM idemkit_claim('order 1:next', records => 'r');
BEGIN;
SELECT result FROM idemkit_claim('order 2', records => 'r');
SELECT string_agg(result, ' ') FROM idemkit_claim_many(ARRAY['order 3', 'lapsed'], records => 'r');
INSERT INTO orders VALUES (-2, 'order 2');
COMMIT;
BEGIN;
INSERT INTO orders VALUES (2, 'nobody has claimed it');
COMMIT;
SELECT id FROM orders;
SELECT effective_key, state FROM r ORDER BY 1;

-- The same at SET CONSTRAINTS, in the middle of a transaction.
BEGIN;
SELECT result FROM idemkit_claim('order 4', records => 'r');
INSERT INTO orders VALUES (4, 'order 4');
SET CONSTRAINTS finish IMMEDIATE;
SELECT result, response_status FROM idemkit_claim('order 4', records => 'r');
SAVEPOINT s;
INSERT INTO orders VALUES (-5, 'order 5');
ROLLBACK TO s;
SELECT result FROM idemkit_claim('order 5', records => 'r');
COMMIT;

-- A deferred foreign key to the claim: the order may come first, and what is
-- referenced cannot be released or removed.
CREATE TABLE parcels (key text REFERENCES r DEFERRABLE INITIALLY DEFERRED);
BEGIN;
INSERT INTO parcels VALUES ('parcel');
SELECT result FROM idemkit_claim('parcel', records => 'r');
COMMIT;
BEGIN;
INSERT INTO parcels VALUES ('never claimed');
COMMIT;
BEGIN;
SELECT idemkit_release('parcel', claim_token, records => 'r') FROM r WHERE effective_key = 'parcel';
COMMIT;
UPDATE r SET lease_until = '2001-01-01' WHERE effective_key = 'parcel';
SELECT idemkit_vacuum(records => 'r');
SELECT result FROM idemkit_claim('parcel', records => 'r');
\set VERBOSITY default

RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA triggers CASCADE;
