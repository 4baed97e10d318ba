-- The life of keys that come again: of those that can be won, nine in ten are completed
-- and kept for a short time, one in twenty is released and one in twenty abandoned.
@stored-key@
\set fate random(1, 20)
SELECT (our_claim_token IS NOT NULL)::integer AS won, COALESCE(our_claim_token, '') AS token
  FROM idemkit_claim(:a || :b, :fingerprint, lease_ttl_seconds => :lease, records => @records@) \gset
\if :won = 1 and :fate > 2
SELECT idemkit_complete(:a || :b, :token, 200, :headers, :body, :retention, records => @records@);
\elif :won = 1 and :fate = 2
SELECT idemkit_release(:a || :b, :token, records => @records@);
\endif
