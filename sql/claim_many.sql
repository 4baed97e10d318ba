--
-- idemkit_claim_many: one verdict per key, in the order given, each what
-- idemkit_claim would have said in turn.
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

-- One row of every kind.
CREATE FUNCTION pg_temp.fill(records regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format($q$
        TRUNCATE %1$s;
        INSERT INTO %1$s (effective_key, state, fingerprint, fingerprint_version, claim_token,
                          claimed_at, lease_until, completed_at, response_status,
                          response_headers, response_body, schema_version, attempts)
        SELECT key, state, 'print', 1, 'old', '2100-01-01 00:00:00+00',
               clock_timestamp() + left_over * interval '1 hour',
               CASE state WHEN 'COMPLETED' THEN clock_timestamp() END, status, headers, 'body',
               version, 3
        FROM (VALUES ('claimed', 'CLAIMED', 1, NULL, NULL::jsonb, 1),
                     ('lapsed', 'CLAIMED', -1, NULL, NULL, 1),
                     ('completed', 'COMPLETED', 1, 200, '{"a": 1}', 1),
                     ('over', 'COMPLETED', -1, 200, '{"a": 1}', 1),
                     ('corrupt', 'COMPLETED', 1, 200, '[]', 1),
                     ('unknown', 'CLAIMED', 1, NULL, NULL, 2))
             AS v (key, state, left_over, status, headers, version);
    $q$, records);
END $$;
SELECT pg_temp.fill('idemkit_records');
CREATE TEMPORARY VIEW batch AS
SELECT ARRAY['over', 'new', 'completed', 'lapsed', 'claimed', 'corrupt', 'unknown', 'a', 'Z']
           AS keys,
       ARRAY['print', 'print', 'print', 'other', 'other', 'print', '', '', 'x'] AS fingerprints;
SELECT n, result, our_claim_token ~ '^[0-9a-f]{32}$' AS won, our_claim_token = claim_token AS same,
       recovered_from_corrupt AS recovered, fingerprint_matches AS matches, effective_key, state,
       fingerprint, response_status AS status, response_headers AS headers,
       convert_from(response_body, 'UTF8') AS body, attempts,
       remaining_seconds > 0 AS remaining
FROM batch, idemkit_claim_many(keys, fingerprints, 1, 60) WITH ORDINALITY AS c
    (result, our_claim_token, recovered_from_corrupt, fingerprint_matches, effective_key, state,
     fingerprint, fingerprint_version, claim_token, claimed_at, lease_until, completed_at,
     response_status, response_headers, response_body, attempts, remaining_seconds, fence, n)
ORDER BY n;
SELECT effective_key, state, fingerprint, claim_token <> 'old' AS token_is_new, attempts,
       schema_version, awaited, completed_at IS NULL AS no_result,
       claimed_at > '2100-01-01 00:00:00+00' AS later_fence,
       lease_until - clock_timestamp() < '61 s' AS lease
FROM idemkit_records ORDER BY 1;

-- The same as single claims in turn, on a table in the same state.
SELECT idemkit_create_table('claim_many_records');
SELECT pg_temp.fill('idemkit_records'), pg_temp.fill('claim_many_records');
CREATE TEMPORARY TABLE many AS
SELECT row_number() OVER () AS n, c.* FROM batch,
       idemkit_claim_many(keys || keys, fingerprints || fingerprints, 1, 60) AS c;
CREATE TEMPORARY TABLE single (n integer, c idemkit_claim_result);
DO $$
DECLARE
    b batch;
    n integer := 0;
BEGIN
    SELECT * INTO b FROM batch;
    FOR round IN 1 .. 2 LOOP
        FOR i IN 1 .. array_length(b.keys, 1) LOOP
            n := n + 1;
            INSERT INTO single
            SELECT n, idemkit_claim(b.keys[i], b.fingerprints[i], 1, 60,
                                    records => 'claim_many_records');
        END LOOP;
    END LOOP;
END $$;
SELECT count(*), count(DISTINCT m.our_claim_token) AS tokens,
       bool_and((m.result, m.recovered_from_corrupt, m.fingerprint_matches, m.effective_key,
                 m.state, m.fingerprint, m.fingerprint_version, m.response_status,
                 m.response_headers, m.response_body, m.attempts,
                 m.our_claim_token IS NULL, m.our_claim_token = m.claim_token)
                IS NOT DISTINCT FROM
                (s.result, s.recovered_from_corrupt, s.fingerprint_matches, s.effective_key,
                 s.state, s.fingerprint, s.fingerprint_version, s.response_status,
                 s.response_headers, s.response_body, s.attempts,
                 s.our_claim_token IS NULL, s.our_claim_token = s.claim_token)) AS same
FROM many AS m JOIN (SELECT n, (c).* FROM single) AS s USING (n);

-- reclaim => false reports lapsed claims and leaves them alone.
SELECT pg_temp.fill('idemkit_records');
SELECT effective_key, result, our_claim_token IS NOT NULL AS won, attempts
FROM idemkit_claim_many(ARRAY['lapsed', 'over', 'new'], reclaim => false);
SELECT claim_token FROM idemkit_records WHERE effective_key = 'lapsed';

-- A key that stands in the batch twice is won by its first place; the others
-- see that claim, and are compared with it.
TRUNCATE idemkit_records;
SELECT effective_key, result, our_claim_token IS NOT NULL AS won, fingerprint_matches, fingerprint
FROM idemkit_claim_many(ARRAY['b', 'a', 'b', 'b', 'a'], ARRAY['1', '2', '3', '1', '2']);
SELECT effective_key, fingerprint, attempts FROM idemkit_records ORDER BY 1;

-- Fingerprints left out are empty ones.
SELECT effective_key, result, fingerprint_matches FROM idemkit_claim_many(ARRAY['c', 'b']);

-- A duplicate only reads.
BEGIN;
SELECT effective_key, result FROM idemkit_claim_many(ARRAY['c', 'b', 'a']);
SELECT pg_current_xact_id_if_assigned();
COMMIT;
BEGIN READ ONLY;
SELECT effective_key, result FROM idemkit_claim_many(ARRAY['c', 'b', 'a']);
COMMIT;

-- No keys, many keys, keys of every length; rolled back, nothing is left.
SELECT count(*) FROM idemkit_claim_many('{}');
SELECT count(*) FROM idemkit_claim_many('{}', '{}');
TRUNCATE idemkit_records;
BEGIN;
SELECT result, count(*), count(DISTINCT our_claim_token) AS tokens
FROM idemkit_claim_many((SELECT array_agg('many:' || i) FROM generate_series(1, 10000) AS i))
GROUP BY result;
ROLLBACK;
SELECT count(*) FROM idemkit_records;
SELECT result, count(*), count(DISTINCT our_claim_token) AS tokens
FROM idemkit_claim_many((SELECT array_agg('many:' || i) FROM generate_series(1, 10000) AS i),
                        lease_ttl_seconds => 0.000001)
GROUP BY result;
SELECT pg_sleep(0.001);
SELECT result, count(*), count(DISTINCT our_claim_token) AS tokens,
       bool_and(attempts = 2) AS second
FROM idemkit_claim_many((SELECT array_agg('many:' || i) FROM generate_series(10000, 1, -1) AS i))
GROUP BY result;
SELECT result, count(*)
FROM idemkit_claim_many((SELECT array_agg('many:' || i) FROM generate_series(5001, 15000) AS i))
GROUP BY result ORDER BY result;
SELECT count(*), count(DISTINCT claim_token) FROM idemkit_records;
SELECT result, count(*)
FROM idemkit_claim_many((SELECT array_agg(repeat('k', i)) FROM generate_series(1, 1024) AS i))
GROUP BY result;

-- Another table.
TRUNCATE claim_many_records;
SELECT effective_key, result
FROM idemkit_claim_many(ARRAY['a', 'b'], records => 'claim_many_records');
SELECT effective_key FROM claim_many_records ORDER BY 1;
DROP TABLE claim_many_records;

-- What is refused; and then nothing was claimed.
TRUNCATE idemkit_records;
SELECT pg_temp.outcome('SELECT idemkit_claim_many(NULL)') AS null_array,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a', NULL])$$) AS null_key,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a', ''])$$) AS empty_key,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a', repeat('x', 1025)])$$) AS long_key,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a', 'b'], ARRAY['1'])$$) AS fewer,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a'], ARRAY['1', '2'])$$) AS more,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a'], '{}')$$) AS none,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a'], ARRAY[NULL])$$) AS null_print;
SELECT pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a'], NULL, NULL)$$) AS null_version,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a'], NULL, 1, NULL)$$) AS null_lease,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a'], NULL, 1, 0)$$) AS no_lease,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a'], NULL, 1, 1, NULL)$$) AS null_reclaim,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a'], records => 'pg_class')$$) AS no_records,
       pg_temp.outcome($$SELECT idemkit_claim_many(ARRAY['a'], records => 1)$$) AS no_table;
SELECT count(*) FROM idemkit_records;
