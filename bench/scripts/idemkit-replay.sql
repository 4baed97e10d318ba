-- A duplicate of a completed key: the stored columns by name.
@stored-key@
SELECT effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at, lease_until,
       completed_at, response_status, response_headers, response_body, attempts
  FROM idemkit_claim(:a || :b, :fingerprint, records => @records@);
