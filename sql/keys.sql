--
-- Effective keys: 1 to 1024 bytes, compared byte for byte.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- What a query that returns one value returns, or the SQLSTATE it raises.
CREATE FUNCTION pg_temp.outcome(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    value text;
BEGIN
    EXECUTE query INTO value;
    RETURN coalesce(value, 'null');
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE;
END $$;

-- Lengths count bytes, not characters.  U&'\00e9' has 2 bytes, U&'\20ac' 3,
-- U&'\+01f600' 4.
CREATE TEMPORARY TABLE keys (what text, key text);
INSERT INTO keys VALUES
    ('null', NULL),
    ('empty', ''),
    ('1 byte', 'x'),
    ('1024 bytes', repeat('x', 1024)),
    ('1025 bytes', repeat('x', 1025)),
    ('1024 bytes of 2', repeat(U&'\00e9', 512)),
    ('1026 bytes of 2', repeat(U&'\00e9', 513)),
    ('1025 bytes in 513 characters', 'x' || repeat(U&'\00e9', 512)),
    ('1023 bytes of 3', repeat(U&'\20ac', 341)),
    ('1026 bytes of 3', repeat(U&'\20ac', 342)),
    ('1024 bytes of 4', repeat(U&'\+01f600', 256)),
    ('1028 bytes of 4', repeat(U&'\+01f600', 257)),
    ('1 MB', repeat('x', 1048576));
SELECT what, octet_length(key) AS bytes,
       pg_temp.outcome(format('SELECT result FROM idemkit_claim(%L)', key)) AS claim,
       pg_temp.outcome(format('SELECT state FROM idemkit_get(%L)', key)) AS get,
       pg_temp.outcome(format($$SELECT idemkit_renew(%L, 'x')$$, key)) AS renew,
       pg_temp.outcome(format($$SELECT idemkit_complete(%L, 'x')$$, key)) AS complete,
       pg_temp.outcome(format($$SELECT idemkit_release(%L, 'x')$$, key)) AS release,
       pg_temp.outcome(format($$SELECT idemkit_guard(%L, 'x')$$, key)) AS guard
FROM keys;

-- What does not compress fits as well, in the row and in the index.
CREATE TEMPORARY TABLE noise AS
SELECT string_agg(md5(i::text), '') AS key FROM generate_series(1, 32) AS i;
SELECT octet_length(key), result FROM noise, idemkit_claim(key);
SELECT result FROM noise, idemkit_claim(key);

-- Different bytes are different keys: case, blanks, composed and decomposed
-- characters, and what looks like SQL, a format or a path.
TRUNCATE idemkit_records;
CREATE TEMPORARY TABLE different (i serial, key text);
INSERT INTO different (key) VALUES
    ('k'), ('K'), ('k '), (' k'), (E'k\t'), (E'k\n'), (E'k\r\n'), ('kk'), (E'\\k'), ('%s'), ('%L'),
    ('$1'), (''''), ('"'), (''';--'), ('NULL'), (E'\001'), (U&'\00e9'), (U&'e\0301'),
    (U&'\00df'), ('ss'), (U&'\200b'), ('k' || U&'\200b'), (U&'\0131'), ('i'), (U&'\+01f600');
SELECT count(*), count(DISTINCT key) FROM different;
SELECT result, count(*) FROM different, idemkit_claim(key) GROUP BY result;
SELECT result, count(*), bool_and(key = effective_key) AS exact
FROM different, idemkit_claim(key) GROUP BY result;
SELECT count(*) FROM different AS d JOIN idemkit_records AS r ON r.effective_key = d.key;
SELECT count(*) FROM different, idemkit_get(key) WHERE key = effective_key;
SELECT idemkit_complete, count(*)
FROM different AS d JOIN idemkit_records AS r ON r.effective_key = d.key,
     idemkit_complete(d.key, r.claim_token) GROUP BY idemkit_complete;

-- A key is ordered by its bytes whatever the database's collation.
SELECT collname FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE attrelid = 'idemkit_records'::regclass AND attname = 'effective_key';
