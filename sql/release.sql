--
-- idemkit_release gives a claim up: the key is absent again, or, with
-- keep_attempts, claimable at once with its attempts counted on.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT our_claim_token AS token FROM idemkit_claim('k') \gset
SELECT idemkit_release('k', 'wrong'), idemkit_release('k', ''),
       idemkit_release('K', :'token'),
       idemkit_release('absent', :'token'),
       idemkit_release('k', 'wrong', true);
SELECT result FROM idemkit_claim('k');
SELECT idemkit_release('k', :'token');
SELECT count(*) FROM idemkit_records;
SELECT idemkit_release('k', :'token');
SELECT result, attempts FROM idemkit_claim('k');

-- A result cannot be released.
SELECT idemkit_complete('k', claim_token, 200) FROM idemkit_records;
SELECT idemkit_release('k', claim_token), idemkit_release('k', claim_token, true)
FROM idemkit_records;
SELECT result, response_status FROM idemkit_claim('k');

-- keep_attempts: the row stays, claimable at once.
SELECT our_claim_token AS token FROM idemkit_claim('keep', lease_ttl_seconds => 3600) \gset
SELECT idemkit_release('keep', :'token', true);
SELECT state, attempts, remaining_seconds FROM idemkit_get('keep');

-- The owner has given it up: its token opens nothing any more.
SELECT idemkit_complete('keep', :'token', 500) AS complete,
       idemkit_renew('keep', :'token') AS renew,
       idemkit_release('keep', :'token') AS release,
       idemkit_release('keep', :'token', true) AS release_keeping;
\set VERBOSITY sqlstate
SELECT idemkit_guard('keep', :'token');
\set VERBOSITY default

-- It can be told from a crash by nobody who does not reclaim ...
SELECT result, attempts FROM idemkit_claim('keep', reclaim => false);
-- ... and the next claim counts on.
SELECT result, our_claim_token = claim_token AS won, attempts FROM idemkit_claim('keep');
SELECT claim_token AS token FROM idemkit_records WHERE effective_key = 'keep' \gset
SELECT idemkit_release('keep', :'token', true);
SELECT result, attempts FROM idemkit_claim('keep');

-- A release that is rolled back has not happened.
SELECT our_claim_token AS token FROM idemkit_claim('rollback') \gset
BEGIN;
SELECT idemkit_release('rollback', :'token');
ROLLBACK;
BEGIN;
SELECT idemkit_release('rollback', :'token', true);
ROLLBACK;
SELECT result FROM idemkit_claim('rollback');
SELECT idemkit_renew('rollback', :'token');

-- A lapsed claim that nobody took over can still be released.
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second'
WHERE effective_key = 'rollback';
SELECT idemkit_release('rollback', :'token');
SELECT * FROM idemkit_get('rollback');
