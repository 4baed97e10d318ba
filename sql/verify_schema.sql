--
-- idemkit_verify_schema raises with what is wrong with a records table and the
-- statement that mends it.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT idemkit_verify_schema();
SELECT idemkit_verify_schema(NULL);
SELECT idemkit_verify_schema('idemkit_records');

-- Breaks a table, shows each complaint and runs the statement it names until
-- there is none; then the table must work.
CREATE FUNCTION pg_temp.mend(breakage text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    complaint text;
    hint text;
BEGIN
    CREATE TABLE "Verify it" (LIKE public.idemkit_records INCLUDING ALL);
    EXECUTE breakage;
    FOR i IN 1 .. 5 LOOP
        BEGIN
            PERFORM public.idemkit_verify_schema('"Verify it"');
            EXIT;
        EXCEPTION WHEN object_not_in_prerequisite_state THEN
            GET STACKED DIAGNOSTICS complaint = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
        END;
        RETURN NEXT complaint;
        RETURN NEXT '  ' || hint;
        EXECUTE substring(hint FROM '^Run: (.*);$');
    END LOOP;
    RETURN NEXT '  ' || (public.idemkit_claim('k', records => '"Verify it"')).result;
    PERFORM public.idemkit_verify_schema('"Verify it"');
    DROP TABLE "Verify it";
END $$;
SELECT pg_temp.mend('ALTER TABLE "Verify it" DROP COLUMN response_headers');
SELECT pg_temp.mend('ALTER TABLE "Verify it" DROP COLUMN attempts, DROP COLUMN awaited');
SELECT pg_temp.mend('ALTER TABLE "Verify it" ALTER COLUMN attempts TYPE bigint');
SELECT pg_temp.mend('ALTER TABLE "Verify it" ALTER COLUMN fingerprint TYPE varchar(20)');
SELECT pg_temp.mend('ALTER TABLE "Verify it" ALTER COLUMN claim_token DROP NOT NULL');
SELECT pg_temp.mend('ALTER TABLE "Verify it" DROP CONSTRAINT "Verify it_pkey"');
SELECT pg_temp.mend('ALTER TABLE "Verify it" '
                    'ALTER COLUMN effective_key TYPE text COLLATE "default"');
SELECT pg_temp.mend('DROP INDEX "Verify it_lease_until_idx"');
SELECT pg_temp.mend('DROP INDEX "Verify it_lease_until_idx"; '
                    'CREATE INDEX "Verify it_lease_until_idx1" ON "Verify it" (lease_until) '
                    'WHERE state = ''CLAIMED''');
SELECT pg_temp.mend('ALTER TABLE "Verify it" DROP COLUMN awaited, '
                    'ADD COLUMN awaited boolean NOT NULL GENERATED ALWAYS AS (false) STORED');
SELECT pg_temp.mend('ALTER TABLE "Verify it" DROP COLUMN lease_until, DROP COLUMN effective_key');

-- What no statement mends.
CREATE VIEW verify_view AS SELECT * FROM idemkit_records;
SELECT idemkit_verify_schema('verify_view');
DROP VIEW verify_view;
\set VERBOSITY sqlstate
SELECT idemkit_verify_schema('verify_nowhere');
SELECT idemkit_verify_schema(1);
\set VERBOSITY default

-- The verbs do not insist on what only makes them fast.
CREATE TABLE verify_slow (LIKE idemkit_records INCLUDING ALL);
DROP INDEX verify_slow_lease_until_idx;
SELECT idemkit_verify_schema('verify_slow');
SELECT result FROM idemkit_claim('k', records => 'verify_slow');
SELECT idemkit_vacuum(records => 'verify_slow');
DROP TABLE verify_slow;
