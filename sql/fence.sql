--
-- fence strictly increases over the wins of a stored record, also where the
-- clock stands still or has stepped back.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT fence AS fence1, 'epoch'::timestamptz + fence * interval '1 microsecond' = claimed_at AS exact
FROM idemkit_claim('k') \gset
\echo :exact
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second';
SELECT fence AS fence2, fence > :fence1 AS higher FROM idemkit_claim('k') \gset
\echo :higher

-- The row was claimed in the future: 2100-01-01 is 4102444800 seconds after
-- 1970.  A reclaim moves on by one microsecond ...
UPDATE idemkit_records SET claimed_at = '2100-01-01 00:00:00+00',
                           lease_until = clock_timestamp() - interval '1 second';
SELECT result, fence FROM idemkit_claim('k', lease_ttl_seconds => 3600);
SELECT fence, remaining_seconds BETWEEN 3500 AND 3600 AS lease_from_the_clock
FROM idemkit_get('k');

-- ... and so does each win after it: after a release that keeps the row ...
SELECT idemkit_release('k', claim_token, true) FROM idemkit_records;
SELECT result, fence FROM idemkit_claim('k');

-- ... after a result that expired ...
SELECT idemkit_complete('k', claim_token, 200, expires_after_seconds => 0) FROM idemkit_records;
SELECT pg_sleep(0.001);
SELECT result, fence FROM idemkit_claim('k');

-- ... and after corruption.
UPDATE idemkit_records SET schema_version = 2;
SELECT result, recovered_from_corrupt, fence FROM idemkit_claim('k');

-- Whatever wins nothing leaves it alone.
SELECT idemkit_renew('k', claim_token) FROM idemkit_records;
SELECT result, fence FROM idemkit_claim('k');
SELECT idemkit_complete('k', claim_token, 200) FROM idemkit_records;
SELECT result, fence FROM idemkit_claim('k');

-- Many wins in a row, as fast as they come.
DO $$
DECLARE
    last bigint := 0;
    won idemkit_claim_result;
BEGIN
    FOR i IN 1 .. 1000 LOOP
        won := idemkit_claim('fast');
        IF won.our_claim_token IS NULL OR won.fence <= last THEN
            RAISE EXCEPTION 'win % has fence % after %', i, won.fence, last;
        END IF;
        last := won.fence;
        PERFORM idemkit_release('fast', won.our_claim_token, true);
    END LOOP;
END $$;
SELECT attempts FROM idemkit_get('fast');

-- Infinite times can only come from a hand; the next win is an ordinary one.
UPDATE idemkit_records SET claimed_at = 'infinity', lease_until = '-infinity'
WHERE effective_key = 'fast';
SELECT result, fence IS NULL AS no_fence FROM idemkit_claim('fast');

-- One that is too late for a fence has none, rather than a low one.
UPDATE idemkit_records SET claimed_at = '294276-01-01 00:00:00+00' WHERE effective_key = 'fast';
SELECT fence IS NULL AS no_fence FROM idemkit_get('fast');

-- Such a time cannot be passed: the next win is an ordinary one.
CREATE FUNCTION pg_temp.win_after(earlier timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    UPDATE idemkit_records SET claimed_at = earlier, lease_until = '-infinity' WHERE effective_key = 'fast';
    RETURN (SELECT concat_ws(', ', result, 'fence ' || CASE
                WHEN fence > 0 AND claimed_at <= clock_timestamp() THEN 'by the clock'
                WHEN fence > 0 AND claimed_at > earlier THEN 'after it' END)
            FROM idemkit_claim('fast'));
END $$;
SELECT pg_temp.win_after('294276-12-31 23:59:59.999999+00') AS the_last_time,
       pg_temp.win_after('294276-01-01 00:00:00+00') AS too_late, pg_temp.win_after('infinity') AS never,
       pg_temp.win_after('200000-01-01 00:00:00+00') AS late;
