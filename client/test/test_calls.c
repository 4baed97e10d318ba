/*
 * test_calls.c - the plain calls against a server
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

static PGconn *conn;

/* 256 bytes, every value, NUL among them */
static unsigned char all_bytes[256];

static IdemkitClaim *
claim_key(const char *key, const char *fingerprint, double lease, bool reclaim)
{
	IdemkitClaim *claim = NULL;

	is_int(idemkit_claim(conn, key, fingerprint, 1, lease, reclaim, NULL, &claim, test_error()),
		   IDEMKIT_OK, "claim of %s", key);
	if (claim == NULL)
		give_up("%s", idemkit_error_message(test_error()));
	return claim;
}

static void
test_claim_and_complete(void)
{
	const char			*key = new_key("calls \303\244\360\237\230\200 'quote' \\");
	const int32_t		 status = -7;
	IdemkitClaim		*claim = claim_key(key, "print", 30.0, true);
	const IdemkitRecord *record = idemkit_claim_record(claim);
	IdemkitClaim		*again;
	int64_t				 time;
	int32_t				 number;
	size_t				 length = 99;
	bool				 done = false;

	is_int(idemkit_claim_verdict(claim), IDEMKIT_NEW_CLAIMED, "a new key is won");
	is_int((int64_t) strlen(idemkit_claim_our_token(claim)), 32, "with a token");
	is_text(idemkit_record_claim_token(record), idemkit_claim_our_token(claim),
			"which the record has");
	is_text(idemkit_record_effective_key(record), key, "the key is exact");
	is_int(idemkit_record_state(record), IDEMKIT_STATE_CLAIMED, "state");
	is_text(idemkit_record_fingerprint(record), "print", "fingerprint");
	is_int(idemkit_record_fingerprint_version(record), 1, "its version");
	is_int(idemkit_record_attempts(record), 1, "attempts");
	ok(idemkit_record_remaining_seconds(record) > 29.0 &&
		   idemkit_record_remaining_seconds(record) <= 30.0,
	   "what remains of the lease");
	is_int(idemkit_record_lease_until(record) - idemkit_record_claimed_at(record), 30000000,
		   "the lease in microseconds");
	is_int(idemkit_record_fence(record), idemkit_record_claimed_at(record), "fence");
	ok(!idemkit_record_completed_at(record, &time), "not completed");
	ok(!idemkit_record_response_status(record, &number), "no status");
	ok(idemkit_record_response_headers(record) == NULL, "no headers");
	ok(idemkit_record_response_body(record, &length) == NULL && length == 0, "no body");
	ok(!idemkit_claim_recovered_from_corrupt(claim), "not recovered");
	ok(idemkit_claim_fingerprint_matches(claim), "its own fingerprint");

	again = claim_key(key, "other", 30.0, true);
	is_int(idemkit_claim_verdict(again), IDEMKIT_ALREADY_CLAIMED, "a duplicate does not win");
	ok(idemkit_claim_our_token(again) == NULL, "and has no token");
	ok(!idemkit_claim_fingerprint_matches(again), "another payload is seen");
	idemkit_claim_free(again);

	is_int(idemkit_complete(conn, key, idemkit_claim_our_token(claim), &status,
							"{\"a\": [1, \"\303\244\"]}", all_bytes, sizeof(all_bytes), 60.0, NULL,
							&done, test_error()),
		   IDEMKIT_OK, "complete");
	ok(done, "it was ours");
	is_int(idemkit_complete(conn, key, idemkit_claim_our_token(claim), NULL, NULL, NULL, 0, 60.0,
							NULL, &done, test_error()),
		   IDEMKIT_OK, "complete again");
	ok(!done, "it is not ours any more");
	idemkit_claim_free(claim);

	claim = claim_key(key, "print", 30.0, true);
	record = idemkit_record_ref(idemkit_claim_record(claim));
	is_int(idemkit_claim_verdict(claim), IDEMKIT_ALREADY_COMPLETED, "a duplicate gets the result");
	idemkit_claim_free(claim);
	ok(idemkit_record_response_status(record, &number) && number == -7, "status");
	is_text(idemkit_record_response_headers(record), "{\"a\": [1, \"\303\244\"]}", "headers");
	ok(idemkit_record_response_body(record, &length) != NULL && length == sizeof(all_bytes) &&
		   memcmp(idemkit_record_response_body(record, NULL), all_bytes, length) == 0,
	   "the body, byte for byte, in a record that outlives its claim");
	ok(idemkit_record_completed_at(record, &time) && time >= idemkit_record_claimed_at(record),
	   "when it was completed");
	ok(time > INT64_C(1600000000000000), "in microseconds since 1970");
	idemkit_record_free(record);
}

static void
test_bodies(void)
{
	static const size_t lengths[] = {0, 1, 3000000};
	char			   *large = calloc(1, lengths[2]);
	bool				done;

	large[lengths[2] - 1] = 'z';
	for (int i = -1; i < 3; i++)
	{
		const char			*key = new_key("body");
		const char			*token = must_claim(conn, key, 30.0);
		const void			*body = i < 0 ? NULL : large;
		size_t				 wanted = i < 0 ? 0 : lengths[i];
		const IdemkitRecord *record;
		size_t				 length;

		is_int(idemkit_complete(conn, key, token, NULL, NULL, body, wanted, 60.0, NULL, &done,
								test_error()),
			   IDEMKIT_OK, "complete with a body of %zu bytes", wanted);
		is_int(idemkit_get(conn, key, NULL, &record, test_error()), IDEMKIT_OK, "get");
		body = idemkit_record_response_body(record, &length);
		ok((body == NULL) == (i < 0), "%s", i < 0 ? "no body stays none" : "a body stays one");
		ok(length == wanted && (length == 0 || (body != NULL && memcmp(body, large, length) == 0)),
		   "of that length");
		idemkit_record_free(record);
	}
	free(large);
	is_int(idemkit_complete(conn, "k", "t", NULL, NULL, NULL, 5, 60.0, NULL, &done, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "a length without a body is refused");
}

static void
test_release_and_renew(void)
{
	const char			*key = new_key("renew");
	const char			*token = must_claim(conn, key, 1.0);
	const IdemkitRecord *record;
	IdemkitClaim		*claim;
	bool				 done = false;

	is_int(idemkit_renew(conn, key, token, 500.0, NULL, &done, test_error()), IDEMKIT_OK, "renew");
	ok(done, "the lease is ours");
	is_int(idemkit_get(conn, key, NULL, &record, test_error()), IDEMKIT_OK, "get");
	ok(idemkit_record_remaining_seconds(record) > 400.0, "and runs longer");
	idemkit_record_free(record);
	is_int(idemkit_renew(conn, key, "0123456789abcdef0123456789abcdef", 500.0, NULL, &done,
						 test_error()),
		   IDEMKIT_OK, "renew with another token");
	ok(!done, "does nothing");

	is_int(idemkit_release(conn, key, token, true, NULL, &done, test_error()), IDEMKIT_OK,
		   "release keeping the attempts");
	ok(done, "it was ours");
	claim = claim_key(key, "", 30.0, false);
	is_int(idemkit_claim_verdict(claim), IDEMKIT_LEASE_LAPSED, "reclaim false reports the lapse");
	idemkit_claim_free(claim);
	claim = claim_key(key, "", 30.0, true);
	is_int(idemkit_claim_verdict(claim), IDEMKIT_LEASE_RECLAIMED, "reclaim true wins");
	is_int(idemkit_record_attempts(idemkit_claim_record(claim)), 2, "as the second attempt");
	is_int(idemkit_release(conn, key, idemkit_claim_our_token(claim), false, NULL, &done,
						   test_error()),
		   IDEMKIT_OK, "release");
	idemkit_claim_free(claim);
	is_int(idemkit_get(conn, key, NULL, &record, test_error()), IDEMKIT_OK, "get");
	ok(record == NULL, "nothing is left");
}

static void
test_guard(void)
{
	const char *key = new_key("guard");
	const char *token = must_claim(conn, key, 30.0);
	bool		done;

	must_execute(conn, "BEGIN");
	is_int(idemkit_guard(conn, key, token, NULL, test_error()), IDEMKIT_OK, "guard of our claim");
	is_int(idemkit_complete(conn, key, token, NULL, NULL, "x", 1, 60.0, NULL, &done, test_error()),
		   IDEMKIT_OK, "complete in the same transaction");
	ok(done, "done");
	must_execute(conn, "COMMIT");
	must_execute(conn, "BEGIN");
	is_int(idemkit_guard(conn, key, token, NULL, test_error()), IDEMKIT_ERROR_CLAIM_LOST,
		   "guard of a lost claim");
	is_text(idemkit_error_sqlstate(test_error()), "IK001", "has its SQLSTATE");
	ok(strlen(idemkit_error_message(test_error())) > 0 &&
		   strstr(idemkit_error_message(test_error()), token) == NULL,
	   "and a message without the token");
	must_execute(conn, "ROLLBACK");
}

static void
expect_sqlstate(IdemkitStatus status, const char *sqlstate, const char *what)
{
	is_int(status, IDEMKIT_ERROR_SERVER, "%s is an error of the server", what);
	is_text(idemkit_error_sqlstate(test_error()), sqlstate, "with SQLSTATE %s", sqlstate);
	is_int(idemkit_error_status(test_error()), IDEMKIT_ERROR_SERVER, "which the error object has");
}

static void
test_errors(void)
{
	IdemkitClaim		*claim = (IdemkitClaim *) &claim;
	const IdemkitRecord *record;
	PGresult			*result;
	PGconn				*broken;
	char				 long_key[1100];
	bool				 done = true;

	memset(long_key, 'k', sizeof(long_key));
	long_key[sizeof(long_key) - 1] = '\0';
	expect_sqlstate(idemkit_claim(conn, long_key, "", 1, 30.0, true, NULL, &claim, test_error()),
					"22023", "too long a key");
	ok(claim == NULL, "and there is no claim");
	expect_sqlstate(idemkit_claim(conn, "k", "", 1, -1.0, true, NULL, &claim, test_error()),
					"22023", "a negative lease");
	expect_sqlstate(idemkit_get(conn, "k", "no_such_table", &record, test_error()), "42P01",
					"a missing table");
	expect_sqlstate(idemkit_get(conn, "k", "pg_class", &record, test_error()), "55000",
					"a table that is none of ours");
	ok(strlen(idemkit_error_hint(test_error())) > 0, "has a hint");
	expect_sqlstate(
		idemkit_complete(conn, "k", "t", NULL, "[1", NULL, 0, 60.0, NULL, &done, test_error()),
		"22P02", "malformed JSON");
	expect_sqlstate(idemkit_get(conn, "\377", NULL, &record, test_error()), "22021",
					"malformed UTF-8");
	is_int(idemkit_get(conn, NULL, NULL, &record, test_error()), IDEMKIT_ERROR_ARGUMENT,
		   "no key at all is our own");
	is_int(idemkit_get(NULL, "k", NULL, &record, test_error()), IDEMKIT_ERROR_ARGUMENT,
		   "so is no connection");
	is_int(idemkit_get(conn, "k", NULL, &record, test_error()), IDEMKIT_OK, "then all is well");
	is_text(idemkit_error_message(test_error()), "", "and the error is empty");
	is_int(idemkit_renew(conn, "k", NULL, 1.0, NULL, &done, NULL), IDEMKIT_ERROR_ARGUMENT,
		   "an error object may be left out");

	(void) PQsendQuery(conn, "SELECT pg_sleep(0)");
	is_int(idemkit_get(conn, "k", NULL, &record, test_error()), IDEMKIT_ERROR_BUSY,
		   "a connection in use is left alone");
	while ((result = PQgetResult(conn)) != NULL)
		PQclear(result);
	broken = must_connect();
	PQclear(PQexec(broken, "SELECT pg_terminate_backend(pg_backend_pid())"));
	is_int(idemkit_get(broken, "k", NULL, &record, test_error()), IDEMKIT_ERROR_CONNECTION,
		   "a broken connection is reported");
	PQfinish(broken);
}

static void
test_other_table(void)
{
	IdemkitClaim		*claim;
	const IdemkitRecord *record;

	must_execute(conn, "SELECT idemkit_create_table('calls_table')");
	is_int(
		idemkit_claim(conn, "k", NULL, 1, 30.0, true, "public.calls_table", &claim, test_error()),
		IDEMKIT_OK, "claim in another table");
	is_int(idemkit_claim_verdict(claim), IDEMKIT_NEW_CLAIMED, "is won");
	idemkit_claim_free(claim);
	is_int(idemkit_get(conn, "k", "calls_table", &record, test_error()), IDEMKIT_OK, "get there");
	ok(record != NULL, "finds it");
	idemkit_record_free(record);
	is_int(idemkit_get(conn, "k", NULL, &record, test_error()), IDEMKIT_OK, "get elsewhere");
	ok(record == NULL, "does not");
}

/*
 * The server ends the session instead of answering: it is not to be used again,
 * though libpq before 14 still takes it for good.
 */
static void
test_ended_session(void)
{
	PGconn		 *ended = must_connect();
	IdemkitClaim *claim = NULL;

	must_execute(conn,
				 "SELECT idemkit_create_table('ending_table'); "
				 "CREATE FUNCTION end_session() RETURNS trigger LANGUAGE plpgsql AS "
				 "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$; "
				 "CREATE TRIGGER ending BEFORE INSERT ON ending_table "
				 "FOR EACH ROW EXECUTE FUNCTION end_session()");
	is_int(idemkit_claim(ended, "k", NULL, 1, 30.0, true, "ending_table", &claim, test_error()),
		   IDEMKIT_ERROR_CONNECTION, "a session that the server ends is a broken connection");
	ok(claim == NULL, "and no claim");
	PQfinish(ended);
	must_execute(conn, "DROP TABLE ending_table; DROP FUNCTION end_session()");
}

/*
 * Settings that change how values are written change nothing here.
 */
static void
test_settings(void)
{
	const char			*key = new_key("settings");
	const IdemkitRecord *record;
	char				*expected;
	char				 query[300];

	must_execute(conn, "SET DateStyle = 'German'; SET bytea_output = 'escape'; "
					   "SET extra_float_digits = -10; SET TimeZone = 'Asia/Kolkata'");
	/* a setting that can be switched off until version 18 */
	if (PQserverVersion(conn) < 190000)
		must_execute(conn, "SET standard_conforming_strings = off");
	must_complete(conn, key, must_claim(conn, key, 30.0), "\\x41");
	is_int(idemkit_get(conn, key, NULL, &record, test_error()), IDEMKIT_OK, "get");
	is_text(idemkit_record_response_body(record, NULL), "\\x41", "the body is not reinterpreted");
	snprintf(query, sizeof(query),
			 "SELECT (extract(epoch FROM claimed_at) * 1000000)::bigint FROM idemkit_records "
			 "WHERE effective_key = '%s'",
			 key);
	expected = must_query(conn, query);
	is_int(idemkit_record_claimed_at(record), strtoll(expected, NULL, 10), "times are exact");
	free(expected);
	idemkit_record_free(record);
	must_execute(conn, "RESET ALL");
}

int
main(void)
{
	for (int i = 0; i < 256; i++)
		all_bytes[i] = (unsigned char) i;
	conn = must_connect();
	must_execute(conn, "SET client_min_messages = error");
	test_claim_and_complete();
	test_bodies();
	test_release_and_renew();
	test_guard();
	test_errors();
	test_other_table();
	test_ended_session();
	test_settings();
	PQfinish(conn);
	idemkit_error_free(test_error());
	return finish();
}
