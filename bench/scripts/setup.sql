-- What the scripts beside this file work on. psql gives fingerprint, headers and body.
--
-- A key is two numbers of 19 digits: the first spreads keys over the index, the second
-- keeps them apart. pgbench makes the keys of stored rows by the arithmetic below and
-- new ones of two random numbers.

CREATE EXTENSION idemkit;

-- All work is done on tables of one definition, with the same storage parameters.
SELECT FROM idemkit_create_table('bare');
SELECT FROM idemkit_create_table('client_side');
SELECT FROM idemkit_create_table('removal');

CREATE TABLE payload AS
SELECT :'fingerprint'::text AS fingerprint, :'headers'::jsonb AS headers, :'body'::bytea AS body;

CREATE FUNCTION bench_key(i bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
SELECT (1000000000000000000 + (i * 2654435761) % 4294967296 * 1000000000)::text
       || (1000000000000000000 + i)::text
$$;

-- Adds rows first to last: completed and kept for long, or expired (a tenth of those
-- are claims that nobody completed).
CREATE PROCEDURE bench_add(records regclass, first bigint, last bigint, expired boolean DEFAULT false)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('
        INSERT INTO %s (effective_key, state, fingerprint, fingerprint_version, claim_token,
                        claimed_at, lease_until, completed_at,
                        response_status, response_headers, response_body)
        SELECT bench_key(i),
               CASE WHEN claimed THEN ''CLAIMED'' ELSE ''COMPLETED'' END,
               fingerprint, 1, md5(i::text), now() - interval ''2 days'',
               CASE WHEN $3 THEN now() - interval ''1 day'' + i * interval ''1 ms''
                    ELSE now() + interval ''10 days'' END,
               CASE WHEN NOT claimed THEN now() - interval ''2 days'' END,
               CASE WHEN NOT claimed THEN 200 END,
               CASE WHEN NOT claimed THEN headers END,
               CASE WHEN NOT claimed THEN body END
          FROM generate_series($1, $2) AS i, payload, LATERAL (SELECT $3 AND i %% 10 = 0) AS c (claimed)',
        records) USING first, last, expired;
END
$$;

-- Makes the table anew with rows 1 to "rows".
CREATE PROCEDURE bench_refill(records regclass, rows bigint)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('TRUNCATE %s', records);
    CALL bench_add(records, 1, rows);
END
$$;

-- What a batched removal does at the least: the DELETE beside idemkit_sweep.
CREATE PROCEDURE bench_delete_in_batches(batch_rows integer)
LANGUAGE plpgsql AS $$
DECLARE
    clock timestamptz := clock_timestamp();
    removed bigint;
BEGIN
    LOOP
        DELETE FROM removal AS r
         USING (SELECT effective_key FROM removal
                 WHERE lease_until < clock
                   AND (state = 'COMPLETED' OR lease_until < clock - interval '60 s')
                 ORDER BY lease_until LIMIT batch_rows FOR UPDATE SKIP LOCKED) AS e
         WHERE r.effective_key = e.effective_key;
        GET DIAGNOSTICS removed = ROW_COUNT;
        COMMIT;
        EXIT WHEN removed = 0;
    END LOOP;
END
$$;
