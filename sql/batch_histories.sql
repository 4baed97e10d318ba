--
-- Verdicts of a batch equal those of single calls in turn, on 10,000 random
-- histories.  A failure prints the seed; put it in place of random() below to
-- see the same histories again.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT idemkit_create_table('batch_records');

-- What can be compared of a row: all but its token and times, of which is told
-- what must be the same.
CREATE FUNCTION pg_temp.contents(r idemkit_records) RETURNS jsonb LANGUAGE sql AS $$
    SELECT to_jsonb(r) - 'claim_token' - 'claimed_at' - 'lease_until' - 'completed_at'
           || jsonb_build_object('old', r.claim_token = 'old', 'no_time', r.completed_at IS NULL,
                                 'live', r.lease_until > clock_timestamp())
$$;

CREATE FUNCTION pg_temp.histories(seed double precision, count integer) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    keys text[];
    prints text[];
    tokens text[];
    statuses integer[];
    version integer;
    reclaims boolean;
    size integer;
    batch idemkit_claim_result[];
    done boolean[];
    single idemkit_claim_result;
    one idemkit_claim_result;
    differing text;
BEGIN
    PERFORM setseed(seed);
    FOR h IN 1 .. count LOOP
        -- The same random rows in both tables, with keys of this history ...
        INSERT INTO idemkit_records (effective_key, state, fingerprint, fingerprint_version,
                                     claim_token, claimed_at, lease_until, completed_at,
                                     response_status, response_body, schema_version, attempts)
        SELECT h || ':' || i, CASE WHEN kind < 3 THEN 'CLAIMED' ELSE 'COMPLETED' END,
               CASE WHEN random() < 0.5 THEN 'a' ELSE 'b' END, 1 + (random() < 0.3)::integer, 'old',
               clock_timestamp() - interval '1 day',
               clock_timestamp() + CASE WHEN kind IN (1, 4) THEN -1 ELSE 1 END * interval '1 hour',
               CASE WHEN kind >= 3 AND kind < 6 THEN clock_timestamp() END, kind,
               CASE WHEN kind >= 3 THEN '\x00ff'::bytea END, 1 + (kind = 5)::integer,
               1 + trunc(random() * 4)::integer
        FROM (SELECT i, trunc(random() * 7)::integer AS kind FROM generate_series(1, 6) AS i) AS k
        WHERE random() < 0.7;
        INSERT INTO batch_records SELECT * FROM idemkit_records
        WHERE effective_key BETWEEN h || ':' AND h || ':~';

        -- ... and a random batch of claims, with keys that repeat.
        size := 1 + trunc(random() * 8);
        keys := ARRAY(SELECT h || ':' || 1 + trunc(random() * 7)
                      FROM generate_series(1, size));
        prints := ARRAY(SELECT CASE WHEN random() < 0.5 THEN 'a' ELSE 'b' END
                        FROM generate_series(1, size));
        version := 1 + (random() < 0.3)::integer;
        reclaims := random() < 0.7;
        batch := ARRAY(SELECT c FROM idemkit_claim_many(keys, prints, version, 60, reclaims,
                                                        'batch_records') AS c);
        FOR i IN 1 .. size LOOP
            single := idemkit_claim(keys[i], prints[i], version, 60, reclaims);
            one := batch[i];
            IF (single.result, single.recovered_from_corrupt, single.fingerprint_matches,
                single.effective_key, single.state, single.fingerprint, single.fingerprint_version,
                single.response_status, single.response_body, single.attempts,
                single.our_claim_token IS NULL, single.our_claim_token = single.claim_token)
               IS DISTINCT FROM
               (one.result, one.recovered_from_corrupt, one.fingerprint_matches, one.effective_key,
                one.state, one.fingerprint, one.fingerprint_version, one.response_status,
                one.response_body, one.attempts, one.our_claim_token IS NULL,
                one.our_claim_token = one.claim_token) THEN
                RETURN format('seed %s, history %s, claim %s: %s instead of %s', seed, h, i, one,
                              single);
            END IF;
        END LOOP;

        -- The same tokens in both, then a random batch of completions.
        UPDATE idemkit_records SET claim_token = effective_key
        WHERE effective_key BETWEEN h || ':' AND h || ':~';
        UPDATE batch_records SET claim_token = effective_key
        WHERE effective_key BETWEEN h || ':' AND h || ':~';
        size := 1 + trunc(random() * 8);
        keys := ARRAY(SELECT h || ':' || 1 + trunc(random() * 7)
                      FROM generate_series(1, size));
        tokens := ARRAY(SELECT CASE WHEN random() < 0.7 THEN key ELSE 'wrong' END
                        FROM unnest(keys) AS key);
        statuses := ARRAY(SELECT nullif(trunc(random() * 5)::integer, 0)
                          FROM generate_series(1, size));
        done := ARRAY(SELECT d FROM idemkit_complete_many(keys, tokens, statuses, NULL, NULL, 60,
                                                          'batch_records') AS d);
        FOR i IN 1 .. size LOOP
            IF idemkit_complete(keys[i], tokens[i], statuses[i], NULL, NULL, 60)
               IS DISTINCT FROM done[i] THEN
                RETURN format('seed %s, history %s, completion %s: %s', seed, h, i, done[i]);
            END IF;
        END LOOP;
    END LOOP;

    -- Both tables end up the same.
    SELECT coalesce(a.effective_key, b.effective_key) INTO differing
    FROM idemkit_records AS a FULL JOIN batch_records AS b USING (effective_key)
    WHERE pg_temp.contents(a) IS DISTINCT FROM pg_temp.contents(b::text::idemkit_records)
    LIMIT 1;
    IF differing IS NOT NULL THEN
        RETURN format('seed %s: rows of key %s differ', seed, differing);
    END IF;
    RETURN 'all the same';
END $$;
SET enable_seqscan = off;
SELECT pg_temp.histories(random(), 10000);
DROP TABLE batch_records;
