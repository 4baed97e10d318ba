--
-- What is attached to a records table, and how it is built, changes nothing
-- about what the functions say and do; only the way they take to the rows.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
TRUNCATE idemkit_records;

CREATE ROLE regress_idemkit_kinds;
GRANT SELECT ON idemkit_records TO regress_idemkit_kinds;
CREATE SCHEMA table_kinds AUTHORIZATION regress_idemkit_kinds;
CREATE TABLE table_kinds.log (what text);
CREATE FUNCTION table_kinds.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO table_kinds.log VALUES (TG_OP || ' ' || TG_LEVEL);
    RETURN NULL;
END $$;

-- Makes a table, changes it, and tells in one line what stats, claims and
-- vacuum by each rule make of a row of every kind.
CREATE FUNCTION table_kinds.outcome(change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    told text;
BEGIN
    CREATE TABLE table_kinds.r (LIKE public.idemkit_records INCLUDING ALL);
    EXECUTE change;
    INSERT INTO table_kinds.r (effective_key, state, fingerprint, fingerprint_version, claim_token,
                               claimed_at, lease_until, completed_at, response_status,
                               response_body)
    SELECT key, state, 'print', 1, 'old', '2001-01-01 00:00:00+00',
           clock_timestamp() + minutes_left * interval '1 minute',
           CASE state WHEN 'COMPLETED' THEN clock_timestamp() - interval '1 hour' END, 200,
           CASE state WHEN 'COMPLETED' THEN convert_to(repeat('x', 10000), 'UTF8') END
    FROM (VALUES ('CLAIM live', 'CLAIMED', 10), ('claim lapsed', 'CLAIMED', -0.5),
                 ('claim long lapsed', 'CLAIMED', -10), ('result live', 'COMPLETED', 10),
                 ('result over', 'COMPLETED', -10), ('result long over', 'COMPLETED', -20))
         AS v (key, state, minutes_left);
    told := concat_ws(' ',
        (SELECT concat_ws('/', live_claims, lapsed_claims, live_completions, expired_completions)
         FROM public.idemkit_stats('table_kinds.r')),
        (SELECT string_agg(concat(result, length(response_body)), ',' ORDER BY key)
         FROM unnest(ARRAY['claim lapsed', 'CLAIM live', 'result live']) AS key,
              public.idemkit_claim(key, reclaim => false, records => 'table_kinds.r')));
    told := told || ' removed ' || public.idemkit_vacuum(max_rows => 1, records => 'table_kinds.r');
    told := concat_ws(' ', told,
        (SELECT string_agg(effective_key, ',' ORDER BY effective_key COLLATE "C")
         FROM table_kinds.r WHERE effective_key LIKE '%over'));
    told := told || ' ' || public.idemkit_vacuum(records => 'table_kinds.r');
    told := told || ' ' || public.idemkit_vacuum(60, records => 'table_kinds.r');
    told := told || ' ' || public.idemkit_vacuum(lease_grace_seconds => 0, records => 'table_kinds.r');
    told := concat_ws(' ', told, (SELECT string_agg(effective_key, ',') FROM table_kinds.r),
        (public.idemkit_claim('new', records => 'table_kinds.r')).result,
        (SELECT result FROM public.idemkit_claim_many(ARRAY['new'], records => 'table_kinds.r')));
    DROP TABLE table_kinds.r CASCADE;
    DROP TABLE IF EXISTS table_kinds.p;
    RETURN told;
END $$;

SELECT table_kinds.outcome('SELECT') AS plain \gset
\echo :plain
CREATE TEMPORARY TABLE kinds (i serial, kind text, change text);
INSERT INTO kinds (kind, change) VALUES
    ('no index', 'DROP INDEX table_kinds.r_lease_until_idx'),
    ('descending index', 'DROP INDEX table_kinds.r_lease_until_idx;
      CREATE INDEX ON table_kinds.r (lease_until DESC)'),
    ('nulls first', 'DROP INDEX table_kinds.r_lease_until_idx;
      CREATE INDEX ON table_kinds.r (lease_until NULLS FIRST)'),
    ('wider index', 'DROP INDEX table_kinds.r_lease_until_idx;
      CREATE INDEX ON table_kinds.r (lease_until) INCLUDE (state)'),
    ('partial index', 'DROP INDEX table_kinds.r_lease_until_idx;
      CREATE INDEX ON table_kinds.r (lease_until) WHERE state = ''CLAIMED'''),
    ('BRIN index', 'DROP INDEX table_kinds.r_lease_until_idx;
      CREATE INDEX ON table_kinds.r USING brin (lease_until)'),
    ('hash index', 'DROP INDEX table_kinds.r_lease_until_idx;
      CREATE INDEX ON table_kinds.r USING hash (lease_until)'),
    ('unique constraint', 'ALTER TABLE table_kinds.r DROP CONSTRAINT r_pkey;
      ALTER TABLE table_kinds.r ADD UNIQUE (effective_key)'),
    ('pattern index', 'ALTER TABLE table_kinds.r DROP CONSTRAINT r_pkey;
      CREATE UNIQUE INDEX ON table_kinds.r (effective_key text_pattern_ops)'),
    ('descending key', 'ALTER TABLE table_kinds.r DROP CONSTRAINT r_pkey;
      CREATE UNIQUE INDEX ON table_kinds.r (effective_key DESC)'),
    ('default collation', 'ALTER TABLE table_kinds.r
      ALTER COLUMN effective_key TYPE text COLLATE "default"'),
    ('other index collation', format('ALTER TABLE table_kinds.r DROP CONSTRAINT r_pkey;
      CREATE UNIQUE INDEX ON table_kinds.r (effective_key COLLATE %I)',
      -- One of another order, where the server has it.
      coalesce((SELECT collname FROM pg_collation WHERE collname = 'en-x-icu'), 'POSIX'))),
    ('row trigger', 'CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON table_kinds.r
      FOR EACH ROW EXECUTE FUNCTION table_kinds.note()'),
    ('statement trigger', 'CREATE TRIGGER t AFTER DELETE ON table_kinds.r
      FOR EACH STATEMENT EXECUTE FUNCTION table_kinds.note()'),
    ('foreign key', 'CREATE TABLE table_kinds.s (k text REFERENCES table_kinds.r
      ON DELETE CASCADE)'),
    ('child table', 'CREATE TABLE table_kinds.c () INHERITS (table_kinds.r)'),
    ('policy', 'ALTER TABLE table_kinds.r ENABLE ROW LEVEL SECURITY;
      CREATE POLICY p ON table_kinds.r USING (true)'),
    ('unlogged', 'ALTER TABLE table_kinds.r SET UNLOGGED'),
    ('external bodies', 'ALTER TABLE table_kinds.r
      ALTER COLUMN response_body SET STORAGE EXTERNAL'),
    ('dropped columns', 'ALTER TABLE table_kinds.r DROP COLUMN awaited, DROP COLUMN response_status;
      ALTER TABLE table_kinds.r ADD COLUMN response_status integer,
      ADD COLUMN note text DEFAULT ''x'', ADD COLUMN awaited boolean NOT NULL DEFAULT false'),
    ('replica identity', 'ALTER TABLE table_kinds.r REPLICA IDENTITY FULL'),
    ('identity column', 'ALTER TABLE table_kinds.r ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY'),
    ('generated column', 'ALTER TABLE table_kinds.r
      ADD COLUMN size integer GENERATED ALWAYS AS (length(response_body)) STORED'),
    ('trigger before', 'CREATE TRIGGER t BEFORE UPDATE ON table_kinds.r
      FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()'),
    ('inheriting', 'CREATE TABLE table_kinds.p (LIKE public.idemkit_records INCLUDING ALL);
      ALTER TABLE table_kinds.r INHERIT table_kinds.p'),
    ('partition', 'CREATE TABLE table_kinds.p (LIKE public.idemkit_records INCLUDING ALL)
      PARTITION BY HASH (effective_key);
      ALTER TABLE table_kinds.p ATTACH PARTITION table_kinds.r FOR VALUES WITH (MODULUS 1, REMAINDER 0)'),
    ('hash partitions', 'DROP TABLE table_kinds.r;
      CREATE TABLE table_kinds.r (LIKE public.idemkit_records INCLUDING ALL) PARTITION BY HASH (effective_key);
      CREATE TABLE table_kinds.r0 PARTITION OF table_kinds.r FOR VALUES WITH (MODULUS 2, REMAINDER 0);
      CREATE TABLE table_kinds.r1 PARTITION OF table_kinds.r FOR VALUES WITH (MODULUS 2, REMAINDER 1)'),
    ('partitions of partitions', 'DROP TABLE table_kinds.r;
      CREATE TABLE table_kinds.r (LIKE public.idemkit_records INCLUDING ALL) PARTITION BY HASH (effective_key);
      CREATE TABLE table_kinds.r0 PARTITION OF table_kinds.r FOR VALUES WITH (MODULUS 1, REMAINDER 0)
      PARTITION BY RANGE (effective_key);
      CREATE TABLE table_kinds.r00 PARTITION OF table_kinds.r0 DEFAULT'),
    ('everything', 'ALTER TABLE table_kinds.r ADD COLUMN a serial, ADD COLUMN b text DEFAULT ''b'';
      ALTER TABLE table_kinds.r DROP COLUMN b, SET UNLOGGED, ADD UNIQUE (a),
      ADD CHECK (length(effective_key) < 1025);
      CREATE INDEX ON table_kinds.r (upper(state)) WHERE attempts > 1;
      CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON table_kinds.r
      FOR EACH ROW EXECUTE FUNCTION table_kinds.note()');
SELECT kind, CASE WHEN outcome = :'plain' THEN 'the same' ELSE outcome END AS outcome
FROM kinds, table_kinds.outcome(change) AS outcome ORDER BY i;
SELECT what, count(*) FROM table_kinds.log GROUP BY what ORDER BY what;

-- As an owner who is no superuser, also under a policy.
SET ROLE regress_idemkit_kinds;
SELECT table_kinds.outcome('SELECT') = :'plain' AS plain_same,
       table_kinds.outcome('ALTER TABLE table_kinds.r FORCE ROW LEVEL SECURITY;
           ALTER TABLE table_kinds.r ENABLE ROW LEVEL SECURITY;
           CREATE POLICY p ON table_kinds.r USING (true)') = :'plain' AS policy_same;
RESET ROLE;
REVOKE ALL ON idemkit_records FROM regress_idemkit_kinds;
DROP SCHEMA table_kinds CASCADE;
DROP ROLE regress_idemkit_kinds;
