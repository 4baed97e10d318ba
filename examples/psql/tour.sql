-- What idemkit does, step by step, in psql:
--
--     psql -X -f tour.sql
--
-- Exits non-zero where a promise does not hold.
\set ON_ERROR_STOP on
\set QUIET on
-- Only what \echo says is shown.
\o /dev/null

CREATE PROCEDURE pg_temp.check(holds boolean, promise text) LANGUAGE plpgsql AS $$
BEGIN
    IF holds IS NOT TRUE THEN
        RAISE 'broken promise: %', promise;
    END IF;
END $$;

SELECT format('tour %s order %s', gen_random_uuid(), '') AS orders \gset
\set order1 :orders 1
\set order2 :orders 2
\set order3 :orders 3
\set order4 :orders 4
\set order5 :orders 5

-- Claim, work, complete. \gset makes variables of the columns, but none of a NULL.
SELECT result, our_claim_token AS token
  FROM idemkit_claim(:'order1', '49.90', lease_ttl_seconds => 60) \gset
CALL pg_temp.check(:'result' = 'new_claimed', 'a new key is won');
\echo 'claim:       won, so the card is charged'

-- A body is bytes: convert_to makes them of text, whatever characters it has.
SELECT idemkit_complete(:'order1', :'token', 201, '{"content-type": "text/plain"}',
                        convert_to('receipt 17', 'UTF8')) AS stored \gset
CALL pg_temp.check(:'stored', 'the owner completes its claim');
SELECT idemkit_complete(:'order1', :'token', 500) AS stored \gset
CALL pg_temp.check(NOT :'stored', 'a claim is completed once');
\echo 'complete:    status, headers and body are stored, once'

-- Replay.
SELECT result, our_claim_token IS NULL AS duplicate, response_status AS status,
       response_headers AS headers, convert_from(response_body, 'UTF8') AS body
  FROM idemkit_claim(:'order1', '49.90') \gset
CALL pg_temp.check(:'result' = 'already_completed' AND :'duplicate', 'a duplicate does no work');
CALL pg_temp.check(:'headers' = '{"content-type": "text/plain"}', 'headers are replayed');
\echo 'replay:     ' :status :body
SELECT fingerprint_matches FROM idemkit_claim(:'order1', '99.90') \gset
CALL pg_temp.check(NOT :'fingerprint_matches', 'a key used for something else is noticed');
\echo 'replay:      the same key with another amount is noticed'

-- Wait. psql shows notifications only after its next command, so here the server
-- waits. The owner is another psql, in the background.
SELECT result FROM idemkit_claim(:'order2');
SELECT result FROM idemkit_claim(:'order2') \gset
CALL pg_temp.check(:'result' = 'already_claimed', 'one owner at a time');
\echo 'wait:        another is at work'
\setenv KEY :order2
\! echo "SELECT pg_sleep(0.2); SELECT idemkit_complete(:'key', claim_token, 204, response_body => '') FROM idemkit_get(:'key')" | psql -Xqo /dev/null -v key="$KEY" &
SELECT outcome, response_status AS status, response_body = '' AS empty
  FROM idemkit_wait(:'order2', timeout_seconds => 10) \gset
CALL pg_temp.check(:'outcome' = 'completed' AND :status = 204 AND :'empty', 'an empty body is not NULL');
\echo 'wait:        woken, 204 with an empty body'

-- Claim, work and result in one transaction.
SET client_min_messages = warning; -- not that the table is there already
CREATE TABLE IF NOT EXISTS tour_charge (key text, cents integer);
BEGIN;
SELECT our_claim_token AS token FROM idemkit_claim(:'order3', '4990') \gset
INSERT INTO tour_charge VALUES (:'order3', 4990);
SELECT idemkit_complete(:'order3', :'token', response_body => 'charged');
ROLLBACK;
SELECT count(*) AS records FROM idemkit_get(:'order3') \gset
CALL pg_temp.check(:records = 0, 'a claim is rolled back with its work');
\echo 'transaction: rolled back, and the claim with it'
BEGIN;
SELECT our_claim_token AS token FROM idemkit_claim(:'order3', '4990') \gset
INSERT INTO tour_charge VALUES (:'order3', 4990);
SELECT idemkit_complete(:'order3', :'token', response_body => 'charged');
COMMIT;
SELECT result, convert_from(response_body, 'UTF8') AS body FROM idemkit_claim(:'order3', '4990') \gset
CALL pg_temp.check(:'result' = 'already_completed' AND :'body' = 'charged', 'both get the answer');
SELECT count(*) AS charges FROM tour_charge WHERE key = :'order3' \gset
CALL pg_temp.check(:charges = 1, 'one charge');
\echo 'transaction: committed, one row for two requests'

-- Many keys at once.
SELECT array_agg(effective_key) AS keys, array_agg(our_claim_token) AS tokens
  FROM idemkit_claim_many(ARRAY[:'order4', :'order1', :'order5'])
 WHERE our_claim_token IS NOT NULL \gset
CALL pg_temp.check(:'keys' = ARRAY[:'order4', :'order5'], 'two of them are new');
SELECT bool_and(stored) AS stored
  FROM idemkit_complete_many(:'keys', :'tokens', ARRAY[200, 404], ARRAY['{"n": 1}', NULL]::jsonb[],
                             ARRAY['\x00ff', NULL]::bytea[]) AS stored \gset
CALL pg_temp.check(:'stored', 'both are completed');
SELECT array_agg(response_body) = ARRAY['\x00ff', NULL]::bytea[] AS same_bodies,
       array_agg(response_headers) = ARRAY['{"n": 1}', NULL]::jsonb[] AS same_headers
  FROM idemkit_subscribe(:'keys') \gset
CALL pg_temp.check(:'same_bodies', 'bodies come back as they were');
CALL pg_temp.check(:'same_headers', 'headers too');
\echo 'batch:       two of three were new, all three have results'
