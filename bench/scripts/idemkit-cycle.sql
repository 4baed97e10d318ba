-- Claim and complete: two calls, two commits.
@new-key@
SELECT our_claim_token FROM idemkit_claim(:a || :b, :fingerprint, records => @records@) \gset
SELECT idemkit_complete(:a || :b, :our_claim_token, 200, :headers, :body, records => @records@);
