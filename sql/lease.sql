--
-- Leases: who may take over what, and when.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- A claim whose lease ran out is taken over with a new token; the attempt is
-- counted and the old owner has lost every right.
SELECT our_claim_token AS first FROM idemkit_claim('k') \gset
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second';
SELECT result, our_claim_token = claim_token AS won,
       our_claim_token <> :'first' AS token_is_new, attempts, recovered_from_corrupt,
       remaining_seconds BETWEEN 1 AND 10 AS remaining
FROM idemkit_claim('k', lease_ttl_seconds => 10);
SELECT idemkit_renew('k', :'first') AS renew,
       idemkit_complete('k', :'first') AS complete, idemkit_release('k', :'first') AS release;
SELECT state, attempts, claim_token <> :'first' AS token_is_new FROM idemkit_records;
SELECT result FROM idemkit_claim('k');

-- Attempts count the wins since the key was last absent.
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second';
SELECT result, attempts FROM idemkit_claim('k');
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second';
SELECT result, attempts FROM idemkit_claim('k');
SELECT idemkit_release('k', claim_token) FROM idemkit_records;
SELECT result, attempts FROM idemkit_claim('k');

-- The highest number of attempts there can be is not an error.
UPDATE idemkit_records
SET lease_until = clock_timestamp() - interval '1 second', attempts = 2147483647;
SELECT result, attempts FROM idemkit_claim('k');

-- With reclaim => false a lapsed claim is reported and left alone: what its
-- owner did is unknown, the caller decides.
UPDATE idemkit_records
SET lease_until = clock_timestamp() - interval '1 second', attempts = 3;
CREATE TEMPORARY TABLE before AS SELECT r::text AS row, xmin AS made_by, xmax AS locked_by FROM idemkit_records AS r;
SELECT result, our_claim_token, state, attempts, remaining_seconds
FROM idemkit_claim('k', reclaim => false);
SELECT b.row = r::text AS same_row, b.made_by = r.xmin AND b.locked_by = r.xmax AS same_version
FROM before AS b, idemkit_records AS r;

-- The owner whose lease ran out may still finish while nobody took over.
SELECT idemkit_complete('k', claim_token, 200) FROM idemkit_records;
SELECT result, response_status FROM idemkit_claim('k');

-- The clock that decides is not that of the transaction's start: a lease runs
-- out inside one transaction.  The sleep is the time that must pass.
BEGIN;
SELECT result FROM idemkit_claim('own', lease_ttl_seconds => 0.5);
SELECT result FROM idemkit_claim('own');
SELECT pg_sleep(0.6);
SELECT result, attempts FROM idemkit_claim('own', lease_ttl_seconds => 0.5);
SELECT idemkit_complete('own', claim_token, 200, expires_after_seconds => 0.5)
FROM idemkit_records WHERE effective_key = 'own';
SELECT result FROM idemkit_claim('own');
SELECT pg_sleep(0.6);
SELECT result, attempts FROM idemkit_claim('own', lease_ttl_seconds => 0.5);
COMMIT;

-- claimed_at is the clock's time, too, and the lease counts from it.
BEGIN;
SELECT pg_sleep(0.01);
SELECT claimed_at > now() AS after_start, claimed_at <= clock_timestamp() AS not_ahead,
       lease_until - claimed_at AS lease
FROM idemkit_claim('clock', lease_ttl_seconds => 1.5);
COMMIT;

-- A lease of one microsecond, the shortest there is.
SELECT result, lease_until - claimed_at AS lease
FROM idemkit_claim('short', lease_ttl_seconds => 0.000001);
SELECT pg_sleep(0.001);
SELECT result FROM idemkit_claim('short');
