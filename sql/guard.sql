--
-- idemkit_guard raises IK001 unless the claim is held and its lease is live,
-- and locks the row until the transaction ends.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- Whether the guard opens, or the SQLSTATE it raises.
CREATE FUNCTION pg_temp.guard(key text, token text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idemkit_guard(key, token);
    RETURN 'open';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE;
END $$;

SELECT our_claim_token AS token FROM idemkit_claim('k') \gset
SELECT pg_temp.guard('k', :'token') AS held, pg_temp.guard('k', 'wrong') AS wrong_token,
       pg_temp.guard('k', '') AS no_token, pg_temp.guard('K', :'token') AS other_key,
       pg_temp.guard('absent', 'wrong') AS absent_key;

-- It locks the row, and changes nothing.
CREATE TEMPORARY TABLE before AS SELECT * FROM idemkit_records;
BEGIN;
SELECT idemkit_guard('k', :'token');
SELECT xmax <> 0 AS locked FROM idemkit_records;
SELECT result, our_claim_token FROM idemkit_claim('k');
SELECT idemkit_renew('k', :'token', 30);
SELECT idemkit_guard('k', :'token');
ROLLBACK;
SELECT r = b AS unchanged FROM idemkit_records AS r, before AS b;

-- A refused transaction writes nothing: the point of the guard.
CREATE TABLE charges (key text);
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second';
\set VERBOSITY sqlstate
BEGIN;
SELECT idemkit_guard('k', :'token');
INSERT INTO charges VALUES ('k');
COMMIT;
SELECT count(*) FROM charges;
\set VERBOSITY default

-- Renewed in time it opens again; completed or released it does not.
SELECT idemkit_renew('k', :'token');
SELECT pg_temp.guard('k', :'token') AS renewed;
BEGIN;
SELECT idemkit_guard('k', :'token');
INSERT INTO charges VALUES ('k');
SELECT idemkit_complete('k', :'token', 200);
COMMIT;
SELECT count(*) FROM charges;
SELECT pg_temp.guard('k', :'token') AS completed;
SELECT our_claim_token AS token FROM idemkit_claim('released') \gset
SELECT idemkit_release('released', :'token');
SELECT pg_temp.guard('released', :'token') AS released;

-- Taken over: the first owner is refused, the second is not.
SELECT our_claim_token AS token FROM idemkit_claim('two', lease_ttl_seconds => 0.000001) \gset
SELECT pg_sleep(0.001);
SELECT our_claim_token AS second FROM idemkit_claim('two') \gset
SELECT pg_temp.guard('two', :'token') AS first, pg_temp.guard('two', :'second') AS second;

-- Without a key or a token it is a mistake, not a lost claim.
SELECT pg_temp.guard(NULL, 'x') AS null_key, pg_temp.guard('k', NULL) AS null_token,
       pg_temp.guard('', 'x') AS empty_key;
DROP TABLE charges;
