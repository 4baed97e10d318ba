--
-- A new claim is added to a plain table without the executor.  Whatever makes a
-- table less plain has the effect that it has on any INSERT.  (What a duplicate
-- does not set off is in duplicate_after_win.)
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
TRUNCATE idemkit_records;

CREATE ROLE regress_idemkit_insert;
CREATE SCHEMA direct_insert;
CREATE TABLE direct_insert.log (what text);
CREATE FUNCTION direct_insert.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO direct_insert.log VALUES (TG_OP);
    RETURN NEW;
END $$;
CREATE SEQUENCE direct_insert.numbers;
CREATE DOMAIN direct_insert.filled AS text CHECK (VALUE IS NOT NULL);

-- Makes a table with a live claim, changes it, and claims a new key: the verdict
-- or SQLSTATE, how many lines the change noted, how many numbers of the sequence
-- it took, and how many rows are found by each index and by their contents.
CREATE FUNCTION direct_insert.outcome(change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
    told text;
BEGIN
    TRUNCATE direct_insert.log;
    CREATE TABLE direct_insert.r (LIKE public.idemkit_records INCLUDING ALL);
    PERFORM idemkit_claim('there', records => 'direct_insert.r');
    EXECUTE change;
    number := nextval('direct_insert.numbers');
    BEGIN
        told := (idemkit_claim('new', 'print', records => 'direct_insert.r')).result;
    EXCEPTION WHEN OTHERS THEN
        told := SQLSTATE;
    END;
    RESET search_path;
    told := concat_ws(' ', told, (SELECT count(*) FROM direct_insert.log),
                      nextval('direct_insert.numbers') - number - 1);
    SET LOCAL enable_seqscan = off;
    told := concat_ws(' ', told,
        (SELECT count(*) FROM direct_insert.r WHERE effective_key COLLATE "C" >= ''),
        (SELECT count(*) FROM direct_insert.r WHERE lease_until >= '-infinity'),
        (SELECT count(*) FROM direct_insert.r WHERE fingerprint >= ''),
        (SELECT count(*) FROM direct_insert.r WHERE awaited = false AND attempts = 1
            AND schema_version = 1 AND state = 'CLAIMED' AND completed_at IS NULL
            AND num_nulls(response_headers, response_body) = 2));
    RESET enable_seqscan;
    DROP TABLE direct_insert.r CASCADE;
    RETURN told;
END $$;

CREATE TABLE direct_insert.changes (i serial, kind text, change text);
INSERT INTO direct_insert.changes (kind, change) VALUES
    ('plain', 'SELECT'),
    ('one more index', 'CREATE INDEX ON direct_insert.r (fingerprint, state)'),
    ('row trigger before', 'CREATE TRIGGER t BEFORE INSERT ON direct_insert.r
      FOR EACH ROW EXECUTE FUNCTION direct_insert.note()'),
    ('row trigger after', 'CREATE TRIGGER t AFTER INSERT ON direct_insert.r
      FOR EACH ROW EXECUTE FUNCTION direct_insert.note()'),
    ('statement trigger', 'CREATE TRIGGER t AFTER INSERT ON direct_insert.r
      FOR EACH STATEMENT EXECUTE FUNCTION direct_insert.note()'),
    ('column with a default', 'ALTER TABLE direct_insert.r
      ADD COLUMN n bigint DEFAULT nextval(''direct_insert.numbers'')'),
    ('default of a column', 'ALTER TABLE direct_insert.r ALTER COLUMN response_status
      SET DEFAULT nextval(''direct_insert.numbers'')'),
    ('result is not null', 'UPDATE direct_insert.r SET response_status = 200;
      ALTER TABLE direct_insert.r ALTER COLUMN response_status SET NOT NULL'),
    ('generated column', 'ALTER TABLE direct_insert.r DROP COLUMN schema_version;
      ALTER TABLE direct_insert.r ADD COLUMN schema_version integer NOT NULL GENERATED ALWAYS AS (1) STORED'),
    ('identity column', 'ALTER TABLE direct_insert.r ALTER COLUMN schema_version DROP DEFAULT;
      ALTER TABLE direct_insert.r ALTER COLUMN schema_version ADD GENERATED ALWAYS AS IDENTITY'),
    ('column of a domain', 'ALTER TABLE direct_insert.r ADD COLUMN d direct_insert.filled DEFAULT ''x'';
      ALTER TABLE direct_insert.r ALTER COLUMN d DROP DEFAULT'),
    ('another check', 'ALTER TABLE direct_insert.r ADD CHECK (fingerprint <> ''print'')'),
    ('only another check', 'ALTER TABLE direct_insert.r DROP CONSTRAINT idemkit_records_state_check;
      ALTER TABLE direct_insert.r ADD CHECK (state <> ''CLAIMED'') NOT VALID'),
    ('check by an operator', 'CREATE FUNCTION direct_insert.never(text, text) RETURNS boolean
        LANGUAGE sql IMMUTABLE AS $f$ SELECT false $f$;
      CREATE OPERATOR direct_insert.= (FUNCTION = direct_insert.never, LEFTARG = text, RIGHTARG = text);
      SET search_path = direct_insert, pg_catalog, public;
      ALTER TABLE direct_insert.r DROP CONSTRAINT idemkit_records_state_check;
      ALTER TABLE direct_insert.r ADD CHECK (state IN (''CLAIMED'', ''COMPLETED'')) NOT VALID'),
    ('no check', 'ALTER TABLE direct_insert.r DROP CONSTRAINT idemkit_records_state_check'),
    ('unique index', 'CREATE UNIQUE INDEX ON direct_insert.r (state)'),
    ('partial index', 'CREATE INDEX ON direct_insert.r (state) WHERE state = ''CLAIMED'''),
    ('expression', 'CREATE INDEX ON direct_insert.r (length(state))'),
    ('dividing by zero', 'CREATE INDEX ON direct_insert.r ((1 / (length(effective_key) - 3)))'),
    ('hash index', 'CREATE INDEX ON direct_insert.r USING hash (state)'),
    ('exclusion', 'ALTER TABLE direct_insert.r ADD EXCLUDE (state WITH =)'),
    ('dropped column', 'ALTER TABLE direct_insert.r DROP COLUMN response_status;
      ALTER TABLE direct_insert.r ADD COLUMN response_status integer'),
    ('child table', 'CREATE TABLE direct_insert.c () INHERITS (direct_insert.r)'),
    ('rule', 'CREATE RULE n AS ON DELETE TO direct_insert.r DO ALSO SELECT 1'),
    ('unlogged', 'ALTER TABLE direct_insert.r SET UNLOGGED');
SELECT kind, direct_insert.outcome(change) FROM direct_insert.changes ORDER BY i;

-- Of claims in one transaction each sees those before it, and what is rolled
-- back is gone from every index.
BEGIN;
SELECT (idemkit_claim('k' || i % 3)).result FROM generate_series(1, 4) AS i;
SAVEPOINT s;
SELECT (idemkit_claim('k3')).result, (idemkit_claim('k3')).result;
ROLLBACK TO s;
SELECT (idemkit_claim('k3')).result, (idemkit_claim('k3')).result;
COMMIT;
SELECT (idemkit_claim('k3')).result;

-- Keys and fingerprints that are long enough to be compressed.
SELECT result, length(fingerprint), attempts
FROM idemkit_claim(repeat('k', 1024), repeat('print', 100000));
SELECT result, fingerprint_matches, length(effective_key)
FROM idemkit_claim(repeat('k', 1024), repeat('print', 100000));

-- Where it must not write, and as a role that may not.
\set VERBOSITY sqlstate
BEGIN READ ONLY;
SELECT result FROM idemkit_claim('absent');
ROLLBACK;
GRANT SELECT ON idemkit_records TO regress_idemkit_insert;
SET ROLE regress_idemkit_insert;
SELECT result FROM idemkit_claim('k3');
SELECT result FROM idemkit_claim('absent');
RESET ROLE;
GRANT INSERT ON idemkit_records TO regress_idemkit_insert;
SET ROLE regress_idemkit_insert;
SELECT result FROM idemkit_claim('absent');
RESET ROLE;
\set VERBOSITY default

REVOKE ALL ON idemkit_records FROM regress_idemkit_insert;
DROP SCHEMA direct_insert CASCADE;
DROP ROLE regress_idemkit_insert;
