--
-- The library checks that the installed SQL objects are of its version, and
-- the hint is the command that mends it.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT extversion AS version FROM pg_extension WHERE extname = 'idemkit' \gset
SELECT result FROM idemkit_claim('k');

-- An older version is installed: found by a new session ...
UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'idemkit';
\c -
SELECT idemkit_claim('k');
\set VERBOSITY sqlstate
SELECT idemkit_complete('k', 't');
SELECT idemkit_release('k', 't');
SELECT idemkit_renew('k', 't');
SELECT idemkit_guard('k', 't');
SELECT idemkit_get('k');
SELECT idemkit_vacuum();
SELECT idemkit_verify_schema();
SELECT idemkit_claim('k', records => 'idemkit_records');
\set VERBOSITY default

-- ... which works as soon as the version fits.
UPDATE pg_extension SET extversion = :'version' WHERE extname = 'idemkit';
SELECT result FROM idemkit_claim('k');

-- A newer one.
UPDATE pg_extension SET extversion = '99.0' WHERE extname = 'idemkit';
\c -
\set VERBOSITY sqlstate
SELECT idemkit_claim('k');
\set VERBOSITY default
UPDATE pg_extension SET extversion = :'version' WHERE extname = 'idemkit';
SELECT result FROM idemkit_claim('k');
