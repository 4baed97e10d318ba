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

-- What can be compared of a table: all but tokens and times, and whether the
-- lease of a claim just won is what it should be.
CREATE FUNCTION pg_temp.contents(records regclass) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    contents jsonb;
BEGIN
    EXECUTE format($q$
        SELECT jsonb_agg(to_jsonb(r) - 'claim_token' - 'claimed_at' - 'lease_until' - 'completed_at'
                         || jsonb_build_object('old', claim_token = 'old',
                                               'no_time', completed_at IS NULL,
                                               'live', lease_until > clock_timestamp())
                         ORDER BY effective_key)
        FROM %s AS r $q$, records) INTO contents;
    RETURN contents;
END $$;

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
BEGIN
    PERFORM setseed(seed);
    FOR h IN 1 .. count LOOP
        -- The same random rows in both tables ...
        DELETE FROM idemkit_records;
        DELETE FROM batch_records;
        INSERT INTO idemkit_records (effective_key, state, fingerprint, fingerprint_version,
                                     claim_token, claimed_at, lease_until, completed_at,
                                     response_status, response_body, schema_version, attempts)
        SELECT 'k' || i, CASE WHEN kind < 3 THEN 'CLAIMED' ELSE 'COMPLETED' END,
               CASE WHEN random() < 0.5 THEN 'a' ELSE 'b' END, 1 + (random() < 0.3)::integer, 'old',
               clock_timestamp() - interval '1 day',
               clock_timestamp() + CASE WHEN kind IN (1, 4) THEN -1 ELSE 1 END * interval '1 hour',
               CASE WHEN kind >= 3 AND kind < 6 THEN clock_timestamp() END, kind,
               CASE WHEN kind >= 3 THEN '\x00ff'::bytea END, 1 + (kind = 5)::integer,
               1 + trunc(random() * 4)::integer
        FROM (SELECT i, trunc(random() * 7)::integer AS kind FROM generate_series(1, 6) AS i) AS k
        WHERE random() < 0.7;
        INSERT INTO batch_records SELECT * FROM idemkit_records;

        -- ... and a random batch of claims, with keys that repeat.
        size := 1 + trunc(random() * 8);
        keys := ARRAY(SELECT 'k' || 1 + trunc(random() * 7) FROM generate_series(1, size));
        prints := ARRAY(SELECT CASE WHEN random() < 0.5 THEN 'a' ELSE 'b' END
                        FROM generate_series(1, size));
        version := 1 + (random() < 0.3)::integer;
        reclaims := random() < 0.7;
        batch := ARRAY(SELECT c FROM idemkit_claim_many(keys, prints, version, 60, reclaims,
                                                        'batch_records') AS c);
        tokens := '{}';
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
        IF pg_temp.contents('idemkit_records') <> pg_temp.contents('batch_records') THEN
            RETURN format('seed %s, history %s: tables differ after claims', seed, h);
        END IF;

        -- The same tokens in both, then a random batch of completions.
        UPDATE idemkit_records SET claim_token = effective_key;
        UPDATE batch_records SET claim_token = effective_key;
        size := 1 + trunc(random() * 8);
        keys := ARRAY(SELECT 'k' || 1 + trunc(random() * 7) FROM generate_series(1, size));
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
        IF pg_temp.contents('idemkit_records') <> pg_temp.contents('batch_records') THEN
            RETURN format('seed %s, history %s: tables differ after completions', seed, h);
        END IF;
    END LOOP;
    RETURN 'all the same';
END $$;
SET client_min_messages = warning;
SELECT pg_temp.histories(random(), 10000);
DROP TABLE batch_records;
