--
-- Settings.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- In a session that has not yet called anything.
\c -
SET idemkit.notify = 'never';
SET idemkit.max_response_bytes = '1kB';
SELECT result FROM idemkit_claim('k');
SHOW idemkit.notify;
SHOW idemkit.max_response_bytes;
RESET ALL;
SHOW idemkit.notify;
SHOW idemkit.max_response_bytes;

SELECT name, setting, unit, vartype, context, min_val, enumvals, boot_val
FROM pg_settings WHERE name LIKE 'idemkit.%' ORDER BY name;
SELECT name FROM pg_settings
WHERE name LIKE 'idemkit.%' AND (short_desc IS NULL OR short_desc = '');

-- Values that are none.
\set VERBOSITY sqlstate
SET idemkit.notify = 'sometimes';
SET idemkit.notify = '';
SET idemkit.max_response_bytes = -1;
SET idemkit.max_response_bytes = 'much';
SET idemkit.max_response_bytes = '3GB';
\set VERBOSITY default

-- Any role may set them, for a function or a role as well.
CREATE ROLE regress_idemkit_settings;
SET ROLE regress_idemkit_settings;
SET idemkit.notify = 'never';
SET idemkit.max_response_bytes = 1;
RESET ROLE;
RESET ALL;
DROP ROLE regress_idemkit_settings;
CREATE FUNCTION limited(token text) RETURNS boolean LANGUAGE sql
SET idemkit.max_response_bytes = 3
AS $$ SELECT idemkit_complete('k', token, 200, NULL, '12345') $$;
\set VERBOSITY sqlstate
SELECT limited(claim_token) FROM idemkit_records;
\set VERBOSITY default
SELECT idemkit_complete('k', claim_token, 200, NULL, '12345') FROM idemkit_records;
DROP FUNCTION limited(text);
