--
-- idemkit_vacuum removes what is over by its own clock, and nothing else.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- Rows of every age: seconds from now to lease_until, and from completion.
CREATE FUNCTION pg_temp.fill() RETURNS void LANGUAGE sql AS $$
    TRUNCATE idemkit_records;
    INSERT INTO idemkit_records (effective_key, state, fingerprint, fingerprint_version,
                                 claim_token, claimed_at, lease_until, completed_at)
    SELECT key, state, '', 1, 'owner', clock_timestamp() - interval '1 day',
           clock_timestamp() + left_over * interval '1 second',
           clock_timestamp() - since * interval '1 second'
    FROM (VALUES ('claim: live', 'CLAIMED', 100, NULL),
                 ('claim: lapsed 30 s ago', 'CLAIMED', -30, NULL),
                 ('claim: lapsed 90 s ago', 'CLAIMED', -90, NULL),
                 ('result: live, young', 'COMPLETED', 100, 10),
                 ('result: live, old', 'COMPLETED', 100, 1000),
                 ('result: over 30 s ago', 'COMPLETED', -30, 50),
                 ('result: over 90 s ago', 'COMPLETED', -90, 2000))
         AS v (key, state, left_over, since);
$$;

-- By default: results past their retention, claims whose lease ended more than
-- 60 seconds ago.
SELECT FROM pg_temp.fill();
SELECT idemkit_vacuum();
SELECT effective_key FROM idemkit_records ORDER BY 1;
SELECT idemkit_vacuum();

-- The grace is the caller's.
SELECT FROM pg_temp.fill();
SELECT idemkit_vacuum(lease_grace_seconds => 0);
SELECT effective_key FROM idemkit_records ORDER BY 1;
SELECT FROM pg_temp.fill();
SELECT idemkit_vacuum(lease_grace_seconds => 100);
SELECT effective_key FROM idemkit_records ORDER BY 1;

-- expires_after_seconds removes results older than that besides, live or not,
-- and never a live claim.
SELECT FROM pg_temp.fill();
SELECT idemkit_vacuum(500);
SELECT effective_key FROM idemkit_records ORDER BY 1;
SELECT FROM pg_temp.fill();
SELECT idemkit_vacuum(0, 0);
SELECT effective_key FROM idemkit_records ORDER BY 1;
SELECT FROM pg_temp.fill();
SELECT idemkit_vacuum(315576000, 315576000);
SELECT effective_key FROM idemkit_records ORDER BY 1;

-- max_rows bounds one call, oldest first; NULL is no bound, 0 is nothing.
SELECT FROM pg_temp.fill();
SELECT idemkit_vacuum(lease_grace_seconds => 0, max_rows => 0);
SELECT idemkit_vacuum(lease_grace_seconds => 0, max_rows => 2);
SELECT effective_key FROM idemkit_records ORDER BY 1;
SELECT idemkit_vacuum(lease_grace_seconds => 0, max_rows => 1);
SELECT idemkit_vacuum(lease_grace_seconds => 0, max_rows => 9223372036854775807);
SELECT idemkit_vacuum(lease_grace_seconds => 0, max_rows => 1);
SELECT effective_key FROM idemkit_records ORDER BY 1;

-- Of several batches together, each row once.
SELECT count(*) FROM generate_series(1, 1000) AS i,
       idemkit_claim('many:' || i, lease_ttl_seconds => 0.000001);
SELECT pg_sleep(0.001);
SELECT sum(idemkit_vacuum(lease_grace_seconds => 0, max_rows => 300)) FROM generate_series(1, 5);
SELECT count(*) FROM idemkit_records WHERE effective_key LIKE 'many:%';

-- It sees what ran out in its own transaction, whose clock stands still, and
-- is undone with it.
BEGIN;
SELECT result FROM idemkit_claim('inside', lease_ttl_seconds => 0.000001);
SELECT pg_sleep(0.001);
SELECT idemkit_vacuum(lease_grace_seconds => 0);
SELECT count(*) FROM idemkit_get('inside');
ROLLBACK;
SELECT FROM pg_temp.fill();
BEGIN;
SELECT idemkit_vacuum();
ROLLBACK;
SELECT count(*) FROM idemkit_records;

-- What its own transaction has locked is not in its way, whether the lock is of
-- one of its subtransactions or of several.
SELECT idemkit_create_table('locked');
SELECT count(*) FROM generate_series(1, 4) AS i,
       idemkit_claim('k' || i, lease_ttl_seconds => 0.000001, records => 'locked');
BEGIN;
SELECT effective_key FROM locked WHERE effective_key < 'k3' FOR UPDATE;
SAVEPOINT inner_lock;
SELECT effective_key FROM locked WHERE effective_key IN ('k2', 'k3') FOR KEY SHARE;
SELECT idemkit_vacuum(lease_grace_seconds => 0, records => 'locked');
COMMIT;
SELECT our_claim_token AS token FROM idemkit_claim('guarded', records => 'locked') \gset
BEGIN;
SELECT idemkit_guard('guarded', :'token', 'locked');
SAVEPOINT inner_work;
SELECT idemkit_complete('guarded', :'token', expires_after_seconds => 0, records => 'locked');
SELECT idemkit_vacuum(records => 'locked');
COMMIT;
SELECT count(*) FROM locked;
DROP TABLE locked;

-- A removed key is absent.
SELECT idemkit_vacuum();
SELECT result, attempts FROM idemkit_claim('claim: lapsed 90 s ago');
SELECT idemkit_complete('result: over 90 s ago', 'owner'),
       idemkit_renew('result: over 90 s ago', 'owner');

-- Rows nobody can judge stay: a claim that never ends.
TRUNCATE idemkit_records;
SELECT result FROM idemkit_claim('endless');
UPDATE idemkit_records SET lease_until = 'infinity';
SELECT idemkit_vacuum(0, 0);
UPDATE idemkit_records SET lease_until = '-infinity';
SELECT idemkit_vacuum(0, 0);
