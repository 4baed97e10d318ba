--
-- Corrupt rows: what is stored cannot be trusted, so the next claim wins the
-- key anew and says so.  They are written behind the extension's back.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT idemkit_create_table('corrupt_records');
ALTER TABLE corrupt_records DROP CONSTRAINT corrupt_records_state_check;
INSERT INTO corrupt_records (effective_key, state, fingerprint, fingerprint_version, claim_token,
                             claimed_at, lease_until, completed_at, response_status,
                             response_headers, response_body, schema_version, attempts)
SELECT what, state, 'old', 1, 'owner', clock_timestamp(), clock_timestamp() + interval '1 hour',
       CASE WHEN completed THEN clock_timestamp() END, 500, headers, 'old', schema_version, 5
FROM (VALUES ('unknown state', 'BROKEN', true, NULL::jsonb, 1),
             ('empty state', '', false, NULL, 1),
             ('state in lower case', 'completed', true, NULL, 1),
             ('state with a blank', 'CLAIMED ', false, NULL, 1),
             ('completed without a time', 'COMPLETED', false, NULL, 1),
             ('headers: array', 'COMPLETED', true, '[]', 1),
             ('headers: number', 'COMPLETED', true, '1', 1),
             ('headers: string', 'COMPLETED', true, '"x"', 1),
             ('headers: null', 'COMPLETED', true, 'null', 1),
             ('headers: large array', 'COMPLETED', true,
              (SELECT jsonb_agg(7) FROM generate_series(1, 100000)), 1),
             ('headers of a claim', 'CLAIMED', false, '[]', 1),
             ('schema version 0', 'COMPLETED', true, NULL, 0),
             ('schema version 2', 'COMPLETED', true, NULL, 2),
             ('schema version 2 of a claim', 'CLAIMED', false, NULL, 2),
             ('schema version -1', 'CLAIMED', false, NULL, -1),
             ('sound claim', 'CLAIMED', false, NULL, 1),
             ('sound result', 'COMPLETED', true, '{}', 1))
     AS v (what, state, completed, headers, schema_version);

-- idemkit_get shows them as they are.
SELECT state, response_status, response_headers FROM idemkit_get('headers: array',
                                                                 'corrupt_records');

-- Each is won with reclaim => false too, for it is no lapsed claim.
CREATE TEMPORARY TABLE keys AS SELECT effective_key AS key FROM corrupt_records;
SELECT key, result, our_claim_token = claim_token AS won, recovered_from_corrupt AS recovered,
       fingerprint_matches AS matches, fingerprint, state, attempts
FROM keys, idemkit_claim(key, 'new', reclaim => false, records => 'corrupt_records')
ORDER BY key COLLATE "C";

-- Nothing of the corrupt row is left, and the key works again.
SELECT count(*), state, completed_at, response_status, response_headers, response_body,
       schema_version, attempts
FROM corrupt_records WHERE effective_key NOT LIKE 'sound%'
GROUP BY 2, 3, 4, 5, 6, 7, 8;
SELECT result, recovered_from_corrupt, count(*)
FROM keys, idemkit_claim(key, 'new', records => 'corrupt_records')
WHERE key NOT LIKE 'sound%' GROUP BY 1, 2;
SELECT completed, count(*)
FROM corrupt_records AS r,
     idemkit_complete(effective_key, claim_token, 200, records => 'corrupt_records') AS completed
WHERE effective_key NOT LIKE 'sound%' GROUP BY 1;

-- The owner of a claim that turned out corrupt and was won by another is out.
SELECT count(*) FROM keys, idemkit_renew(key, 'owner', records => 'corrupt_records') AS renewed
WHERE renewed AND key NOT LIKE 'sound%';

-- An expired result that is corrupt is won as corrupt.
UPDATE corrupt_records SET lease_until = clock_timestamp() - interval '1 hour', completed_at = NULL
WHERE effective_key = 'sound result';
SELECT result, recovered_from_corrupt, attempts
FROM idemkit_claim('sound result', records => 'corrupt_records');
DROP TABLE corrupt_records;

-- Every verb on every kind of corrupt row, on a table and on a partitioned one: what
-- each is told or raises, and whether the row is still there as it was.
CREATE PROCEDURE pg_temp.make_corrupt(kind text) LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL client_min_messages = warning;
    DROP TABLE IF EXISTS corrupt_records;
    EXECUTE 'CREATE TABLE corrupt_records (LIKE idemkit_records INCLUDING DEFAULTS INCLUDING INDEXES)' || kind;
    IF kind <> '' THEN
        CREATE TABLE corrupt_part PARTITION OF corrupt_records FOR VALUES WITH (MODULUS 1, REMAINDER 0);
    END IF;
    INSERT INTO corrupt_records (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at,
                                 lease_until, completed_at, response_headers, schema_version)
    SELECT what, state, '', 1, 'owner', '2001-01-01', lease_until::timestamptz, completed_at::timestamptz, headers, version
    FROM (VALUES ('unknown state', 'BROKEN', 'infinity', NULL, NULL::jsonb, 1),
                 ('unknown state, over', 'BROKEN', '-infinity', NULL, NULL, 1),
                 ('long state', repeat('COMPLETED', 10000), '2001-01-01', '2001-01-01', NULL, 1),
                 ('no time', 'COMPLETED', 'infinity', NULL, NULL, 1),
                 ('no time, over', 'COMPLETED', '2001-01-01', NULL, NULL, 1),
                 ('headers', 'COMPLETED', 'infinity', '-infinity', '[]', 1),
                 ('headers, over', 'COMPLETED', '4713-01-01 BC', 'infinity', '7', 1),
                 ('version', 'CLAIMED', 'infinity', NULL, NULL, 2),
                 ('version, over', 'CLAIMED', '2001-01-01', NULL, NULL, -2147483648))
         AS v (what, state, lease_until, completed_at, headers, version);
END $$;
CREATE TEMPORARY TABLE verbs (i serial, verb text, call text);
INSERT INTO verbs (verb, call) VALUES
    ('claim', 'SELECT concat_ws('' '', result, recovered_from_corrupt, attempts) FROM idemkit_claim(%L, reclaim => false, records => ''corrupt_records'')'),
    ('claim many', 'SELECT concat_ws('' '', result, recovered_from_corrupt, attempts) FROM idemkit_claim_many(ARRAY[%L], reclaim => false, records => ''corrupt_records'')'),
    ('renew', 'SELECT idemkit_renew(%L, ''owner'', 60, ''corrupt_records'')'),
    ('guard', 'SELECT idemkit_guard(%L, ''owner'', ''corrupt_records'')'),
    ('complete', 'SELECT idemkit_complete(%L, ''owner'', 200, records => ''corrupt_records'')'),
    ('release', 'SELECT idemkit_release(%L, ''owner'', records => ''corrupt_records'')'),
    ('get', 'SELECT concat_ws('' '', left(state, 9), remaining_seconds, fence) FROM idemkit_get(%L, ''corrupt_records'')'),
    ('subscribe', 'SELECT concat_ws('' '', left(state, 9), remaining_seconds, fence) FROM idemkit_subscribe(ARRAY[%L], ''corrupt_records'')'),
    ('wait', 'SELECT outcome FROM idemkit_wait(%L, 0, ''corrupt_records'')'),
    ('vacuum', 'SELECT idemkit_vacuum(records => ''corrupt_records'') FROM (SELECT %L) AS k'),
    ('stats', 'SELECT concat_ws('' '', live_claims, lapsed_claims, live_completions, expired_completions)
               FROM idemkit_stats(''corrupt_records''), (SELECT %L) AS k');
CREATE FUNCTION pg_temp.told(call text, key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    told text;
    before text := (SELECT r::text FROM corrupt_records AS r WHERE effective_key = key);
    same boolean;
BEGIN
    BEGIN
        EXECUTE format(call, key) INTO told;
        same := (SELECT r::text = before FROM corrupt_records AS r WHERE effective_key = key);
        RAISE EXCEPTION USING ERRCODE = 'ZZ999';
    EXCEPTION WHEN SQLSTATE 'ZZ999' THEN NULL;
              WHEN OTHERS THEN told := SQLSTATE; same := true;
    END;
    RETURN concat_ws(', ', coalesce(nullif(told, ''), 'done'), CASE WHEN same THEN 'as it was' WHEN NOT same THEN 'changed' ELSE 'removed' END);
END $$;
CREATE TEMPORARY TABLE told (kind text, verb text, i integer, key text, told text);
DO $$
DECLARE
    kind text;
BEGIN
    FOREACH kind IN ARRAY ARRAY['', ' PARTITION BY HASH (effective_key)'] LOOP
        CALL pg_temp.make_corrupt(kind);
        INSERT INTO told SELECT kind, verb, i, effective_key, pg_temp.told(call, effective_key)
        FROM verbs, corrupt_records;
    END LOOP;
END $$;
SELECT verb, told, string_agg(key, '; ' ORDER BY key) AS rows
FROM told WHERE kind = '' GROUP BY i, verb, told ORDER BY i, min(key);
SELECT * FROM told WHERE kind = '' AND (verb, key, told) NOT IN (SELECT verb, key, told FROM told WHERE kind <> '');
SELECT count(*) > 80 AS compared FROM told WHERE kind <> '';
DROP TABLE corrupt_records;
