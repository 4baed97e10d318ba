--
-- After a claim of a new key the next one tries the INSERT before it looks.  A
-- duplicate is not to notice: nothing is written, set off or refused.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
TRUNCATE idemkit_records;

CREATE ROLE regress_idemkit_first;
CREATE SCHEMA insert_first;
CREATE TABLE insert_first.log (what text);
CREATE FUNCTION insert_first.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO insert_first.log VALUES (TG_OP);
    RETURN NEW;
END $$;
CREATE SEQUENCE insert_first.numbers;

-- Makes a table with a live claim, changes it, claims a new key and then the
-- one that is there: what that claim says, how many lines the changes noted
-- meanwhile, and how many numbers of the sequence they took.
CREATE FUNCTION insert_first.duplicate(change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    noted bigint;
    number bigint;
    told text;
BEGIN
    CREATE TABLE insert_first.r (LIKE public.idemkit_records INCLUDING ALL);
    PERFORM idemkit_claim('there', records => 'insert_first.r');
    EXECUTE change;
    PERFORM idemkit_claim('new', 'print', records => 'insert_first.r');
    noted := (SELECT count(*) FROM insert_first.log);
    number := nextval('insert_first.numbers');
    told := (idemkit_claim('there', records => 'insert_first.r')).result;
    told := format('%s, %s noted, %s numbers', told,
                   (SELECT count(*) FROM insert_first.log) - noted,
                   nextval('insert_first.numbers') - number - 1);
    DROP TABLE insert_first.r CASCADE;
    RETURN told;
END $$;

SELECT insert_first.duplicate(change)
FROM unnest(ARRAY[
    'SELECT',
    'CREATE TRIGGER t BEFORE INSERT ON insert_first.r
     FOR EACH ROW EXECUTE FUNCTION insert_first.note()',
    'CREATE TRIGGER t AFTER INSERT ON insert_first.r
     FOR EACH STATEMENT EXECUTE FUNCTION insert_first.note()',
    'ALTER TABLE insert_first.r ADD COLUMN n bigint DEFAULT nextval(''insert_first.numbers'')',
    'ALTER TABLE insert_first.r ALTER COLUMN response_status
     SET DEFAULT nextval(''insert_first.numbers'')',
    'ALTER TABLE insert_first.r ADD CHECK (fingerprint = ''print'') NOT VALID',
    'ALTER TABLE insert_first.r DROP COLUMN response_status;
     ALTER TABLE insert_first.r ADD COLUMN response_status integer']) AS change;

-- A duplicate has no transaction id; the claim of a new key before it has one.
SELECT result FROM idemkit_claim('there');
BEGIN;
SELECT result FROM idemkit_claim('new');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;
BEGIN;
SELECT result FROM idemkit_claim('there');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;

-- In a read-only transaction, with a fixed snapshot, as a role that may only read.
SELECT result FROM idemkit_claim('new too');
BEGIN READ ONLY;
SELECT result FROM idemkit_claim('there');
COMMIT;
SELECT result FROM idemkit_claim('also new');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT result FROM idemkit_claim('there');
COMMIT;
GRANT SELECT ON idemkit_records TO regress_idemkit_first;
SELECT result FROM idemkit_claim('as new');
SET ROLE regress_idemkit_first;
SELECT result FROM idemkit_claim('there');
RESET ROLE;

REVOKE ALL ON idemkit_records FROM regress_idemkit_first;
SET client_min_messages = warning;
DROP SCHEMA insert_first CASCADE;
DROP ROLE regress_idemkit_first;
