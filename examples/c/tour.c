/*
 * tour.c - what idemkit does, step by step, with libidemkit
 *
 *	   tour
 *
 * Connects by libpq's environment (PGHOST, PGDATABASE, ...). Exits non-zero where a
 * promise does not hold.
 *
 *	   cc tour.c $(pkg-config --cflags --libs libidemkit)
 */
#define _POSIX_C_SOURCE 200809L

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <idemkit.h>

static IdemkitError *error;

static void
check(bool holds, const char *promise)
{
	if (!holds)
	{
		fprintf(stderr, "broken promise: %s\n", promise);
		exit(EXIT_FAILURE);
	}
}

/*
 * For calls whose failure leaves nothing to do here.
 */
static void
must(IdemkitStatus status)
{
	if (status != IDEMKIT_OK)
	{
		fprintf(stderr, "tour: %s\n", idemkit_error_message(error));
		exit(EXIT_FAILURE);
	}
}

/*
 * Run SQL that is no call of the library; returns its rows, for PQclear().
 */
static PGresult *
sql(PGconn *conn, const char *statement, int count, const char *const *values)
{
	PGresult	  *result = PQexecParams(conn, statement, count, NULL, values, NULL, NULL, 0);
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
	{
		fprintf(stderr, "tour: %s", PQerrorMessage(conn));
		exit(EXIT_FAILURE);
	}
	return result;
}

static IdemkitClaim *
claim(PGconn *conn, const char *key, const char *fingerprint)
{
	IdemkitClaim *answer;

	/* version 1 of the fingerprint, a lease of 60 seconds, the extension's own table */
	must(idemkit_claim(conn, key, fingerprint, 1, 60.0, true, NULL, &answer, error));
	return answer;
}

/*
 * Store text as the result of a claim, kept for a day; false if it is not held.
 */
static bool
complete(PGconn *conn, const char *key, const char *token, int32_t status, const char *headers,
		 const char *text)
{
	bool completed;

	must(idemkit_complete(conn, key, token, &status, headers, text, strlen(text), 86400.0, NULL,
						  &completed, error));
	return completed;
}

static void
claim_and_complete(PGconn *conn, const char *key)
{
	const char	 *headers = "{\"content-type\": \"text/plain\"}";
	IdemkitClaim *ours = claim(conn, key, "49.90");
	const char	 *token = idemkit_claim_our_token(ours);

	check(idemkit_claim_verdict(ours) == IDEMKIT_NEW_CLAIMED, "a new key is won");
	puts("claim:       won, so the card is charged");
	check(complete(conn, key, token, 201, headers, "receipt 17"), "the owner completes its claim");
	check(!complete(conn, key, token, 500, NULL, "late"), "a claim is completed once");
	puts("complete:    status, headers and body are stored, once");
	idemkit_claim_free(ours);
}

static void
replay(PGconn *conn, const char *key)
{
	IdemkitClaim		*again = claim(conn, key, "49.90");
	IdemkitClaim		*other = claim(conn, key, "99.90");
	const IdemkitRecord *record = idemkit_claim_record(again);
	int32_t				 status = 0;

	check(idemkit_claim_verdict(again) == IDEMKIT_ALREADY_COMPLETED &&
			  idemkit_claim_our_token(again) == NULL,
		  "a duplicate does no work");
	check(idemkit_record_response_status(record, &status), "the status is replayed");
	check(strcmp(idemkit_record_response_headers(record), "{\"content-type\": \"text/plain\"}") ==
			  0,
		  "headers are replayed");
	printf("replay:      %d %s\n", (int) status,
		   (const char *) idemkit_record_response_body(record, NULL));
	check(!idemkit_claim_fingerprint_matches(other), "a key used for something else is noticed");
	puts("replay:      the same key with another amount is noticed");
	idemkit_claim_free(again);
	idemkit_claim_free(other);
}

static void
wait_ended(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record, const IdemkitError *why)
{
	int32_t status = 0;
	size_t	length = 1;

	(void) why;
	check(outcome == IDEMKIT_OUTCOME_COMPLETED, "a wait ends with the result");
	check(idemkit_record_response_status(record, &status) && status == 204 &&
			  idemkit_record_response_body(record, &length) != NULL && length == 0,
		  "an empty body is not NULL");
	*(bool *) arg = true;
}

/*
 * The waiter is LISTEN, subscribe and reading again in one, for any number of keys
 * on one connection of its own. wait_poll.c has nothing else.
 */
static void
wait_for_another(PGconn *owner, PGconn *conn, const char *key)
{
	IdemkitWaiter *waiter;
	IdemkitClaim  *theirs = claim(owner, key, "");
	IdemkitClaim  *claimed = claim(conn, key, "");
	bool		   ended = false;
	bool		   working = true;

	check(idemkit_claim_verdict(claimed) == IDEMKIT_ALREADY_CLAIMED, "one owner at a time");
	puts("wait:        another is at work");
	must(idemkit_waiter_create("", NULL, &waiter, error));
	must(idemkit_waiter_submit(waiter, key, 10.0, wait_ended, &ended, NULL, error));
	while (!ended)
	{
		struct pollfd ready = {.fd = idemkit_waiter_socket(waiter)};
		int			  events = idemkit_waiter_events(waiter);

		if (events & IDEMKIT_EVENT_READ)
			ready.events |= POLLIN;
		if (events & IDEMKIT_EVENT_WRITE)
			ready.events |= POLLOUT;
		poll(&ready, 1, idemkit_waiter_timeout_ms(waiter));
		must(idemkit_waiter_process(waiter));

		/* the other's work is done once we listen */
		if (working && idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_LISTENING) == 1)
		{
			complete(owner, key, idemkit_claim_our_token(theirs), 204, NULL, "");
			working = false;
		}
	}
	puts("wait:        woken, 204 with an empty body");
	idemkit_waiter_destroy(waiter);
	idemkit_claim_free(theirs);
	idemkit_claim_free(claimed);
}

/*
 * Claim, work and result in one transaction; the duplicate is answered.
 */
static void
pay(PGconn *conn, const char *key, const char *cents, const char *end)
{
	IdemkitClaim *ours;
	const char	 *body;

	PQclear(sql(conn, "BEGIN", 0, NULL));
	ours = claim(conn, key, cents);
	if (idemkit_claim_our_token(ours) != NULL)
	{
		PQclear(
			sql(conn, "INSERT INTO tour_charge VALUES ($1, $2)", 2, (const char *[]){key, cents}));
		check(complete(conn, key, idemkit_claim_our_token(ours), 201, NULL, "charged"),
			  "the owner completes its claim");
	}
	else
	{
		body = idemkit_record_response_body(idemkit_claim_record(ours), NULL);
		check(body != NULL && strcmp(body, "charged") == 0, "both get the answer");
	}
	PQclear(sql(conn, end, 0, NULL));
	idemkit_claim_free(ours);
}

static void
transactional(PGconn *conn, const char *key)
{
	const IdemkitRecord *record;
	PGresult			*result;

	PQclear(sql(conn, "SET client_min_messages = warning", 0, NULL));
	PQclear(sql(conn, "CREATE TABLE IF NOT EXISTS tour_charge (key text, cents integer)", 0, NULL));
	pay(conn, key, "4990", "ROLLBACK");
	must(idemkit_get(conn, key, NULL, &record, error));
	check(record == NULL, "a claim is rolled back with its work");
	puts("transaction: rolled back, and the claim with it");

	pay(conn, key, "4990", "COMMIT");
	pay(conn, key, "4990", "COMMIT");
	result = sql(conn, "SELECT count(*) FROM tour_charge WHERE key = $1", 1, &key);
	check(strcmp(PQgetvalue(result, 0, 0), "1") == 0, "one charge");
	PQclear(result);
	puts("transaction: committed, one row for two requests");
}

/*
 * Batches have no call of their own: they are SQL, with as many keys as it takes.
 */
static void
batch(PGconn *conn, const char *const *keys)
{
	PGresult   *claims = sql(conn, "SELECT * FROM idemkit_claim_many(ARRAY[$1, $2, $3])", 3, keys);
	int			token = PQfnumber(claims, "our_claim_token");
	const char *ours[4] = {keys[0], keys[2]};
	PGresult   *done;

	check(!PQgetisnull(claims, 0, token) && PQgetisnull(claims, 1, token) &&
			  !PQgetisnull(claims, 2, token),
		  "two of them are new");
	ours[2] = PQgetvalue(claims, 0, token);
	ours[3] = PQgetvalue(claims, 2, token);
	PQclear(sql(conn,
				"SELECT * FROM idemkit_complete_many(ARRAY[$1, $2], ARRAY[$3, $4], ARRAY[200, 404],"
				" ARRAY['{\"n\": 1}', NULL]::jsonb[], ARRAY['\\x00ff', NULL]::bytea[])",
				4, ours));
	done = sql(conn,
			   "SELECT array_agg(response_body) = ARRAY['\\x00ff', NULL]::bytea[]"
			   " FROM idemkit_subscribe(ARRAY[$1, $2])",
			   2, ours);
	check(strcmp(PQgetvalue(done, 0, 0), "t") == 0, "bodies come back as they were");
	PQclear(done);
	PQclear(claims);
	puts("batch:       two of three were new, all three have results");
}

int
main(void)
{
	PGconn	   *conn = PQconnectdb("");
	PGconn	   *owner = PQconnectdb("");
	const char *keys[5];
	char		texts[5][64];

	error = idemkit_error_create();
	check(error != NULL, "there is memory");
	for (int i = 0; i < 5; i++)
	{
		snprintf(texts[i], sizeof(texts[i]), "tour %lld %d order %d", (long long) time(NULL),
				 PQbackendPID(conn), i + 1);
		keys[i] = texts[i];
	}
	claim_and_complete(conn, keys[0]);
	replay(conn, keys[0]);
	wait_for_another(owner, conn, keys[1]);
	transactional(conn, keys[2]);
	batch(conn, (const char *const[]){keys[3], keys[0], keys[4]});
	PQfinish(owner);
	PQfinish(conn);
	idemkit_error_free(error);
	return EXIT_SUCCESS;
}
