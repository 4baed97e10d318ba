--
-- A constraint that refuses a row must not show it: its detail would hold a claim
-- token or a response.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
\set SHOW_CONTEXT never
CREATE TABLE secrets (LIKE idemkit_records INCLUDING ALL, CHECK (response_status <> 13),
                      CHECK (fingerprint <> 'refused'));
SELECT idemkit_claim('k', 'refused', records => 'secrets');
SELECT idemkit_claim_many(ARRAY['k'], ARRAY['refused'], records => 'secrets');
SELECT our_claim_token AS token FROM idemkit_claim('k', records => 'secrets') \gset
\set VERBOSITY terse
SELECT idemkit_complete('k', :'token', 13, '{"h": "v"}', 'body', records => 'secrets');
\set VERBOSITY default
SELECT idemkit_complete('k', claim_token, 13, '{"h": "v"}', 'body', records => 'secrets') FROM secrets;
SELECT idemkit_complete_many(ARRAY['k'], ARRAY[claim_token], ARRAY[13], NULL, ARRAY['body'::bytea],
                             records => 'secrets') FROM secrets;
ALTER TABLE secrets ADD COLUMN missing integer, ADD CHECK (missing IS NOT NULL OR fingerprint = '');
SELECT idemkit_claim('other', 'f', records => 'secrets');
ALTER TABLE secrets ALTER COLUMN missing SET DEFAULT 1;
UPDATE secrets SET missing = 1;
ALTER TABLE secrets ALTER COLUMN missing SET NOT NULL, ALTER COLUMN missing DROP DEFAULT;
SELECT idemkit_claim('other', records => 'secrets');

-- The error of somebody's statement after it is shown as ever.
INSERT INTO secrets (effective_key) VALUES ('by hand');
SELECT state FROM secrets;
DROP TABLE secrets;
