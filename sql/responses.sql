--
-- Responses come back exactly as they were stored: status, headers, body.
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

-- Stores a response under a key of its own, then reads it in every way there
-- is: by a duplicate claim, by idemkit_get and from the table.
CREATE FUNCTION pg_temp.round_trip(key text, status integer, headers jsonb, body bytea)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    won idemkit_claim_result;
    claim idemkit_claim_result;
    stored idemkit_record;
BEGIN
    won := idemkit_claim(key);
    IF NOT idemkit_complete(key, won.claim_token, status, headers, body) THEN
        RETURN NULL;
    END IF;
    claim := idemkit_claim(key);
    SELECT * INTO stored FROM idemkit_get(key);
    RETURN claim.result = 'already_completed'
        AND claim.response_status IS NOT DISTINCT FROM status
        AND claim.response_headers IS NOT DISTINCT FROM headers
        AND claim.response_body IS NOT DISTINCT FROM body
        AND stored.response_status IS NOT DISTINCT FROM status
        AND stored.response_headers IS NOT DISTINCT FROM headers
        AND stored.response_body IS NOT DISTINCT FROM body
        AND (SELECT (r.response_status, r.response_headers, r.response_body)
                    IS NOT DISTINCT FROM (status, headers, body)
             FROM idemkit_records AS r WHERE r.effective_key = key);
END $$;

SELECT status, pg_temp.round_trip('status:' || coalesce(status::text, 'null'), status, NULL, NULL)
FROM (VALUES (NULL), (0), (-1), (200), (2147483647), (-2147483648)) AS v (status);

-- Bodies: NULL and empty stay distinct; any byte is kept; 8 MB that compress
-- and 8 MB that do not.
SELECT what, pg_temp.round_trip('body:' || what, 200, NULL, body), length(body)
FROM (VALUES ('null', NULL), ('empty', ''), ('zero byte', '\x00'::bytea),
             ('every byte', (SELECT decode(string_agg(lpad(to_hex(i), 2, '0'), ''), 'hex')
                             FROM generate_series(0, 255) AS i)),
             ('8 MB of one byte', convert_to(repeat('x', 8 * 1024 * 1024), 'UTF8')),
             ('8 MB of noise', (SELECT string_agg(decode(md5(i::text), 'hex'), '')
                                FROM generate_series(1, 512 * 1024) AS i))) AS v (what, body);
SELECT response_body IS NULL AS null, response_body = '' AS empty FROM idemkit_get('body:null');
SELECT response_body IS NULL AS null, response_body = '' AS empty FROM idemkit_get('body:empty');

-- Headers: an object or NULL.
SELECT headers, pg_temp.round_trip('headers:' || coalesce(headers, 'null'), 200,
                                   headers::jsonb, NULL)
FROM (VALUES (NULL), ('{}'), ('{"a": null}'), ('{"": ""}'), ('{"a": {"b": [1, 2, {"c": true}]}}'),
             ('{"set-cookie": ["a=1", "b=2"]}'), ('{"x": 1e400}')) AS v (headers);
SELECT pg_temp.round_trip('headers:many', 200,
                          (SELECT jsonb_object_agg('x-' || i, md5(i::text))
                           FROM generate_series(1, 20000) AS i), NULL);

-- Anything else is refused and the claim stays as it was; also an array so
-- large that it comes compressed.
SELECT our_claim_token AS token FROM idemkit_claim('k') \gset
CREATE TEMPORARY TABLE before AS SELECT * FROM idemkit_records WHERE effective_key = 'k';
CREATE TEMPORARY TABLE wrong (i serial, headers jsonb);
INSERT INTO wrong (headers) VALUES
    ('null'), ('[]'), ('[{"a": 1}]'), ('1'), ('"text"'), ('""'), ('true'), ('-0.5'),
    ((SELECT jsonb_agg(7) FROM generate_series(1, 100000)));
SELECT left(headers::text, 20) AS headers,
       pg_temp.outcome(format('SELECT idemkit_complete(''k'', %L, 200, (SELECT headers FROM '
                              'pg_temp.wrong WHERE i = %s))', :'token', i)) AS outcome
FROM wrong ORDER BY i;
SELECT r = b AS unchanged FROM idemkit_records AS r JOIN before AS b USING (effective_key);
SELECT idemkit_complete('k', :'token', 200, '{}');

-- idemkit.max_response_bytes: body and headers' text count together; 0, the
-- default, is no limit.  A refused completion leaves the claim as it was.
SELECT our_claim_token AS token FROM idemkit_claim('limit') \gset
DELETE FROM before;
INSERT INTO before SELECT * FROM idemkit_records WHERE effective_key = 'limit';
SET idemkit.max_response_bytes = 20;
CREATE TEMPORARY TABLE responses (i serial, headers jsonb, body bytea);
INSERT INTO responses (headers, body) VALUES
    (NULL, repeat('x', 21)::bytea), ('{"a": 1234}', repeat('x', 10)::bytea),
    ('{"a": "01234567890"}', ''), ('{"a": "012345678901"}', NULL),
    (NULL, repeat('x', 1000000)::bytea);
SELECT length(headers::text) AS headers, length(body) AS body,
       pg_temp.outcome(format('SELECT idemkit_complete(''limit'', %L, 200, headers, body) '
                              'FROM pg_temp.responses WHERE i = %s', :'token', i)) AS outcome
FROM responses WHERE i <> 3 ORDER BY i;
SELECT r = b AS unchanged FROM idemkit_records AS r JOIN before AS b USING (effective_key);
SELECT idemkit_complete('limit', :'token', 200, headers, body) FROM responses WHERE i = 3;
SELECT our_claim_token AS token FROM idemkit_claim('limit:null') \gset
SELECT idemkit_complete('limit:null', :'token', 200);
SELECT our_claim_token AS token FROM idemkit_claim('limit:body') \gset
SELECT idemkit_complete('limit:body', :'token', 200, NULL, repeat('x', 20)::bytea);
-- What is stored already is still served.
SELECT result, length(response_body) FROM idemkit_claim('body:8 MB of noise');
SET idemkit.max_response_bytes = 0;
SELECT our_claim_token AS token FROM idemkit_claim('limit:off') \gset
SELECT idemkit_complete('limit:off', :'token', 200, NULL, repeat('x', 1000)::bytea);
TRUNCATE idemkit_records;
