-- The floor of a cycle: one INSERT, one UPDATE, two commits, the same columns.
@new-key@
INSERT INTO @table@ (effective_key, state, fingerprint, fingerprint_version, claim_token,
                     claimed_at, lease_until, schema_version, awaited, attempts)
VALUES (:a || :b, 'CLAIMED', :fingerprint, 1, :token, clock_timestamp(),
        clock_timestamp() + interval '30 s', 1, false, 1)
ON CONFLICT (effective_key) DO NOTHING;
UPDATE @table@
   SET state = 'COMPLETED', completed_at = clock_timestamp(),
       lease_until = clock_timestamp() + interval '1 day',
       response_status = 200, response_headers = :headers, response_body = :body
 WHERE effective_key = :a || :b AND claim_token = :token AND state = 'CLAIMED';
