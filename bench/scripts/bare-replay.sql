-- The floor of a replay: the same columns.
@stored-key@
SELECT effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at, lease_until,
       completed_at, response_status, response_headers, response_body, attempts
  FROM @table@ WHERE effective_key = :a || :b;
