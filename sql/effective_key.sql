--
-- idemkit_effective_key: hexadecimal SHA-256 over, for each component, its
-- length as 4 bytes big-endian and its UTF-8 bytes.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idemkit;
RESET client_min_messages;
TRUNCATE idemkit_records;

-- Digests of the Python package's compose_key, made with hashlib.
SELECT what, idemkit_effective_key(VARIADIC components) = digest AS same
FROM (VALUES
    ('three', ARRAY['tenant', 'orders', 'key'],
     '8bd2866243e2a93a064b0516f0183dd0d7fe6f30b618877843aa22210f6b2e54'),
    ('empty', ARRAY[''], 'df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119'),
    ('one', ARRAY['a'], '72ff6b02949dad95006c343e3db3150090d3afb49f6bbdb92fdc17607997a85c'),
    ('ab, c', ARRAY['ab', 'c'], 'f2939f903016e5bb29b1e4a61cdbd376220ca03a24180b39995f2d50f2e0a647'),
    ('a, bc', ARRAY['a', 'bc'], 'b534ce16ac9c8b36823f39a395ce8e0e3c7ad9605b82b5444f18cadacd217a5d'),
    ('abc', ARRAY['abc'], 'd04b72a650ce0f8ce4963330a53ee2832733d2baeffff3c1d8e256cca096d120'),
    ('empty first', ARRAY['', 'a'],
     '3b196fd4907bedf51c3090e9835f2f7cb61e7ee1b2299ea3b8fed9b4183a822a'),
    ('empty last', ARRAY['a', ''],
     '6a9f797717b7913cc94af9ede3b2c995b077fa50a768bb7c2cc4b75ed4011695'),
    ('beyond ASCII', ARRAY[U&'\00e9', U&'\65e5\672c\8a9e', U&'\+01f600'],
     'e58bae9f9af53d7b64a199880690103c3a79bda1e886f8311ece91f9ecf7a8fd'),
    ('special', ARRAY[E'a\nb', E'c\\d', 'e''f', 'g%sh'],
     '69b47bf395f23eafb344469ac69709828fec37ece2db4878fe18c0b038586823'),
    ('a million bytes', ARRAY[repeat('x', 1000000)],
     '1a242e2760e4d78624fc0f0ecf730b99adc60b2d1984976722aa2fa9b643723b'),
    ('1000 components', (SELECT array_agg(i::text ORDER BY i) FROM generate_series(1, 1000) AS i),
     '652806f714cc7cbcdb24f9c463fe4c6921d628e6ad44b3a054611da0754fb84d')
) AS v (what, components, digest);

-- The same, computed here.
SELECT idemkit_effective_key('tenant', 'orders', 'key')
       = encode(sha256('\x00000006'::bytea || 'tenant' || '\x00000006' || 'orders'
                       || '\x00000003' || 'key'), 'hex') AS same;

-- The shape of the array does not matter, its elements in order do.
SELECT idemkit_effective_key(VARIADIC '[5:6]={a,b}'::text[]) = idemkit_effective_key('a', 'b')
       AS other_bounds,
       idemkit_effective_key(VARIADIC '{{a,b},{c,d}}'::text[])
       = idemkit_effective_key('a', 'b', 'c', 'd') AS two_dimensions;

-- It is a key.
SELECT result, length(effective_key) FROM idemkit_claim(idemkit_effective_key('t', 'o', 'k'));
SELECT result FROM idemkit_claim(idemkit_effective_key('t', 'o', 'k'));

-- Usable in an index: immutable.
CREATE TABLE orders (tenant text, number text);
CREATE INDEX ON orders (idemkit_effective_key(tenant, number));
DROP TABLE orders;

-- No component may be NULL, and there must be one.
\set VERBOSITY sqlstate
SELECT idemkit_effective_key(NULL);
SELECT idemkit_effective_key('a', NULL, 'b');
SELECT idemkit_effective_key(VARIADIC NULL);
SELECT idemkit_effective_key(VARIADIC '{}');
SELECT idemkit_effective_key();
\set VERBOSITY default
