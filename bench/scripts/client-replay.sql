-- A duplicate, as a client library without server functions finds out: four round trips.
@stored-key@
INSERT INTO @table@ (effective_key, state, fingerprint, fingerprint_version, claim_token,
                     claimed_at, lease_until)
VALUES (:a || :b, 'CLAIMED', :fingerprint, 1, :token, clock_timestamp(), clock_timestamp() + interval '30 s')
ON CONFLICT (effective_key) DO NOTHING RETURNING *;
UPDATE @table@
   SET state = 'CLAIMED', fingerprint = :fingerprint, fingerprint_version = 1, claim_token = :token,
       claimed_at = clock_timestamp(), lease_until = clock_timestamp() + interval '30 s',
       completed_at = NULL, response_status = NULL, response_headers = NULL, response_body = NULL
 WHERE effective_key = :a || :b AND state = 'COMPLETED' AND lease_until < clock_timestamp() RETURNING *;
UPDATE @table@
   SET fingerprint = :fingerprint, fingerprint_version = 1, claim_token = :token,
       claimed_at = clock_timestamp(), lease_until = clock_timestamp() + interval '30 s'
 WHERE effective_key = :a || :b AND state = 'CLAIMED' AND lease_until < clock_timestamp() RETURNING *;
SELECT * FROM @table@ WHERE effective_key = :a || :b;
