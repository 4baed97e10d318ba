--
-- What a caller can do wrong, by SQLSTATE, and what the messages say.  Keys,
-- durations, responses, tables and names have files of their own.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- What a query that returns one value returns, or the SQLSTATE it raises.
CREATE FUNCTION pg_temp.outcome(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    value text;
BEGIN
    EXECUTE query INTO value;
    RETURN coalesce(value, 'null');
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE;
END $$;

SELECT our_claim_token AS token FROM idemkit_claim('k') \gset
CREATE TEMPORARY TABLE before AS SELECT * FROM idemkit_records;

-- 22004: a null where none is allowed.  Everything else may be null.
CREATE TEMPORARY TABLE calls (i serial, call text);
INSERT INTO calls (call) VALUES
    ('idemkit_claim(NULL)'), ('idemkit_claim(''k'', NULL)'), ('idemkit_claim(''k'', '''', NULL)'),
    ('idemkit_claim(''k'', '''', 1, NULL)'), ('idemkit_claim(''k'', '''', 1, 30, NULL)'),
    ('idemkit_complete(NULL, ''t'')'), ('idemkit_complete(''k'', NULL)'),
    ('idemkit_complete(''k'', ''t'', expires_after_seconds => NULL)'),
    ('idemkit_release(NULL, ''t'')'), ('idemkit_release(''k'', NULL)'),
    ('idemkit_release(''k'', ''t'', NULL)'),
    ('idemkit_renew(NULL, ''t'')'), ('idemkit_renew(''k'', NULL)'),
    ('idemkit_renew(''k'', ''t'', NULL)'),
    ('idemkit_guard(NULL, ''t'')'), ('idemkit_guard(''k'', NULL)'),
    ('idemkit_get(NULL)'),
    ('idemkit_vacuum(lease_grace_seconds => NULL)'),
    ('idemkit_create_table(NULL)'), ('idemkit_create_table(''errors_table'', NULL)'),
    ('idemkit_effective_key(''a'', NULL)'),
    ('idemkit_complete(''k'', ''t'', NULL, NULL, NULL, 1, NULL)'),
    ('idemkit_release(''k'', ''t'', true, NULL)'), ('idemkit_renew(''k'', ''t'', 1, NULL)'),
    ('idemkit_vacuum(NULL, 60, NULL, NULL)'), ('idemkit_verify_schema(NULL)');
SELECT call, pg_temp.outcome('SELECT ' || call) AS outcome FROM calls ORDER BY i;

-- 22023: out of range.
SELECT pg_temp.outcome('SELECT idemkit_vacuum(max_rows => -1)') AS max_rows,
       pg_temp.outcome($$SELECT idemkit_claim('')$$) AS key,
       pg_temp.outcome($$SELECT idemkit_renew('k', 't', 0)$$) AS lease,
       pg_temp.outcome($$SELECT idemkit_complete('k', 't', response_headers => '[]')$$) AS headers;

-- Nothing is changed by a call that raises.
SELECT r = b AS unchanged FROM idemkit_records AS r, before AS b;
SELECT to_regclass('errors_table');

-- The messages.
SELECT idemkit_claim(NULL);
SELECT idemkit_claim('');
SELECT idemkit_claim(repeat('x', 1025));
SELECT idemkit_claim('k', NULL);
SELECT idemkit_claim('k', lease_ttl_seconds => 0);
SELECT idemkit_claim('k', lease_ttl_seconds => 'NaN');
SELECT idemkit_complete('k', NULL);
SELECT idemkit_complete('k', 't', response_headers => '["secret"]');
SELECT idemkit_complete('k', 't', expires_after_seconds => -1);
SET idemkit.max_response_bytes = 3;
SELECT idemkit_complete('k', 't', response_body => 'secret');
RESET idemkit.max_response_bytes;
SELECT idemkit_guard('k', 'secret');
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second';
SELECT 1 FROM idemkit_records, idemkit_guard(effective_key, claim_token);
SELECT idemkit_vacuum(max_rows => -1);
SELECT idemkit_create_table('no good');
SELECT idemkit_effective_key('a', NULL);
SELECT idemkit_effective_key(VARIADIC '{}');

-- None of them says a claim token.
CREATE FUNCTION pg_temp.says_token(query text, token text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    message text;
    detail text;
    hint text;
BEGIN
    EXECUTE query;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
                            hint = PG_EXCEPTION_HINT;
    RETURN concat(message, detail, hint) LIKE '%' || token || '%';
END $$;
SELECT command, pg_temp.says_token(format(command, :'token'), :'token')
FROM (VALUES ('SELECT idemkit_guard(''k'', %L)'), ('SELECT idemkit_renew(''k'', %L, 0)'),
             ('SELECT idemkit_complete('''', %L)'), ('SELECT idemkit_release(NULL, %L)'),
             ('SELECT idemkit_complete(''k'', %L, response_headers => ''1'')')) AS v (command);

-- A call that fails inside a statement undoes the statement only.
BEGIN;
SAVEPOINT s;
\set VERBOSITY sqlstate
SELECT idemkit_claim('new'), idemkit_claim('');
\set VERBOSITY default
ROLLBACK TO s;
SELECT result FROM idemkit_claim('new');
COMMIT;
SELECT result FROM idemkit_claim('new');
