-- A key nobody has claimed.
@new-key@
SELECT result, our_claim_token FROM idemkit_claim(:a || :b, :fingerprint, records => @records@);
