--
-- fingerprint_matches compares fingerprint and version, byte for byte, with
-- the stored row; a claim that wins stores its own.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

SELECT result, fingerprint_matches FROM idemkit_claim('k', 'abc', 1);
SELECT asked, version, result, fingerprint_matches, c.fingerprint AS stored
FROM (VALUES ('abc', 1), ('abc', 2), ('ABC', 1), ('ab', 1), ('abcd', 1), ('abc ', 1), ('', 1),
             ('', 0), ('abc', -1)) AS v (asked, version),
     idemkit_claim('k', asked, version) AS c;

-- A mismatch changes nothing, claimed or completed.
SELECT fingerprint, fingerprint_version, state FROM idemkit_records;
SELECT idemkit_complete('k', claim_token, 200) FROM idemkit_records;
SELECT result, fingerprint_matches, response_status FROM idemkit_claim('k', 'abc', 1);
SELECT result, fingerprint_matches, response_status FROM idemkit_claim('k', 'xyz', 1);

-- A lapsed claim is compared too where it is only reported ...
SELECT result FROM idemkit_claim('lapsed', 'abc');
UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 second'
WHERE effective_key = 'lapsed';
SELECT result, fingerprint_matches FROM idemkit_claim('lapsed', 'abc', reclaim => false);
SELECT result, fingerprint_matches, fingerprint
FROM idemkit_claim('lapsed', 'xyz', reclaim => false);

-- ... and where it is taken over the winner's is stored.
SELECT result, fingerprint_matches, fingerprint, fingerprint_version
FROM idemkit_claim('lapsed', 'xyz', 2);
SELECT fingerprint, fingerprint_version FROM idemkit_records WHERE effective_key = 'lapsed';
SELECT result, fingerprint_matches FROM idemkit_claim('lapsed', 'abc');

-- Its length is the caller's affair.
SELECT result, fingerprint_matches, length(fingerprint)
FROM idemkit_claim('long', repeat('0123456789abcdef', 65536));
SELECT result, fingerprint_matches
FROM idemkit_claim('long', repeat('0123456789abcdef', 65536));
SELECT result, fingerprint_matches
FROM idemkit_claim('long', repeat('0123456789abcdef', 65535) || '0123456789abcdeF');
