--
-- The verdicts of idemkit_claim, one after the other on the way of a key from
-- absent to completed and back.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- An absent key is won: a token of 32 hexadecimal digits, a full lease, one
-- attempt.
SELECT result, our_claim_token ~ '^[0-9a-f]{32}$' AS token_shape,
       our_claim_token = claim_token AS token_is_stored, recovered_from_corrupt,
       fingerprint_matches
FROM idemkit_claim('k', 'print', 7, 20);
SELECT effective_key, state, fingerprint, fingerprint_version,
       claim_token ~ '^[0-9a-f]{32}$' AS token_shape,
       lease_until - claimed_at AS lease, completed_at, response_status, response_headers,
       response_body, schema_version, awaited, attempts
FROM idemkit_records;

-- A second claim of a held key learns who holds it, but gets no token of its
-- own, and every column of the record as it is stored.
SELECT c.result, c.our_claim_token, c.recovered_from_corrupt, c.fingerprint_matches,
       c.effective_key = r.effective_key AND c.state = r.state
       AND c.fingerprint = r.fingerprint AND c.fingerprint_version = r.fingerprint_version
       AND c.claim_token = r.claim_token AND c.claimed_at = r.claimed_at
       AND c.lease_until = r.lease_until AND c.attempts = r.attempts AS record_is_stored,
       c.completed_at, c.response_status, c.response_headers, c.response_body,
       c.remaining_seconds > 10 AND c.remaining_seconds <= 20 AS remaining
FROM idemkit_claim('k', 'print', 7) AS c, idemkit_records AS r;

-- reclaim => false makes no difference to a live claim.
SELECT result, our_claim_token FROM idemkit_claim('k', 'print', 7, reclaim => false);

-- Once completed, every claim gets the result.
SELECT idemkit_complete('k', claim_token, 201, '{"content-type": "text/plain"}', 'created')
FROM idemkit_records;
SELECT result, our_claim_token, fingerprint_matches, state, completed_at IS NOT NULL AS completed,
       response_status, response_headers, convert_from(response_body, 'UTF8') AS response_body,
       attempts, remaining_seconds BETWEEN 86000 AND 86400 AS remaining
FROM idemkit_claim('k', 'print', 7);
SELECT result, our_claim_token FROM idemkit_claim('k', 'print', 7, reclaim => false);

-- A result past its retention is as good as absent: the next claim wins anew,
-- attempts start again and nothing of the old result is left.
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second';
SELECT result, our_claim_token = claim_token AS won, recovered_from_corrupt, fingerprint_matches,
       state, fingerprint, fingerprint_version, completed_at, response_status, response_headers,
       response_body, attempts, remaining_seconds BETWEEN 1 AND 5 AS remaining
FROM idemkit_claim('k', 'other', 8, 5);
SELECT state, fingerprint, fingerprint_version, completed_at, response_status, response_headers,
       response_body, attempts
FROM idemkit_records;

-- The same with reclaim => false: that setting is about lapsed claims only.
SELECT idemkit_complete('k', claim_token, expires_after_seconds => 0) FROM idemkit_records;
SELECT pg_sleep(0.001);
SELECT result, our_claim_token = claim_token AS won FROM idemkit_claim('k', reclaim => false);

-- Each win has a token of its own.
CREATE TEMPORARY TABLE tokens AS
SELECT (idemkit_claim('many:' || i)).our_claim_token AS token FROM generate_series(1, 100) AS i;
SELECT count(DISTINCT token) FROM tokens;

-- Called once per row of a query, a repeated key is won once.
SELECT result, count(*) FROM (SELECT (idemkit_claim('once:' || i % 3)).result
                              FROM generate_series(1, 9) AS i) AS claims
GROUP BY result ORDER BY result;

-- Defaults: no fingerprint, version 1, a lease of 30 seconds.
SELECT result, fingerprint = '' AS no_fingerprint, fingerprint_version,
       lease_until - claimed_at AS lease
FROM idemkit_claim('defaults');
SELECT result, fingerprint_matches FROM idemkit_claim('defaults');
