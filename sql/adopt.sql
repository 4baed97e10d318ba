--
-- idemkit_create_table adopts a table as the Python package makes it: adds the
-- two columns and the index, and touches no row.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

CREATE TABLE adopt_records (
    effective_key text PRIMARY KEY,
    state text NOT NULL CHECK (state IN ('CLAIMED', 'COMPLETED')),
    fingerprint text NOT NULL,
    fingerprint_version integer NOT NULL,
    claim_token text NOT NULL,
    claimed_at timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    completed_at timestamptz,
    response_status integer,
    response_headers jsonb,
    response_body bytea,
    schema_version integer NOT NULL DEFAULT 1);
CREATE INDEX adopt_records_lease_until_idx ON adopt_records (lease_until) WHERE state = 'CLAIMED';
CREATE INDEX adopt_records_completed_at_idx ON adopt_records (completed_at)
    WHERE state = 'COMPLETED';
INSERT INTO adopt_records
SELECT 'k' || i, CASE i % 2 WHEN 0 THEN 'CLAIMED' ELSE 'COMPLETED' END, 'print', 1, 'owner' || i,
       '2020-01-01 00:00:00+00', clock_timestamp() + interval '1 hour',
       CASE i % 2 WHEN 1 THEN clock_timestamp() END, i, '{"i": 1}', 'body', 1
FROM generate_series(1, 100) AS i;

-- Before: no records table, and the hint says what to do.
SELECT idemkit_claim('k1', 'print', records => 'adopt_records');

-- The rows stay where they are.
CREATE TEMPORARY TABLE before AS
SELECT ctid AS place, xmin AS made_by, effective_key, a::text AS row FROM adopt_records AS a;
SELECT pg_relation_filenode('adopt_records') AS filenode \gset
SELECT idemkit_create_table('adopt_records');
SELECT pg_relation_filenode('adopt_records') = :filenode AS same_file;
SELECT count(*), bool_and(b.place = a.ctid AND b.made_by = a.xmin) AS same_place,
       bool_and(a::text = left(b.row, -1) || ',f,1)') AS same_row,
       bool_and(a.awaited = false AND a.attempts = 1) AS defaults
FROM before AS b JOIN adopt_records AS a USING (effective_key);

-- One full index in place of the two partial ones, the key ordered by bytes,
-- the storage parameters set.
SELECT indexdef FROM pg_indexes WHERE tablename = 'adopt_records' ORDER BY indexname;
SELECT attname, collname FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE attrelid = 'adopt_records'::regclass AND attname = 'effective_key';
SELECT a.reloptions = b.reloptions AS same_settings FROM pg_class AS a, pg_class AS b
WHERE a.oid = 'adopt_records'::regclass AND b.oid = 'idemkit_records'::regclass;
SELECT idemkit_verify_schema('adopt_records');

-- It works, with the rows of before, and so does repeating it.
SELECT result, fingerprint_matches, response_status, response_headers, attempts
FROM idemkit_claim('k1', 'print', records => 'adopt_records');
SELECT result, our_claim_token, claim_token
FROM idemkit_claim('k2', 'print', records => 'adopt_records');
SELECT idemkit_complete('k2', 'owner2', 200, records => 'adopt_records');
SELECT idemkit_create_table('adopt_records');
SELECT idemkit_create_table('ADOPT_records');
SELECT pg_relation_filenode('adopt_records') = :filenode AS same_file;

-- The package still writes: it names the first eleven columns or twelve.
INSERT INTO adopt_records (effective_key, state, fingerprint, fingerprint_version, claim_token,
                           claimed_at, lease_until, completed_at, response_status,
                           response_headers, response_body)
VALUES ('package', 'CLAIMED', 'print', 1, 'theirs', clock_timestamp(),
        clock_timestamp() + interval '1 hour', NULL, NULL, NULL, NULL);
SELECT result, our_claim_token, claim_token, attempts
FROM idemkit_claim('package', 'print', records => 'adopt_records');
UPDATE adopt_records SET state = 'COMPLETED', completed_at = clock_timestamp(),
    response_status = 204, lease_until = clock_timestamp() + interval '1 day'
WHERE effective_key = 'package' AND claim_token = 'theirs';
SELECT result, response_status FROM idemkit_claim('package', 'print', records => 'adopt_records');
-- And reads: what we wrote has the columns it knows.
SELECT result FROM idemkit_claim('ours', 'print', 1, 60, records => 'adopt_records');
SELECT effective_key, state, fingerprint, fingerprint_version, length(claim_token) AS token,
       lease_until - claimed_at AS lease, completed_at, response_status, response_headers,
       response_body, schema_version FROM adopt_records WHERE effective_key = 'ours';

-- A table that was set up by hand keeps its settings and its own index.
CREATE TABLE adopt_tuned (LIKE adopt_records INCLUDING ALL) WITH (fillfactor = 50);
ALTER TABLE adopt_tuned DROP COLUMN attempts;
CREATE INDEX adopt_mine ON adopt_tuned (lease_until);
CREATE INDEX adopt_tuned_completed_at_idx ON adopt_tuned (completed_at);
SET client_min_messages = warning;
SELECT idemkit_create_table('adopt_tuned');
RESET client_min_messages;
SELECT reloptions FROM pg_class WHERE oid = 'adopt_tuned'::regclass;
SELECT count(*) FILTER (WHERE indexname = 'adopt_mine') AS mine,
       count(*) FILTER (WHERE indexname = 'adopt_tuned_completed_at_idx') AS not_partial
FROM pg_indexes WHERE tablename = 'adopt_tuned';

-- What is not the package's table is refused and left alone.
CREATE TABLE adopt_short (LIKE adopt_records INCLUDING ALL);
ALTER TABLE adopt_short DROP COLUMN fingerprint, DROP COLUMN attempts;
SELECT idemkit_create_table('adopt_short');
CREATE TABLE adopt_types (LIKE adopt_records INCLUDING ALL);
ALTER TABLE adopt_types DROP COLUMN attempts, ALTER COLUMN lease_until TYPE timestamp;
SELECT idemkit_create_table('adopt_types');
CREATE TABLE adopt_keyless (LIKE adopt_records);
ALTER TABLE adopt_keyless DROP COLUMN attempts;
SELECT idemkit_create_table('adopt_keyless');
SELECT attrelid::regclass FROM pg_attribute WHERE attname = 'attempts' AND NOT attisdropped
AND attrelid IN ('adopt_short'::regclass, 'adopt_types'::regclass, 'adopt_keyless'::regclass);

-- An adoption that is rolled back has not happened.
CREATE TABLE adopt_rollback (LIKE adopt_records INCLUDING ALL);
ALTER TABLE adopt_rollback DROP COLUMN awaited, DROP COLUMN attempts;
BEGIN;
SELECT idemkit_create_table('adopt_rollback');
SELECT result FROM idemkit_claim('k', records => 'adopt_rollback');
ROLLBACK;
\set VERBOSITY sqlstate
SELECT result FROM idemkit_claim('k', records => 'adopt_rollback');
\set VERBOSITY default
SELECT idemkit_create_table('adopt_rollback');
SELECT result FROM idemkit_claim('k', records => 'adopt_rollback');
DROP TABLE adopt_records, adopt_tuned, adopt_short, adopt_types, adopt_keyless, adopt_rollback;
