--
-- Durations: seconds as double precision, kept to the microsecond, at most
-- ten years; a lease is longer than nothing.
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

CREATE TEMPORARY TABLE durations (i serial, seconds double precision);
INSERT INTO durations (seconds) VALUES
    (NULL), ('NaN'), ('-Infinity'), ('Infinity'), (-1), (-0.000001), ('-0'), (0), (1e-300),
    (0.0000004), (0.0000006), (0.000001), (0.5), (1), (315576000), (315576000.1), (1e10), (1e300),
    (1.7976931348623157e308);

-- Leases: of a claim and of a renewal.  No duration makes a call hang.
SET statement_timeout = '60s';
SELECT result FROM idemkit_claim('renew');
SELECT seconds,
       pg_temp.outcome(format('SELECT result FROM idemkit_claim(%L, lease_ttl_seconds => %L)',
                              'claim:' || i, seconds)) AS claim,
       pg_temp.outcome(format('SELECT idemkit_renew(effective_key, claim_token, %L) FROM '
                              'idemkit_records WHERE effective_key = ''renew''', seconds)) AS renew
FROM durations ORDER BY i;

-- Durations that may be 0: retentions and vacuum's two.  A claim is made for
-- each, so that a call that succeeds has something to complete.
SELECT count(*) FROM durations, idemkit_claim('complete:' || i);
SELECT seconds,
       pg_temp.outcome(format('SELECT idemkit_complete(effective_key, claim_token, '
                              'expires_after_seconds => %L) FROM idemkit_records '
                              'WHERE effective_key = %L', seconds, 'complete:' || i)) AS complete
FROM durations ORDER BY i;
SELECT idemkit_create_table('durations_vacuum');
SELECT seconds,
       pg_temp.outcome(format('SELECT idemkit_vacuum(lease_grace_seconds => %L, records => %L)',
                              seconds, 'durations_vacuum')) AS grace,
       pg_temp.outcome(format('SELECT idemkit_vacuum(%L, records => %L)',
                              seconds, 'durations_vacuum')) AS expires_after
FROM durations ORDER BY i;
DROP TABLE durations_vacuum;

-- A refused duration changed nothing.
SELECT count(*) FROM durations AS d JOIN idemkit_records AS r
ON r.effective_key = 'claim:' || d.i WHERE d.seconds IS NULL OR d.seconds NOT BETWEEN 4e-7 AND 4e8;
SELECT state, count(*) FROM durations AS d JOIN idemkit_records AS r
ON r.effective_key = 'complete:' || d.i WHERE d.seconds IS NULL OR d.seconds NOT BETWEEN 0 AND 4e8
GROUP BY state;

-- Kept to the microsecond, rounded to the nearest.
SELECT seconds, lease_until - claimed_at AS lease
FROM (VALUES (0.0000006), (1.0000004), (1.0000006), (0.123456789), (315576000)) AS v (seconds),
     idemkit_claim('exact:' || seconds, lease_ttl_seconds => seconds);
SELECT count(*) FROM generate_series(1, 1) AS i, idemkit_claim('retention');
SELECT idemkit_complete('retention', claim_token, expires_after_seconds => 86399.9999996)
FROM idemkit_records WHERE effective_key = 'retention';
SELECT lease_until - completed_at AS retention FROM idemkit_get('retention');
