--
-- idemkit_subscribe marks the live claims among its keys and returns the
-- records as they stand.
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

SELECT count(*) FROM unnest(ARRAY['live', 'other', 'done', 'over', 'lapsed', 'broken']) AS key,
       idemkit_claim(key);
SELECT idemkit_complete(effective_key, claim_token, 200, '{"a": 1}', 'body',
                        CASE effective_key WHEN 'over' THEN 0 ELSE 60 END)
FROM idemkit_records WHERE effective_key IN ('done', 'over');
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 hour'
WHERE effective_key = 'lapsed';
UPDATE idemkit_records SET schema_version = 2 WHERE effective_key = 'broken';

-- Rows that are there come back, each once; only live claims are marked, and
-- only those asked for.
SELECT s.effective_key, s.state, s.response_status, s.response_headers,
       s.claim_token = r.claim_token AS token, s.remaining_seconds > 0 AS remaining, s.attempts,
       s.fence IS NOT NULL AS fence
FROM idemkit_subscribe(ARRAY['live', 'absent', 'done', 'over', 'lapsed', 'live']) AS s
JOIN idemkit_records AS r USING (effective_key) ORDER BY 1;
SELECT effective_key, awaited FROM idemkit_records ORDER BY 1;

-- A row already marked is only read: no transaction id, and the row stays the
-- version it was.
CREATE TEMPORARY TABLE before AS
SELECT ctid AS place, xmin AS made_by, xmax AS locked_by FROM idemkit_records
WHERE effective_key = 'live';
BEGIN;
SELECT effective_key, state FROM idemkit_subscribe(ARRAY['live']);
SELECT effective_key, state FROM idemkit_subscribe(ARRAY['done', 'lapsed', 'absent', 'live'])
ORDER BY 1;
SELECT pg_current_xact_id_if_assigned();
COMMIT;
SELECT b.place = r.ctid AND b.made_by = r.xmin AND b.locked_by = r.xmax AS same_version
FROM before AS b, idemkit_records AS r WHERE effective_key = 'live';

-- A renewal keeps the mark; what ends the claim ends it.
SELECT idemkit_renew('live', claim_token) FROM idemkit_records WHERE effective_key = 'live';
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 hour'
WHERE effective_key = 'live';
SELECT result FROM idemkit_claim('live');
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';
SELECT count(*) FROM idemkit_subscribe(ARRAY['live']);
SELECT idemkit_complete('live', claim_token, 200, expires_after_seconds => 0)
FROM idemkit_records WHERE effective_key = 'live';
SELECT pg_sleep(0.001);
SELECT result FROM idemkit_claim('live');
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';
SELECT count(*) FROM idemkit_subscribe(ARRAY['live']);
SELECT idemkit_release('live', claim_token) FROM idemkit_records WHERE effective_key = 'live';
SELECT result FROM idemkit_claim('live');
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';
SELECT count(*) FROM idemkit_subscribe(ARRAY['live']);
SELECT idemkit_release('live', claim_token, true) FROM idemkit_records
WHERE effective_key = 'live';
SELECT result FROM idemkit_claim('live');
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';
SELECT count(*) FROM idemkit_subscribe(ARRAY['live']);
UPDATE idemkit_records SET schema_version = 2 WHERE effective_key = 'live';
SELECT result, recovered_from_corrupt FROM idemkit_claim('live');
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';

-- A mark that is rolled back is none.
BEGIN;
SELECT count(*) FROM idemkit_subscribe(ARRAY['live']);
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';
ROLLBACK;
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';

-- In a read-only transaction it only reads.
BEGIN READ ONLY;
SELECT effective_key, state FROM idemkit_subscribe(ARRAY['live', 'done']) ORDER BY 1;
COMMIT;
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';
-- A role that may only read gets no mark, and hears of it.
CREATE ROLE regress_idemkit_subscriber;
GRANT SELECT ON idemkit_records TO regress_idemkit_subscriber;
SET ROLE regress_idemkit_subscriber;
SELECT pg_temp.outcome($$SELECT state FROM idemkit_subscribe(ARRAY['live'])$$);
RESET ROLE;
REVOKE ALL ON idemkit_records FROM regress_idemkit_subscriber;
DROP ROLE regress_idemkit_subscriber;

-- Very many keys, and none.
SELECT count(*) FROM idemkit_subscribe('{}');
SELECT count(*) FROM generate_series(1, 10000) AS i, idemkit_claim('many:' || i);
SELECT count(*), count(DISTINCT effective_key)
FROM idemkit_subscribe((SELECT array_agg('many:' || i % 15000)
                        FROM generate_series(1, 20000) AS i));
SELECT awaited, count(*) FROM idemkit_records WHERE effective_key LIKE 'many:%' GROUP BY awaited;

-- Another table.
SELECT idemkit_create_table('subscribe_records');
SELECT result FROM idemkit_claim('k', records => 'subscribe_records');
SELECT effective_key FROM idemkit_subscribe(ARRAY['k', 'live'], 'subscribe_records');
SELECT awaited FROM subscribe_records;
DROP TABLE subscribe_records;

-- What is refused.
SELECT pg_temp.outcome('SELECT idemkit_subscribe(NULL)') AS null_array,
       pg_temp.outcome($$SELECT idemkit_subscribe(ARRAY['live', NULL])$$) AS null_key,
       pg_temp.outcome($$SELECT idemkit_subscribe(ARRAY['live', ''])$$) AS empty_key,
       pg_temp.outcome($$SELECT idemkit_subscribe(ARRAY[repeat('x', 1025)])$$) AS long_key,
       pg_temp.outcome($$SELECT idemkit_subscribe(ARRAY['live'], 'pg_class')$$) AS no_records,
       pg_temp.outcome($$SELECT idemkit_subscribe(ARRAY['live'], 1)$$) AS no_table;
SELECT awaited FROM idemkit_records WHERE effective_key = 'live';
