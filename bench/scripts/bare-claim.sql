-- The floor of a claim: one INSERT of the same columns.
@new-key@
INSERT INTO @table@ (effective_key, state, fingerprint, fingerprint_version, claim_token,
                     claimed_at, lease_until, schema_version, awaited, attempts)
VALUES (:a || :b, 'CLAIMED', :fingerprint, 1, :token, clock_timestamp(),
        clock_timestamp() + interval '30 s', 1, false, 1)
ON CONFLICT (effective_key) DO NOTHING;
