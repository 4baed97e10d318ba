--
-- A duplicate of a live row only reads: no transaction id, no row lock, no
-- WAL; so it works in a read-only transaction.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- WAL records that a query writes, nested statements included.
CREATE FUNCTION pg_temp.wal_records(query text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (ANALYZE, WAL, FORMAT JSON) ' || query INTO plan;
    RETURN (plan -> 0 -> 'Plan' ->> 'WAL Records')::integer;
END $$;
-- Locks this transaction holds on the records table and its indexes, and
-- whether it has a transaction id.
CREATE VIEW pg_temp.traces AS
SELECT string_agg(DISTINCT mode, ', ') FILTER (WHERE relation IN (
           SELECT oid FROM pg_class WHERE relname LIKE 'idemkit\_records%')) AS locks,
       count(*) FILTER (WHERE locktype = 'transactionid') AS transaction_ids,
       pg_current_xact_id_if_assigned() IS NULL AS no_xid
FROM pg_locks WHERE pid = pg_backend_pid();

SELECT result FROM idemkit_claim('claimed', 'print');
SELECT result FROM idemkit_claim('completed', 'print');
SELECT idemkit_complete('completed', claim_token, 200, '{"a": 1}',
                        convert_to(repeat('x', 100000), 'UTF8'))
FROM idemkit_records WHERE effective_key = 'completed';
SELECT result FROM idemkit_claim('lapsed', 'print');
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 hour'
WHERE effective_key = 'lapsed';
-- The first look may set hint bits and prune pages; after it nothing is left
-- to tidy up.
VACUUM idemkit_records;
SELECT count(*) FROM idemkit_records WHERE response_body IS NULL OR length(response_body) > 0;
CREATE TEMPORARY TABLE before AS
SELECT effective_key, ctid AS place, xmin AS made_by, xmax AS locked_by FROM idemkit_records;

BEGIN;
SELECT result, fingerprint_matches FROM idemkit_claim('claimed', 'print');
SELECT result, fingerprint_matches FROM idemkit_claim('claimed', 'other');
SELECT result, length(response_body) FROM idemkit_claim('completed', 'print');
SELECT result FROM idemkit_claim('lapsed', 'print', reclaim => false);
SELECT count(*) FROM idemkit_get('completed');
SELECT idemkit_complete('completed', 'wrong'), idemkit_renew('absent', 'wrong');
SELECT no_xid FROM pg_temp.traces;
COMMIT;

BEGIN;
SELECT result FROM idemkit_claim('claimed', 'print');
SELECT result FROM idemkit_claim('completed', 'print');
SELECT result FROM idemkit_claim('lapsed', 'print', reclaim => false);
SELECT * FROM pg_temp.traces;
COMMIT;
SELECT count(*) AS untouched FROM before AS b JOIN idemkit_records AS r USING (effective_key)
WHERE b.place = r.ctid AND b.made_by = r.xmin AND b.locked_by = r.xmax AND r.xmax = 0;

SELECT query, pg_temp.wal_records(query) AS wal_records
FROM (VALUES ('SELECT idemkit_claim(''claimed'')'), ('SELECT idemkit_claim(''completed'')'),
             ('SELECT * FROM idemkit_claim(''completed'', ''print'')'),
             ('SELECT idemkit_claim(''lapsed'', reclaim => false)'),
             ('SELECT * FROM idemkit_get(''completed'')')) AS v (query);

-- A winner leaves all of that behind: the instruments work.
BEGIN;
SELECT pg_temp.wal_records('SELECT idemkit_claim(''won'')') > 0 AS wrote;
SELECT * FROM pg_temp.traces;
ROLLBACK;

-- Read-only transactions, READ COMMITTED and above.
BEGIN READ ONLY;
SELECT result FROM idemkit_claim('claimed', 'print');
SELECT result, response_status FROM idemkit_claim('completed', 'print');
SELECT result FROM idemkit_claim('lapsed', 'print', reclaim => false);
SELECT state FROM idemkit_get('completed');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT result, response_status FROM idemkit_claim('completed', 'print');
COMMIT;
-- What would have to write raises what every write there raises.
\set VERBOSITY sqlstate
BEGIN READ ONLY;
SELECT result FROM idemkit_claim('absent');
ROLLBACK;
BEGIN READ ONLY;
SELECT result FROM idemkit_claim('lapsed');
ROLLBACK;
BEGIN READ ONLY;
SELECT idemkit_complete('claimed', claim_token) FROM idemkit_records
WHERE effective_key = 'claimed';
ROLLBACK;
\set VERBOSITY default
SELECT result FROM idemkit_claim('absent');
