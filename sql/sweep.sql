--
-- CALL idemkit_sweep: idemkit_vacuum in batches, a commit after each.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

CREATE PROCEDURE sweep_fill() LANGUAGE sql AS $$
    TRUNCATE idemkit_records;
    INSERT INTO idemkit_records (effective_key, state, fingerprint, fingerprint_version,
                                 claim_token, claimed_at, lease_until, completed_at)
    SELECT kind || i, state, '', 1, 'owner', clock_timestamp() - interval '1 day',
           clock_timestamp() + left_over * interval '1 second',
           CASE state WHEN 'COMPLETED' THEN clock_timestamp() END
    FROM (VALUES ('live claim ', 'CLAIMED', 1000), ('lapsed within the grace ', 'CLAIMED', -30),
                 ('lapsed ', 'CLAIMED', -1000), ('result ', 'COMPLETED', 1000),
                 ('result over ', 'COMPLETED', -1)) AS v (kind, state, left_over),
         generate_series(1, 100) AS i;
$$;
CREATE VIEW sweep_kinds AS
SELECT rtrim(effective_key, '0123456789 ') AS kind, count(*) FROM idemkit_records
GROUP BY 1 ORDER BY 1;

-- What it removes, in one batch, and what it says.
CALL sweep_fill();
CALL idemkit_sweep();
SELECT * FROM sweep_kinds;
CALL idemkit_sweep();

-- In many batches, each reported.
CALL sweep_fill();
CALL idemkit_sweep(batch_rows => 60);
SELECT * FROM sweep_kinds;
SET client_min_messages = warning;
CALL sweep_fill();
CALL idemkit_sweep(batch_rows => 1);
SELECT * FROM sweep_kinds;

-- All arguments; an exact number of batches; rows that expire at one moment.
CALL sweep_fill();
CALL idemkit_sweep(12345, 100, 0);
SELECT * FROM sweep_kinds;
CALL sweep_fill();
UPDATE idemkit_records SET lease_until = '2020-01-01 00:00:00+00'
WHERE effective_key LIKE 'result over%';
CALL idemkit_sweep(batch_rows => 7);
SELECT * FROM sweep_kinds;
CALL sweep_fill();
UPDATE idemkit_records SET lease_until = '-infinity'
WHERE effective_key LIKE 'result over%';
CALL idemkit_sweep(batch_rows => 7);
SELECT * FROM sweep_kinds;

-- Another table.
SELECT idemkit_create_table('sweep_records');
SELECT count(*) FROM idemkit_claim_many(ARRAY['a', 'b'], lease_ttl_seconds => 0.000001,
                                        records => 'sweep_records');
SELECT pg_sleep(0.001);
CALL idemkit_sweep(lease_grace_seconds => 0, records => 'sweep_records');
SELECT count(*) FROM sweep_records;
DROP TABLE sweep_records;

-- It commits: from another session's point of view, a batch is gone when it is
-- done.  The trigger fails in the second batch; the first stays removed.
CALL sweep_fill();
CREATE FUNCTION sweep_fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.effective_key = 'result over 100' THEN
        RAISE EXCEPTION 'no further';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER fail BEFORE DELETE ON idemkit_records
    FOR EACH ROW EXECUTE FUNCTION sweep_fail();
\set VERBOSITY sqlstate
CALL idemkit_sweep(batch_rows => 150);
\set VERBOSITY default
SELECT * FROM sweep_kinds;
DROP TRIGGER fail ON idemkit_records;
CALL idemkit_sweep();

-- From a DO block and a procedure, outside a transaction block.
CALL sweep_fill();
DO $$
DECLARE
    removed bigint;
BEGIN
    CALL idemkit_sweep(removed, 60);
    RAISE WARNING 'removed %', removed;
END $$;

-- Refused inside a transaction block, from a function, and with arguments
-- that make no sense; and then nothing is removed.
CALL sweep_fill();
\set VERBOSITY sqlstate
BEGIN;
CALL idemkit_sweep();
ROLLBACK;
CREATE FUNCTION sweep_inside() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    CALL idemkit_sweep(removed);
END $$;
SELECT sweep_inside();
CALL idemkit_sweep(batch_rows => 0);
CALL idemkit_sweep(batch_rows => -1);
CALL idemkit_sweep(batch_rows => NULL);
CALL idemkit_sweep(lease_grace_seconds => NULL);
CALL idemkit_sweep(lease_grace_seconds => -1);
CALL idemkit_sweep(lease_grace_seconds => 'NaN');
CALL idemkit_sweep(lease_grace_seconds => 1e10);
CALL idemkit_sweep(records => 'pg_class');
CALL idemkit_sweep(records => 1);
\set VERBOSITY default
SELECT sum(count) FROM sweep_kinds;
-- After an error it works.
CALL idemkit_sweep();

-- An ordinary role with the rights of idemkit_vacuum.
CREATE ROLE regress_idemkit_sweeper;
CALL sweep_fill();
\set VERBOSITY sqlstate
SET ROLE regress_idemkit_sweeper;
CALL idemkit_sweep();
RESET ROLE;
\set VERBOSITY default
GRANT SELECT, UPDATE, DELETE ON idemkit_records TO regress_idemkit_sweeper;
SET ROLE regress_idemkit_sweeper;
CALL idemkit_sweep();
RESET ROLE;
REVOKE ALL ON idemkit_records FROM regress_idemkit_sweeper;
DROP ROLE regress_idemkit_sweeper;

DROP FUNCTION sweep_fail(), sweep_inside();
DROP PROCEDURE sweep_fill();
DROP VIEW sweep_kinds;
