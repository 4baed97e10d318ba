-- The floor of a batch: one INSERT and one UPDATE over :size keys, with the same
-- arrays going to the client and back.
@new-key@
WITH won AS (
    INSERT INTO @table@ (effective_key, state, fingerprint, fingerprint_version, claim_token,
                         claimed_at, lease_until, schema_version, awaited, attempts)
    SELECT :a || (:b::bigint + i), 'CLAIMED', :fingerprint::text, 1, :token::text, clock_timestamp(),
           clock_timestamp() + interval '30 s', 1, false, 1
      FROM generate_series(1, :size) AS i
    ON CONFLICT (effective_key) DO NOTHING RETURNING effective_key, claim_token)
SELECT array_agg(effective_key) AS keys, array_agg(claim_token) AS tokens FROM won \gset
UPDATE @table@ AS r
   SET state = 'COMPLETED', completed_at = clock_timestamp(),
       lease_until = clock_timestamp() + interval '1 day',
       response_status = 200, response_headers = :headers::jsonb, response_body = :body::bytea
  FROM unnest(:keys::text[], :tokens::text[]) AS k (effective_key, claim_token)
 WHERE r.effective_key = k.effective_key AND r.claim_token = k.claim_token AND r.state = 'CLAIMED';
