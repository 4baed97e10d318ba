--
-- idemkit_wait: every outcome that is there at once or comes with time.  What
-- other sessions bring about is in the isolation specs.
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

SELECT count(*) FROM unnest(ARRAY['live', 'done', 'over', 'lapsed', 'broken']) AS key,
       idemkit_claim(key);
SELECT idemkit_complete(effective_key, claim_token, 200, '{"a": 1}', 'body',
                        CASE effective_key WHEN 'over' THEN 0 ELSE 60 END)
FROM idemkit_records WHERE effective_key IN ('done', 'over');
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 hour'
WHERE effective_key = 'lapsed';
UPDATE idemkit_records SET schema_version = 2 WHERE effective_key = 'broken';

-- completed: the record, all of it.
SELECT w.outcome, w.effective_key, w.state, w.fingerprint, w.claim_token = r.claim_token AS token,
       w.completed_at = r.completed_at AS completed, w.response_status, w.response_headers,
       convert_from(w.response_body, 'UTF8') AS body, w.attempts,
       w.remaining_seconds > 0 AS remaining, w.fence IS NOT NULL AS fence
FROM idemkit_wait('done') AS w, idemkit_records AS r WHERE r.effective_key = 'done';

-- absent: never there; a result past its retention or a corrupt row, which the
-- next claim wins as if they were not.  No record, so NULLs.
SELECT * FROM idemkit_wait('absent');
SELECT outcome, effective_key FROM idemkit_wait('over');
SELECT outcome, effective_key FROM idemkit_wait('broken');

-- lapsed: claim again.
SELECT outcome, effective_key, state, remaining_seconds FROM idemkit_wait('lapsed');

-- timeout: 0 is one look, and the record says who holds it.
SELECT outcome, effective_key, state, remaining_seconds > 0 AS remaining
FROM idemkit_wait('live', 0);

-- A timeout takes its time, and little more; a wait never sleeps past the
-- lease's end.
CREATE FUNCTION pg_temp.timed(key text, timeout float8, OUT outcome text, OUT seconds numeric)
LANGUAGE plpgsql AS $$
DECLARE
    start timestamptz := clock_timestamp();
BEGIN
    outcome := (idemkit_wait(key, timeout)).outcome;
    seconds := extract(epoch FROM clock_timestamp() - start);
END $$;
SELECT outcome, seconds >= 0.3 AS not_early, seconds < 5 AS not_late
FROM pg_temp.timed('live', 0.3);
SELECT result FROM idemkit_claim('short', lease_ttl_seconds => 0.3);
SELECT outcome, seconds < 5 AS not_late FROM pg_temp.timed('short', 60);
SELECT remaining_seconds FROM idemkit_get('short');
-- What is over at once does not sleep at all.
SELECT bool_and(seconds < 5)
FROM unnest(ARRAY['done', 'absent', 'over', 'lapsed', 'broken']) AS key, pg_temp.timed(key, 60);

-- In the transaction that claims, a wait sees its own claim and completion.
BEGIN;
SELECT our_claim_token AS token FROM idemkit_claim('own') \gset
SELECT outcome FROM idemkit_wait('own', 0);
SELECT idemkit_complete('own', :'token', 201);
SELECT outcome, response_status FROM idemkit_wait('own', 0);
ROLLBACK;
SELECT outcome FROM idemkit_wait('own', 0);

-- It only reads.
BEGIN READ ONLY;
SELECT outcome FROM idemkit_wait('done');
SELECT outcome FROM idemkit_wait('live', 0.02);
SELECT pg_current_xact_id_if_assigned();
COMMIT;

-- It can be interrupted.
SET statement_timeout = '100ms';
\set VERBOSITY sqlstate
SELECT outcome FROM idemkit_wait('live', 60);
\set VERBOSITY default
RESET statement_timeout;
SELECT outcome FROM idemkit_wait('live', 0);

-- A snapshot that never changes would show no end: refused.
\set VERBOSITY sqlstate
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outcome FROM idemkit_wait('done');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outcome FROM idemkit_wait('done', 0);
ROLLBACK;
\set VERBOSITY default

-- Another table.
SELECT idemkit_create_table('wait_records');
SELECT outcome FROM idemkit_wait('done', 0, 'wait_records');
SELECT result FROM idemkit_claim('done', records => 'wait_records');
SELECT outcome FROM idemkit_wait('done', 0, 'wait_records');
DROP TABLE wait_records;

-- What is refused.
SELECT pg_temp.outcome('SELECT idemkit_wait(NULL)') AS null_key,
       pg_temp.outcome($$SELECT idemkit_wait('')$$) AS empty_key,
       pg_temp.outcome($$SELECT idemkit_wait(repeat('x', 1025))$$) AS long_key,
       pg_temp.outcome($$SELECT idemkit_wait('live', NULL)$$) AS null_timeout,
       pg_temp.outcome($$SELECT idemkit_wait('live', -1)$$) AS negative,
       pg_temp.outcome($$SELECT idemkit_wait('live', 'NaN')$$) AS nan,
       pg_temp.outcome($$SELECT idemkit_wait('live', 'Infinity')$$) AS infinite,
       pg_temp.outcome($$SELECT idemkit_wait('live', 1e10)$$) AS long,
       pg_temp.outcome($$SELECT idemkit_wait('live', 0, 'pg_class')$$) AS no_records,
       pg_temp.outcome($$SELECT idemkit_wait('live', 0, 1)$$) AS no_table;
