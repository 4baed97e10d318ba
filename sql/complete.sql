--
-- idemkit_complete acts on a claim that is held with the given token, once,
-- and stores exactly what it was given.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT our_claim_token AS token FROM idemkit_claim('k', 'print', 3) \gset

-- Not with another token, not another key.
SELECT idemkit_complete('k', 'wrong', 500), idemkit_complete('k', '', 500),
       idemkit_complete('k', :'token' || 'x', 500), idemkit_complete('K', :'token', 500),
       idemkit_complete('absent', :'token', 500);
SELECT state, response_status FROM idemkit_records;

-- The result is stored, the rest of the row stays.
CREATE TEMPORARY TABLE before AS SELECT * FROM idemkit_records;
SELECT idemkit_complete('k', :'token', 200, '{"a": [1, null]}', '\x00ff', 3600);
SELECT r.state, r.response_status, r.response_headers, r.response_body,
       r.lease_until - r.completed_at AS retention,
       r.completed_at BETWEEN b.claimed_at AND clock_timestamp() AS completed_now,
       (r.fingerprint, r.fingerprint_version, r.claim_token, r.claimed_at, r.attempts,
        r.schema_version)
       = (b.fingerprint, b.fingerprint_version, b.claim_token, b.claimed_at, b.attempts,
          b.schema_version) AS rest_same
FROM idemkit_records AS r, before AS b;

-- Once: a second completion, a renewal and a release come too late.
SELECT idemkit_complete('k', :'token', 500) AS complete,
       idemkit_renew('k', :'token') AS renew,
       idemkit_release('k', :'token') AS release,
       idemkit_release('k', :'token', true) AS release_keeping;
SELECT result, response_status, response_body FROM idemkit_claim('k');

-- Everything but key and token may be left out.
SELECT our_claim_token AS token FROM idemkit_claim('bare') \gset
SELECT idemkit_complete('bare', :'token');
SELECT result, completed_at IS NOT NULL AS completed, response_status, response_headers,
       response_body, lease_until - completed_at AS retention
FROM idemkit_claim('bare');

-- A retention of nothing: the result is stored and over at once.
SELECT our_claim_token AS token FROM idemkit_claim('over') \gset
SELECT idemkit_complete('over', :'token', 200, expires_after_seconds => 0);
SELECT state, lease_until = completed_at AS over FROM idemkit_records
WHERE effective_key = 'over';

-- The completion is part of the caller's transaction.
SELECT our_claim_token AS token FROM idemkit_claim('rollback') \gset
BEGIN;
SELECT idemkit_complete('rollback', :'token', 200);
SELECT result FROM idemkit_claim('rollback');
ROLLBACK;
SELECT result FROM idemkit_claim('rollback');
SELECT idemkit_complete('rollback', :'token', 201);

-- Claim, work and completion as one transaction: all of it or nothing.
CREATE TABLE charges (key text, amount integer);
BEGIN;
SELECT our_claim_token AS token FROM idemkit_claim('payment') \gset
INSERT INTO charges VALUES ('payment', 42);
SELECT idemkit_complete('payment', :'token', 200);
ROLLBACK;
SELECT count(*) FROM charges;
SELECT * FROM idemkit_get('payment');
BEGIN;
SELECT our_claim_token AS token FROM idemkit_claim('payment') \gset
INSERT INTO charges VALUES ('payment', 42);
SELECT idemkit_complete('payment', :'token', 200);
COMMIT;
SELECT count(*) FROM charges;
SELECT result, response_status FROM idemkit_claim('payment');
DROP TABLE charges;
