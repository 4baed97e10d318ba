/* idemkit--1.0.sql */

-- complain if the script is sourced in psql
\echo Use "CREATE EXTENSION idemkit" to load this file. \quit

--
-- Types: flat, so that every driver reads plain columns
--

CREATE TYPE idemkit_record AS (
    effective_key pg_catalog.text,
    state pg_catalog.text,
    fingerprint pg_catalog.text,
    fingerprint_version pg_catalog.int4,
    claim_token pg_catalog.text,
    claimed_at pg_catalog.timestamptz,
    lease_until pg_catalog.timestamptz,
    completed_at pg_catalog.timestamptz,
    response_status pg_catalog.int4,
    response_headers pg_catalog.jsonb,
    response_body pg_catalog.bytea,
    attempts pg_catalog.int4,
    remaining_seconds pg_catalog.float8,
    fence pg_catalog.int8
);
COMMENT ON TYPE idemkit_record IS
'one record: the stored columns, the seconds left of its lease or retention, and its fence';

CREATE TYPE idemkit_claim_result AS (
    result pg_catalog.text,
    our_claim_token pg_catalog.text,
    recovered_from_corrupt pg_catalog.bool,
    fingerprint_matches pg_catalog.bool,
    effective_key pg_catalog.text,
    state pg_catalog.text,
    fingerprint pg_catalog.text,
    fingerprint_version pg_catalog.int4,
    claim_token pg_catalog.text,
    claimed_at pg_catalog.timestamptz,
    lease_until pg_catalog.timestamptz,
    completed_at pg_catalog.timestamptz,
    response_status pg_catalog.int4,
    response_headers pg_catalog.jsonb,
    response_body pg_catalog.bytea,
    attempts pg_catalog.int4,
    remaining_seconds pg_catalog.float8,
    fence pg_catalog.int8
);
COMMENT ON TYPE idemkit_claim_result IS
'the verdict on a claim, the token if it won, and the record';

CREATE TYPE idemkit_wait_result AS (
    outcome pg_catalog.text,
    effective_key pg_catalog.text,
    state pg_catalog.text,
    fingerprint pg_catalog.text,
    fingerprint_version pg_catalog.int4,
    claim_token pg_catalog.text,
    claimed_at pg_catalog.timestamptz,
    lease_until pg_catalog.timestamptz,
    completed_at pg_catalog.timestamptz,
    response_status pg_catalog.int4,
    response_headers pg_catalog.jsonb,
    response_body pg_catalog.bytea,
    attempts pg_catalog.int4,
    remaining_seconds pg_catalog.float8,
    fence pg_catalog.int8
);
COMMENT ON TYPE idemkit_wait_result IS
'how a wait ended, and the record unless it is absent';

CREATE TYPE idemkit_stats AS (
    live_claims pg_catalog.int8,
    lapsed_claims pg_catalog.int8,
    live_completions pg_catalog.int8,
    expired_completions pg_catalog.int8,
    oldest_live_claim pg_catalog.timestamptz,
    oldest_lapsed_claim pg_catalog.timestamptz,
    oldest_live_completion pg_catalog.timestamptz,
    oldest_expired_completion pg_catalog.timestamptz,
    highest_attempts pg_catalog.int4,
    table_bytes pg_catalog.int8,
    index_bytes pg_catalog.int8,
    toast_bytes pg_catalog.int8,
    dead_tuples pg_catalog.int8,
    notification_queue_usage pg_catalog.float8,
    sampled_fraction pg_catalog.float8
);
COMMENT ON TYPE idemkit_stats IS
'counts, ages and sizes of a records table; counts are estimates if sampled_fraction is below 1';

--
-- Claiming and settling one key
--

CREATE FUNCTION idemkit_claim(
    effective_key pg_catalog.text,
    fingerprint pg_catalog.text DEFAULT '',
    fingerprint_version pg_catalog.int4 DEFAULT 1,
    lease_ttl_seconds pg_catalog.float8 DEFAULT 30,
    reclaim pg_catalog.bool DEFAULT true,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS idemkit_claim_result
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_claim(text, text, integer, double precision, boolean, regclass) IS
'claim a key, or learn who holds it or what its result is';

CREATE FUNCTION idemkit_complete(
    effective_key pg_catalog.text,
    claim_token pg_catalog.text,
    response_status pg_catalog.int4 DEFAULT NULL,
    response_headers pg_catalog.jsonb DEFAULT NULL,
    response_body pg_catalog.bytea DEFAULT NULL,
    expires_after_seconds pg_catalog.float8 DEFAULT 86400,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_complete(text, text, integer, jsonb, bytea, double precision, regclass) IS
'store the result of a claim; false if the claim is not held with this token';

CREATE FUNCTION idemkit_release(
    effective_key pg_catalog.text,
    claim_token pg_catalog.text,
    keep_attempts pg_catalog.bool DEFAULT false,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_release(text, text, boolean, regclass) IS
'give a claim up; false if it is not held with this token';

CREATE FUNCTION idemkit_renew(
    effective_key pg_catalog.text,
    claim_token pg_catalog.text,
    lease_ttl_seconds pg_catalog.float8 DEFAULT 30,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_renew(text, text, double precision, regclass) IS
'start the lease of a claim anew; false if it is not held with this token';

CREATE FUNCTION idemkit_guard(
    effective_key pg_catalog.text,
    claim_token pg_catalog.text,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_guard(text, text, regclass) IS
'keep a claim from being taken over until the transaction ends; raises IK001 if it is lost';

CREATE FUNCTION idemkit_get(
    effective_key pg_catalog.text,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS SETOF idemkit_record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION idemkit_get(text, regclass) IS
'the stored record of a key, expired or not';

--
-- Waiting
--

CREATE FUNCTION idemkit_subscribe(
    effective_keys pg_catalog.text[],
    records pg_catalog.regclass DEFAULT NULL)
RETURNS SETOF idemkit_record
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_subscribe(text[], regclass) IS
'mark live claims as awaited, and return the records as they stand';

CREATE FUNCTION idemkit_wait(
    effective_key pg_catalog.text,
    timeout_seconds pg_catalog.float8 DEFAULT 30,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS idemkit_wait_result
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_wait(text, double precision, regclass) IS
'block until the claim of a key has ended: completed, absent, lapsed or timeout';

--
-- Many keys at once
--

CREATE FUNCTION idemkit_claim_many(
    effective_keys pg_catalog.text[],
    fingerprints pg_catalog.text[] DEFAULT NULL,
    fingerprint_version pg_catalog.int4 DEFAULT 1,
    lease_ttl_seconds pg_catalog.float8 DEFAULT 30,
    reclaim pg_catalog.bool DEFAULT true,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS SETOF idemkit_claim_result
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_claim_many(text[], text[], integer, double precision, boolean, regclass) IS
'claim many keys in a fixed number of statements; one row for each, in order';

CREATE FUNCTION idemkit_complete_many(
    effective_keys pg_catalog.text[],
    claim_tokens pg_catalog.text[],
    response_statuses pg_catalog.int4[] DEFAULT NULL,
    response_headers pg_catalog.jsonb[] DEFAULT NULL,
    response_bodies pg_catalog.bytea[] DEFAULT NULL,
    expires_after_seconds pg_catalog.float8 DEFAULT 86400,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS SETOF pg_catalog.bool
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_complete_many(text[], text[], integer[], jsonb[], bytea[], double precision, regclass) IS
'store the results of many claims in one statement; one row for each, in order';

--
-- Housekeeping
--

CREATE FUNCTION idemkit_vacuum(
    expires_after_seconds pg_catalog.float8 DEFAULT NULL,
    lease_grace_seconds pg_catalog.float8 DEFAULT 60,
    max_rows pg_catalog.int8 DEFAULT NULL,
    records pg_catalog.regclass DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_vacuum(double precision, double precision, bigint, regclass) IS
'remove expired records and return how many';

CREATE PROCEDURE idemkit_sweep(
    INOUT removed pg_catalog.int8 DEFAULT 0,
    batch_rows pg_catalog.int4 DEFAULT 5000,
    lease_grace_seconds pg_catalog.float8 DEFAULT 60,
    records pg_catalog.regclass DEFAULT NULL)
AS 'MODULE_PATHNAME' LANGUAGE C;
COMMENT ON PROCEDURE idemkit_sweep(bigint, integer, double precision, regclass) IS
'remove expired records batch by batch, committing after each';

CREATE FUNCTION idemkit_stats(
    records pg_catalog.regclass DEFAULT NULL)
RETURNS idemkit_stats
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_stats(regclass) IS
'counts, ages and sizes of a records table';

CREATE FUNCTION idemkit_create_table(
    table_name pg_catalog.text,
    unlogged pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.regclass
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_create_table(text, boolean) IS
'make a records table in the current schema, or adopt one the Python package made';

CREATE FUNCTION idemkit_verify_schema(
    records pg_catalog.regclass DEFAULT NULL)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE;
COMMENT ON FUNCTION idemkit_verify_schema(regclass) IS
'raise what is wrong with a records table, with the statement that mends it';

CREATE FUNCTION idemkit_effective_key(
    VARIADIC components pg_catalog.text[])
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE CALLED ON NULL INPUT PARALLEL SAFE;
COMMENT ON FUNCTION idemkit_effective_key(text[]) IS
'one key of any number of parts: hexadecimal SHA-256 over their lengths and bytes';

--
-- The extension's own records table.  Its rows are data: pg_dump keeps them.
-- It belongs to the role that creates the extension, which need not be a
-- superuser.  The argument types are exact, so that no other function of that
-- name can be meant.
--

SELECT idemkit_create_table('idemkit_records'::pg_catalog.text, false);
ALTER TABLE idemkit_records OWNER TO @extowner@;
COMMENT ON TABLE idemkit_records IS
'idempotency records: one row per effective key; use the idemkit_ functions';
SELECT pg_catalog.pg_extension_config_dump('idemkit_records', '');
