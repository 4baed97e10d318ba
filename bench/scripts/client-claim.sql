-- The first statement of the client-side sequence: for a new key it is all.
@new-key@
INSERT INTO @table@ (effective_key, state, fingerprint, fingerprint_version, claim_token,
                     claimed_at, lease_until)
VALUES (:a || :b, 'CLAIMED', :fingerprint, 1, :token, clock_timestamp(), clock_timestamp() + interval '30 s')
ON CONFLICT (effective_key) DO NOTHING RETURNING *;
