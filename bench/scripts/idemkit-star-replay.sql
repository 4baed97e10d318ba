-- A duplicate of a completed key: everything a claim returns.
@stored-key@
SELECT * FROM idemkit_claim(:a || :b, :fingerprint, records => @records@);
