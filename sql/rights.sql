--
-- Functions run with the caller's rights: what counts is the caller's rights
-- on the records table.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_idemkit_user, regress_idemkit_reader, regress_idemkit_tenant;
RESET client_min_messages;
CREATE ROLE regress_idemkit_user;
CREATE ROLE regress_idemkit_reader;
CREATE ROLE regress_idemkit_tenant;
SELECT result FROM idemkit_claim('k');
SELECT claim_token AS token FROM idemkit_records \gset

-- Without rights: 42501 for all.
\set VERBOSITY sqlstate
SET SESSION AUTHORIZATION regress_idemkit_user;
SELECT idemkit_claim('k');
SELECT idemkit_complete('k', 't');
SELECT idemkit_release('k', 't');
SELECT idemkit_release('k', 't', true);
SELECT idemkit_renew('k', 't');
SELECT idemkit_guard('k', 't');
SELECT idemkit_get('k');
SELECT idemkit_vacuum();
SELECT idemkit_vacuum(0);
RESET SESSION AUTHORIZATION;

-- With the right to read: duplicates are answered, nothing is changed.
GRANT SELECT ON idemkit_records TO regress_idemkit_reader;
SET SESSION AUTHORIZATION regress_idemkit_reader;
SELECT result FROM idemkit_claim('k');
SELECT state FROM idemkit_get('k');
SELECT idemkit_claim('absent');
SELECT idemkit_complete('k', :'token');
SELECT idemkit_release('k', :'token');
SELECT idemkit_renew('k', :'token');
SELECT idemkit_guard('k', :'token');
SELECT idemkit_vacuum();
RESET SESSION AUTHORIZATION;

-- Rights on each column are as good as those on the table.
REVOKE SELECT ON idemkit_records FROM regress_idemkit_reader;
GRANT SELECT (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at,
              lease_until, completed_at, response_status, response_headers, response_body,
              attempts, schema_version) ON idemkit_records TO regress_idemkit_reader;
SET SESSION AUTHORIZATION regress_idemkit_reader;
SELECT result FROM idemkit_claim('k');
SELECT state FROM idemkit_get('k');
RESET SESSION AUTHORIZATION;
REVOKE SELECT (response_body) ON idemkit_records FROM regress_idemkit_reader;
SET SESSION AUTHORIZATION regress_idemkit_reader;
SELECT result FROM idemkit_claim('k');
RESET SESSION AUTHORIZATION;

-- With all four rights an ordinary role can do everything.
\set VERBOSITY default
GRANT SELECT, INSERT, UPDATE, DELETE ON idemkit_records TO regress_idemkit_user;
SET SESSION AUTHORIZATION regress_idemkit_user;
SELECT our_claim_token AS mine, result FROM idemkit_claim('mine') \gset
SELECT result FROM idemkit_claim('mine');
SELECT idemkit_renew('mine', :'mine', 60), idemkit_guard('mine', :'mine');
SELECT idemkit_release('mine', :'mine', true);
SELECT our_claim_token AS mine FROM idemkit_claim('mine') \gset
SELECT idemkit_complete('mine', :'mine', 200, expires_after_seconds => 0);
SELECT pg_sleep(0.001);
SELECT idemkit_vacuum();
SELECT our_claim_token AS mine FROM idemkit_claim('mine') \gset
SELECT idemkit_release('mine', :'mine');
SELECT idemkit_verify_schema();
SELECT length(idemkit_effective_key('a'));

-- It cannot change the table, nor make one where it may not create.
\set VERBOSITY sqlstate
DROP TABLE idemkit_records;
RESET SESSION AUTHORIZATION;
CREATE SCHEMA rights_closed;
GRANT USAGE ON SCHEMA rights_closed TO regress_idemkit_user;
SET search_path = rights_closed, public;
SET SESSION AUTHORIZATION regress_idemkit_user;
SELECT idemkit_create_table('rights_records');
RESET SESSION AUTHORIZATION;
\set VERBOSITY default

-- Where it may, the table is its own, and others have no rights on it.
GRANT CREATE ON SCHEMA rights_closed TO regress_idemkit_user;
GRANT USAGE ON SCHEMA rights_closed TO regress_idemkit_reader;
SET SESSION AUTHORIZATION regress_idemkit_user;
SELECT idemkit_create_table('rights_records');
SELECT result FROM idemkit_claim('k', records => 'rights_records');
RESET SESSION AUTHORIZATION;
SELECT pg_get_userbyid(relowner) AS owner FROM pg_class WHERE oid = 'rights_records'::regclass;
\set VERBOSITY sqlstate
SET SESSION AUTHORIZATION regress_idemkit_reader;
SELECT idemkit_claim('k', records => 'rights_records');
SELECT idemkit_create_table('rights_other');
RESET SESSION AUTHORIZATION;

-- Adopting somebody else's table is refused.
ALTER TABLE rights_records OWNER TO CURRENT_USER;
ALTER TABLE rights_records DROP COLUMN attempts;
SET SESSION AUTHORIZATION regress_idemkit_user;
SELECT idemkit_create_table('rights_records');
RESET SESSION AUTHORIZATION;
\set VERBOSITY default
RESET search_path;

-- Rights that change are followed by plans that are kept: one session, one
-- plan, two roles.
SELECT result FROM idemkit_claim('k');
\set VERBOSITY sqlstate
SET ROLE regress_idemkit_tenant;
SELECT result FROM idemkit_claim('k');
RESET ROLE;
SELECT result FROM idemkit_claim('k');
\set VERBOSITY default

-- Row-level security applies: each sees its own rows and no others.
SELECT idemkit_create_table('rights_tenants');
ALTER TABLE rights_tenants ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_keys ON rights_tenants
    USING (effective_key LIKE current_user || '/%');
GRANT SELECT, INSERT, UPDATE, DELETE ON rights_tenants TO regress_idemkit_user,
    regress_idemkit_tenant;
SELECT result FROM idemkit_claim('regress_idemkit_user/k', records => 'rights_tenants');
SELECT claim_token AS token FROM rights_tenants \gset
SET ROLE regress_idemkit_tenant;
SELECT result FROM idemkit_claim('regress_idemkit_tenant/k', records => 'rights_tenants');
SELECT result FROM idemkit_claim('regress_idemkit_tenant/k', records => 'rights_tenants');
SELECT count(*) FROM idemkit_get('regress_idemkit_user/k', 'rights_tenants');
SELECT idemkit_complete('regress_idemkit_user/k', :'token', records => 'rights_tenants')
           AS complete,
       idemkit_renew('regress_idemkit_user/k', :'token', 1, 'rights_tenants') AS renew,
       idemkit_release('regress_idemkit_user/k', :'token', false, 'rights_tenants') AS release;
\set VERBOSITY sqlstate
SELECT idemkit_guard('regress_idemkit_user/k', :'token', 'rights_tenants');
SELECT idemkit_claim('regress_idemkit_user/k', records => 'rights_tenants');
SELECT idemkit_claim('regress_idemkit_user/other', records => 'rights_tenants');
\set VERBOSITY default
RESET ROLE;
UPDATE rights_tenants SET lease_until = clock_timestamp() - interval '1 hour';
SET ROLE regress_idemkit_tenant;
SELECT idemkit_vacuum(records => 'rights_tenants');
RESET ROLE;
SELECT effective_key FROM rights_tenants;
SET ROLE regress_idemkit_user;
SELECT result FROM idemkit_claim('regress_idemkit_user/k', records => 'rights_tenants');
RESET ROLE;

SET client_min_messages = warning;
REVOKE ALL ON idemkit_records FROM regress_idemkit_user, regress_idemkit_reader;
DROP TABLE rights_tenants;
DROP SCHEMA rights_closed CASCADE;
DROP ROLE regress_idemkit_user, regress_idemkit_reader, regress_idemkit_tenant;
