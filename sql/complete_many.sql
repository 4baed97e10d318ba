--
-- idemkit_complete_many: one answer per key, in the order given, each what
-- idemkit_complete would have returned in turn.
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

SELECT count(*) FROM idemkit_claim_many(ARRAY['a', 'b', 'c', 'd', 'e', 'f']);
UPDATE idemkit_records SET claim_token = 'token of ' || effective_key;
SELECT idemkit_complete('e', 'token of e', 100), idemkit_release('f', 'token of f');
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 hour'
WHERE effective_key = 'd';

-- Held, wrong token, held, lapsed but taken over by nobody, completed, absent;
-- and the first once more, when it is too late.
SELECT * FROM idemkit_complete_many(
    ARRAY['c', 'b', 'a', 'd', 'e', 'f', 'c'],
    ARRAY['token of c', 'wrong', 'token of a', 'token of d', 'token of e', 'token of f',
          'token of c'],
    ARRAY[203, 202, 201, NULL, 205, 206, 299],
    ARRAY['{"c": 1}', '{"b": 1}', NULL, '{}', '{}', '{}', '{"c": 2}']::jsonb[],
    ARRAY['body of c', 'b', '', NULL, 'e', 'f', 'c2']::bytea[], 3600) WITH ORDINALITY AS c (done, n)
ORDER BY n;
SELECT effective_key, state, response_status, response_headers,
       convert_from(response_body, 'UTF8') AS body, lease_until - completed_at AS retention
FROM idemkit_records ORDER BY 1;
SELECT effective_key, result, response_status FROM idemkit_claim_many(ARRAY['a', 'b', 'c']);

-- A key with a wrong token and the right one: the right one counts.
SELECT * FROM idemkit_complete_many(ARRAY['b', 'b', 'b'], ARRAY['x', 'token of b', 'token of b'],
                                    ARRAY[1, 2, 3]);
SELECT response_status FROM idemkit_get('b');

-- Everything but keys and tokens may be left out.
SELECT our_claim_token AS token FROM idemkit_claim('bare') \gset
SELECT * FROM idemkit_complete_many(ARRAY['bare'], ARRAY[:'token']);
SELECT state, completed_at IS NOT NULL AS completed, response_status, response_headers,
       response_body, lease_until - completed_at AS retention FROM idemkit_get('bare');

-- No keys, many keys; rolled back, they are claimed as before.
SELECT count(*) FROM idemkit_complete_many('{}', '{}');
CREATE TEMPORARY TABLE claims AS
SELECT array_agg(effective_key) AS keys, array_agg(our_claim_token) AS tokens
FROM idemkit_claim_many((SELECT array_agg('many:' || i) FROM generate_series(1, 10000) AS i));
BEGIN;
SELECT done, count(*) FROM claims, idemkit_complete_many(keys, tokens) AS done GROUP BY done;
ROLLBACK;
SELECT state, count(*) FROM idemkit_records WHERE effective_key LIKE 'many:%' GROUP BY state;
SELECT done, count(*) FROM claims,
       idemkit_complete_many(keys, tokens,
                             (SELECT array_agg(i) FROM generate_series(1, 10000) AS i)) AS done GROUP BY done;
SELECT count(*) FROM idemkit_records
WHERE effective_key = 'many:' || response_status AND state = 'COMPLETED';
SELECT done, count(*) FROM claims, idemkit_complete_many(keys, tokens) AS done GROUP BY done;

-- Another table.
SELECT idemkit_create_table('complete_many_records');
SELECT our_claim_token AS token FROM idemkit_claim('k', records => 'complete_many_records') \gset
SELECT * FROM idemkit_complete_many(ARRAY['k'], ARRAY[:'token']);
SELECT * FROM idemkit_complete_many(ARRAY['k'], ARRAY[:'token'],
                                    records => 'complete_many_records');
DROP TABLE complete_many_records;

-- What is refused; and then nothing was completed, not even what could be.
TRUNCATE idemkit_records;
SELECT count(*) FROM idemkit_claim_many(ARRAY['a', 'b']);
UPDATE idemkit_records SET claim_token = 't';
SET idemkit.max_response_bytes = 10;
CREATE TEMPORARY TABLE calls (i serial, arguments text);
INSERT INTO calls (arguments) VALUES
    ('NULL, ARRAY[''t'', ''t'']'), ('ARRAY[''a'', ''b''], NULL'),
    ('ARRAY[''a'', NULL], ARRAY[''t'', ''t'']'), ('ARRAY[''a'', ''b''], ARRAY[''t'', NULL]'),
    ('ARRAY[''a'', ''''], ARRAY[''t'', ''t'']'),
    ('ARRAY[''a'', repeat(''x'', 1025)], ARRAY[''t'', ''t'']'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'']'), ('ARRAY[''a''], ARRAY[''t'', ''t'']'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], ARRAY[1]'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], ''{}'''),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, ARRAY[''{}'']::jsonb[]'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, ARRAY[''{}'', ''[]'']::jsonb[]'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, ARRAY[''{}'', ''null'']::jsonb[]'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, NULL, ARRAY['''']::bytea[]'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, NULL, ARRAY['''', ''01234567890'']::bytea[]'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, NULL, NULL, NULL'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, NULL, NULL, -1'),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, NULL, NULL, ''NaN'''),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, NULL, NULL, 1, ''pg_class'''),
    ('ARRAY[''a'', ''b''], ARRAY[''t'', ''t''], NULL, NULL, NULL, 1, 1');
SELECT pg_temp.outcome('SELECT idemkit_complete_many(' || arguments || ')') AS outcome, arguments
FROM calls ORDER BY i;
RESET idemkit.max_response_bytes;
SELECT effective_key, state FROM idemkit_records ORDER BY 1;
SELECT * FROM idemkit_complete_many(ARRAY['a', 'b'], ARRAY['t', 't']);

-- Planner settings of the caller do not change which of two completions of one
-- key counts: the first, whatever the join.
CREATE FUNCTION complete_many_first() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    keys text[] := ARRAY(SELECT 'first:' || i FROM generate_series(1, 3) AS i);
    told text;
BEGIN
    TRUNCATE idemkit_records;
    PERFORM idemkit_claim_many(keys);
    UPDATE idemkit_records SET claim_token = 't';
    SELECT string_agg(DISTINCT done::text || ' in place ' || (n - 1) / 3 + 1, ', ') INTO told
    FROM idemkit_complete_many(keys || keys, array_fill('t'::text, ARRAY[6]),
                               array_fill(1, ARRAY[3]) || array_fill(2, ARRAY[3]))
         WITH ORDINALITY AS c (done, n);
    RETURN told || '; stored: '
        || (SELECT string_agg(DISTINCT response_status::text, ', ') FROM idemkit_records);
END $$;
\c -
SELECT complete_many_first();
SET plan_cache_mode = force_custom_plan;
SET enable_nestloop = off;
SELECT complete_many_first();
RESET plan_cache_mode;
\c -
SET enable_nestloop = off;
SET enable_indexscan = off;
SELECT complete_many_first();
DROP FUNCTION complete_many_first();
