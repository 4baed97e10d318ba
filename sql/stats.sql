--
-- idemkit_stats agrees with a count.
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

-- An empty table.
SELECT live_claims, lapsed_claims, live_completions, expired_completions, oldest_live_claim,
       oldest_lapsed_claim, oldest_live_completion, oldest_expired_completion, highest_attempts,
       table_bytes, index_bytes > 0 AS has_index, dead_tuples >= 0 AS dead,
       notification_queue_usage BETWEEN 0 AND 1 AS queue, sampled_fraction
FROM idemkit_stats();

INSERT INTO idemkit_records (effective_key, state, fingerprint, fingerprint_version, claim_token,
                             claimed_at, lease_until, completed_at, attempts, response_body)
SELECT kind || i, state, '', 1, 'owner',
       timestamptz '2001-01-01 00:00:00+00' + i * interval '1 day',
       CASE WHEN live THEN timestamptz '2100-01-01 00:00:00+00' ELSE '2002-01-01 00:00:00+00' END
       + i * interval '1 day',
       CASE state WHEN 'COMPLETED'
            THEN timestamptz '2003-01-01 00:00:00+00' + i * interval '1 day' END, i,
       (SELECT string_agg(decode(md5(n::text), 'hex'), '') FROM generate_series(1, 500) AS n)
FROM (VALUES ('live claim ', 'CLAIMED', true, 10), ('lapsed claim ', 'CLAIMED', false, 20),
             ('live result ', 'COMPLETED', true, 30), ('expired result ', 'COMPLETED', false, 40))
     AS v (kind, state, live, count), generate_series(1, count) AS i;
SET timezone = 'UTC';
SET datestyle = 'ISO';
SELECT live_claims, lapsed_claims, live_completions, expired_completions, highest_attempts
FROM idemkit_stats();
SELECT oldest_live_claim, oldest_lapsed_claim, oldest_live_completion, oldest_expired_completion
FROM idemkit_stats();
SELECT table_bytes = pg_relation_size('idemkit_records') AS table_bytes,
       index_bytes = pg_indexes_size('idemkit_records') AS index_bytes,
       toast_bytes = (SELECT pg_total_relation_size(reltoastrelid) FROM pg_class
                      WHERE oid = 'idemkit_records'::regclass) AS toast_bytes,
       toast_bytes > 8192 AS has_toast, sampled_fraction
FROM idemkit_stats();

-- It only reads, and a reader may call it.
BEGIN READ ONLY;
SELECT live_claims FROM idemkit_stats();
SELECT pg_current_xact_id_if_assigned();
COMMIT;
CREATE ROLE regress_idemkit_stats;
SET ROLE regress_idemkit_stats;
SELECT pg_temp.outcome('SELECT live_claims FROM idemkit_stats()') AS without_rights;
RESET ROLE;
GRANT SELECT ON idemkit_records TO regress_idemkit_stats;
SET ROLE regress_idemkit_stats;
SELECT live_claims FROM idemkit_stats();
RESET ROLE;
REVOKE ALL ON idemkit_records FROM regress_idemkit_stats;
DROP ROLE regress_idemkit_stats;

-- What changes is seen, in the same transaction as well.
BEGIN;
SELECT idemkit_vacuum();
SELECT live_claims, lapsed_claims, live_completions, expired_completions FROM idemkit_stats();
SELECT idemkit_complete('live claim 1', 'owner');
SELECT live_claims, lapsed_claims, live_completions, expired_completions FROM idemkit_stats();
ROLLBACK;
SELECT live_claims, lapsed_claims, live_completions, expired_completions FROM idemkit_stats();

-- Another table; a partitioned one.
SELECT idemkit_create_table('stats_records');
SELECT result FROM idemkit_claim('k', records => 'stats_records');
SELECT live_claims, table_bytes > 0 AS has_table, sampled_fraction
FROM idemkit_stats('stats_records');
DROP TABLE stats_records;
CREATE TABLE stats_parts (LIKE idemkit_records INCLUDING ALL) PARTITION BY HASH (effective_key);
CREATE TABLE stats_part0 PARTITION OF stats_parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE stats_part1 PARTITION OF stats_parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
SELECT count(*) FROM generate_series(1, 20) AS i,
       idemkit_claim('k' || i, records => 'stats_parts');
SELECT live_claims FROM idemkit_stats('stats_parts');
DROP TABLE stats_parts;

-- Of a large table only a part is read, and the counts are estimates: 20,000
-- pages with a row each.
SELECT idemkit_create_table('stats_large', true);
ALTER TABLE stats_large SET (fillfactor = 10, autovacuum_enabled = false);
INSERT INTO stats_large (effective_key, state, fingerprint, fingerprint_version, claim_token,
                         claimed_at, lease_until)
SELECT 'k' || i, 'CLAIMED', repeat('x', 800), 1, 'owner', clock_timestamp(),
       clock_timestamp() + CASE i % 2 WHEN 0 THEN 1 ELSE -1 END * interval '1 day'
FROM generate_series(1, 20000) AS i;
SELECT sampled_fraction BETWEEN 0.1 AND 0.9 AS sampled, live_claims BETWEEN 9000 AND 11000 AS live,
       lapsed_claims BETWEEN 9000 AND 11000 AS lapsed, live_completions, expired_completions
FROM idemkit_stats('stats_large');
DROP TABLE stats_large;

-- What is refused.
SELECT pg_temp.outcome($$SELECT idemkit_stats('pg_class')$$) AS no_records,
       pg_temp.outcome($$SELECT idemkit_stats(1)$$) AS no_table;
