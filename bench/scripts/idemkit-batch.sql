-- Claim and complete :size keys: two calls, two commits.
@new-key@
SELECT array_agg(effective_key) AS keys, array_agg(our_claim_token) AS tokens
  FROM idemkit_claim_many(ARRAY(SELECT :a || (:b::bigint + i) FROM generate_series(1, :size) AS i),
                          array_fill(:fingerprint::text, ARRAY[:size::integer]),
                          records => @records@) \gset
SELECT count(*)
  FROM idemkit_complete_many(:keys, :tokens,
                             array_fill(200, ARRAY[:size::integer]),
                             array_fill(:headers::jsonb, ARRAY[:size::integer]),
                             array_fill(:body::bytea, ARRAY[:size::integer]),
                             records => @records@);
