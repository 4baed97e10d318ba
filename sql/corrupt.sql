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
