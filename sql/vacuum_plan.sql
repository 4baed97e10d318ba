--
-- Both expiry rules of idemkit_vacuum use the index on lease_until as a range:
-- how much of it a call reads depends on what has expired, not on the size of
-- the table.  Plans are made inside the extension, so what ran is shown by the
-- counters of this transaction: scans, and index entries read.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT idemkit_create_table('plan_records');
ALTER TABLE plan_records SET (autovacuum_enabled = false);
-- Runs a query that returns one value, and counts what it did to the table.
CREATE FUNCTION plan_scans(query text, OUT value text, OUT whole_table bigint,
                           OUT by_lease_until bigint, OUT entries_read bigint)
LANGUAGE plpgsql AS $$
DECLARE
    index CONSTANT regclass := 'plan_records_lease_until_idx';
BEGIN
    whole_table := -pg_stat_get_xact_numscans('plan_records'::regclass);
    by_lease_until := -pg_stat_get_xact_numscans(index);
    entries_read := -pg_stat_get_xact_tuples_returned(index);
    EXECUTE query INTO value;
    whole_table := whole_table + pg_stat_get_xact_numscans('plan_records'::regclass);
    by_lease_until := by_lease_until + pg_stat_get_xact_numscans(index);
    entries_read := entries_read + pg_stat_get_xact_tuples_returned(index);
END $$;
-- What that gave; entries of rows just removed may be read once more.
CREATE FUNCTION plan_of(query text, OUT value text, OUT whole_table bigint,
                        OUT by_lease_until bigint, OUT few_entries boolean)
LANGUAGE sql AS $$
    SELECT value, whole_table, by_lease_until, entries_read <= 300 FROM plan_scans(query)
$$;

-- A trigger that must fire for every row makes the functions take another way
-- to the rows than on a table that nothing is attached to: first this way.
CREATE FUNCTION plan_nothing() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RETURN NULL; END $$;
CREATE TRIGGER nothing AFTER DELETE ON plan_records
    FOR EACH ROW EXECUTE FUNCTION plan_nothing();

-- Plans are made and kept while the table is tiny, as those of a program which
-- starts before its table has grown; statistics say that it is tiny, so that
-- the planner would read all of it.
SELECT count(*) FROM generate_series(1, 5) AS i, idemkit_claim('k' || i, records => 'plan_records');
UPDATE plan_records SET claim_token = 'owner';
VACUUM ANALYZE plan_records;
SELECT idemkit_vacuum(records => 'plan_records'), idemkit_vacuum(0, records => 'plan_records');
SELECT idemkit_renew('k1', 'owner', 30, 'plan_records') AS renew,
       idemkit_guard('k1', 'owner', 'plan_records') AS guard,
       idemkit_release('k2', 'owner', false, 'plan_records') AS release,
       idemkit_complete('k3', 'owner', records => 'plan_records') AS complete;
SELECT * FROM idemkit_complete_many(ARRAY['k4'], ARRAY['owner'], records => 'plan_records');
SELECT idemkit_release('k1', 'owner', true, 'plan_records') AS release_keeping;
SELECT result FROM idemkit_claim('k1', records => 'plan_records');
SELECT count(*) FROM idemkit_claim_many(ARRAY['k1', 'k5', 'k6'], records => 'plan_records');
SELECT count(*) FROM idemkit_subscribe(ARRAY['k1', 'k5', 'k6'], 'plan_records');
DELETE FROM plan_records;

-- 60,000 live rows; 20 results and 20 claims that are over, and 10 claims that
-- have lapsed but are within the grace.
INSERT INTO plan_records (effective_key, state, fingerprint, fingerprint_version, claim_token,
                          claimed_at, lease_until, completed_at)
SELECT 'live:' || i, CASE i % 2 WHEN 0 THEN 'CLAIMED' ELSE 'COMPLETED' END, '', 1, 'owner',
       clock_timestamp(), clock_timestamp() + interval '1 day',
       CASE i % 2 WHEN 1 THEN clock_timestamp() END
FROM generate_series(1, 60000) AS i;
CREATE FUNCTION plan_expire() RETURNS void LANGUAGE sql AS $$
    INSERT INTO plan_records (effective_key, state, fingerprint, fingerprint_version, claim_token,
                              claimed_at, lease_until, completed_at)
    SELECT state || i, state, '', 1, 'owner', clock_timestamp(),
           clock_timestamp() - CASE WHEN i > 20 THEN 5 ELSE 1000 END * interval '1 second',
           CASE state WHEN 'COMPLETED' THEN clock_timestamp() END
    FROM unnest(ARRAY['CLAIMED', 'COMPLETED']) AS state, generate_series(1, 30) AS i
    WHERE state = 'CLAIMED' OR i <= 20;
$$;
SELECT FROM plan_expire();
SELECT * FROM plan_of('SELECT idemkit_vacuum(records => ''plan_records'')');

-- Only claims, only results.
DELETE FROM plan_records WHERE effective_key NOT LIKE 'live:%';
VACUUM plan_records;
SELECT FROM plan_expire();
DELETE FROM plan_records WHERE state = 'COMPLETED' AND effective_key NOT LIKE 'live:%';
VACUUM plan_records;
SELECT * FROM plan_of('SELECT idemkit_vacuum(records => ''plan_records'')');
DELETE FROM plan_records WHERE effective_key NOT LIKE 'live:%';
SELECT FROM plan_expire();
DELETE FROM plan_records WHERE state = 'CLAIMED' AND effective_key NOT LIKE 'live:%';
VACUUM plan_records;
SELECT * FROM plan_of('SELECT idemkit_vacuum(records => ''plan_records'')');

-- The verbs find their row by the primary key, in a table of any size.
UPDATE plan_records SET effective_key = 'over', lease_until = clock_timestamp() - interval '1 hour'
WHERE effective_key = 'live:14';
SELECT s.*, query
FROM (VALUES ('SELECT result FROM idemkit_claim(''live:1'', records => ''plan_records'')'),
             ('SELECT result FROM idemkit_claim(''new'', records => ''plan_records'')'),
             ('SELECT idemkit_renew(''live:2'', ''owner'', records => ''plan_records'')'),
             ('SELECT idemkit_guard(''live:2'', ''owner'', ''plan_records'')'),
             ('SELECT idemkit_complete(''live:2'', ''owner'', records => ''plan_records'')'),
             ('SELECT idemkit_release(''live:4'', ''owner'', true, ''plan_records'')'),
             ('SELECT result FROM idemkit_claim(''live:4'', records => ''plan_records'')'),
             ('SELECT idemkit_release(''live:6'', ''owner'', false, ''plan_records'')'),
             ('SELECT state FROM idemkit_get(''live:8'', ''plan_records'')'),
             ('SELECT count(*) FROM idemkit_claim_many(ARRAY[''live:10'', ''over'', ''one''], '
              'records => ''plan_records'')'),
             ('SELECT count(*) FROM idemkit_subscribe(ARRAY[''live:10'', ''live:12'', ''two''], '
              '''plan_records'')'),
             ('SELECT count(*) FROM idemkit_complete_many(ARRAY[''live:10'', ''live:12'', ''two''], '
              'ARRAY[''owner'', ''owner'', ''owner''], records => ''plan_records'')'))
         AS v (query),
     plan_scans(query) AS s;

-- The other way, in a new session, with statistics; max_rows ends the scan.
DROP TRIGGER nothing ON plan_records;
DELETE FROM plan_records WHERE effective_key NOT LIKE 'live:%';
VACUUM ANALYZE plan_records;
SELECT FROM plan_expire();
\c -
SELECT * FROM plan_of('SELECT idemkit_vacuum(max_rows => 7, records => ''plan_records'')');
SELECT * FROM plan_of('SELECT idemkit_vacuum(records => ''plan_records'')');

-- Nothing has expired: nothing is read.
DELETE FROM plan_records WHERE effective_key NOT LIKE 'live:%';
VACUUM plan_records;
SELECT * FROM plan_of('SELECT idemkit_vacuum(records => ''plan_records'')');
DROP FUNCTION plan_of(text), plan_scans(text), plan_expire(), plan_nothing() CASCADE;
DROP TABLE plan_records;
