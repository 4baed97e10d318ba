--
-- idemkit_get shows the stored row, expired or not, and its computed columns.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT count(*) FROM idemkit_get('absent');
SELECT result FROM idemkit_claim('k', 'print', 2, 60);
SELECT g.effective_key, g.state, g.fingerprint, g.fingerprint_version,
       g.claim_token = r.claim_token AS token, g.claimed_at = r.claimed_at AS claimed,
       g.lease_until = r.lease_until AS lease, g.completed_at, g.response_status,
       g.response_headers, g.response_body, g.attempts,
       g.remaining_seconds BETWEEN 50 AND 60 AS remaining,
       'epoch'::timestamptz + g.fence * interval '1 microsecond' = r.claimed_at AS fence
FROM idemkit_get('k') AS g, idemkit_records AS r;

SELECT idemkit_complete('k', claim_token, 200, '{"a": 1}', 'body', 60) FROM idemkit_records;
SELECT g.state, g.completed_at = r.completed_at AS completed, g.response_status,
       g.response_headers, convert_from(g.response_body, 'UTF8') AS response_body,
       g.remaining_seconds BETWEEN 50 AND 60 AS remaining
FROM idemkit_get('k') AS g, idemkit_records AS r;

-- fence is the claim's time in microseconds since 1970, remaining_seconds is
-- lease_until less the clock, but not below 0.
UPDATE idemkit_records
SET claimed_at = '2001-02-03 04:05:06.789012+00', lease_until = '2001-02-03 04:05:36+00';
SELECT state, remaining_seconds, fence FROM idemkit_get('k');
UPDATE idemkit_records SET claimed_at = '1969-12-31 23:59:59.999999+00';
SELECT fence FROM idemkit_get('k');

-- Times nobody but a hand can have written.
UPDATE idemkit_records SET claimed_at = '-infinity', lease_until = 'infinity';
SELECT remaining_seconds, fence FROM idemkit_get('k');
UPDATE idemkit_records SET claimed_at = 'infinity', lease_until = '-infinity';
SELECT remaining_seconds, fence FROM idemkit_get('k');

-- Looking locks and writes nothing, and sees the caller's own changes.
BEGIN;
SELECT state FROM idemkit_get('k');
SELECT pg_current_xact_id_if_assigned();
SELECT result FROM idemkit_claim('inside');
SELECT state FROM idemkit_get('inside');
ROLLBACK;
SELECT count(*) FROM idemkit_get('inside');

-- Usable beside a table, and where only one value is wanted.
SELECT k, state FROM (VALUES ('k'), ('absent')) AS v (k) LEFT JOIN LATERAL idemkit_get(k) ON true
ORDER BY k;
SELECT (idemkit_get('k')).state;
SELECT (idemkit_get('absent')).state;
