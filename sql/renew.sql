--
-- idemkit_renew starts the lease of a claim anew and does nothing else.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT our_claim_token AS token FROM idemkit_claim('k', 'print', 1, 10) \gset
CREATE TEMPORARY TABLE before AS SELECT * FROM idemkit_records;

SELECT idemkit_renew('k', 'wrong', 1000), idemkit_renew('k', '', 1000),
       idemkit_renew('K', :'token', 1000),
       idemkit_renew('absent', :'token', 1000);
SELECT r = b AS unchanged FROM idemkit_records AS r, before AS b;

SELECT idemkit_renew('k', :'token', 1000);
SELECT remaining_seconds BETWEEN 990 AND 1000 AS remaining FROM idemkit_get('k');
SELECT (r.state, r.fingerprint, r.fingerprint_version, r.claim_token, r.claimed_at, r.attempts,
        r.awaited, r.schema_version)
       = (b.state, b.fingerprint, b.fingerprint_version, b.claim_token, b.claimed_at, b.attempts,
          b.awaited, b.schema_version) AS rest_same
FROM idemkit_records AS r, before AS b;

-- A lease may be made shorter; the default is 30 seconds.
SELECT idemkit_renew('k', :'token');
SELECT remaining_seconds BETWEEN 20 AND 30 AS remaining FROM idemkit_get('k');

-- A lapsed claim that nobody took over can still be renewed.
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second';
SELECT idemkit_renew('k', :'token', 60);
SELECT result, attempts FROM idemkit_claim('k');

-- The shortest leases there are do not make the call hang.
SET statement_timeout = '10s';
SELECT idemkit_renew('k', :'token', 0.000001);
SELECT idemkit_renew('k', :'token', 0.0005);
RESET statement_timeout;
SELECT pg_sleep(0.001);
SELECT remaining_seconds FROM idemkit_get('k');

-- The lease counts from the call, not from the start of the transaction.
BEGIN;
SELECT pg_sleep(1.1);
SELECT idemkit_renew('k', :'token', 1);
SELECT result FROM idemkit_claim('k');
SELECT lease_until > clock_timestamp() AS live FROM idemkit_records;
COMMIT;

-- A result cannot be renewed.
SELECT idemkit_renew('k', :'token');
SELECT idemkit_complete('k', :'token', 200, expires_after_seconds => 10);
SELECT idemkit_renew('k', :'token', 1000);
SELECT state, remaining_seconds BETWEEN 1 AND 10 AS remaining FROM idemkit_get('k');
