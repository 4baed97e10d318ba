-- The client-side sequence: an INSERT, then the completion and its notification in one
-- transaction. Five round trips, two commits.
@new-key@
INSERT INTO @table@ (effective_key, state, fingerprint, fingerprint_version, claim_token,
                     claimed_at, lease_until)
VALUES (:a || :b, 'CLAIMED', :fingerprint, 1, :token, clock_timestamp(), clock_timestamp() + interval '30 s')
ON CONFLICT (effective_key) DO NOTHING RETURNING *;
BEGIN;
UPDATE @table@
   SET state = 'COMPLETED', completed_at = clock_timestamp(),
       lease_until = clock_timestamp() + interval '1 day',
       response_status = 200, response_headers = :headers, response_body = :body
 WHERE effective_key = :a || :b AND claim_token = :token AND state = 'CLAIMED';
SELECT pg_notify('idemkit_completions', :a || :b);
COMMIT;
