/*
 * test_alloc.c - every request for memory fails once
 *
 * Each scenario is run with its first request failing, then its second, and so on
 * until it asks for no more. Each time it must report the lack of memory, and give
 * back all it had.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "support.h"

static PGconn	  *conn;
static const char *body_key;

/* What a scenario came to. */
typedef enum Result
{
	WENT_WELL,
	NO_MEMORY,
	SOMETHING_ELSE
} Result;

static Result
of_status(IdemkitStatus status)
{
	if (status == IDEMKIT_OK)
		return WENT_WELL;
	return status == IDEMKIT_ERROR_MEMORY ? NO_MEMORY : SOMETHING_ELSE;
}

static Result
make_error(void)
{
	IdemkitError *error = idemkit_error_create();

	idemkit_error_free(error);
	return error != NULL ? WENT_WELL : NO_MEMORY;
}

static Result
make_waiter(void)
{
	IdemkitWaiterOptions *options = idemkit_waiter_options_create();
	IdemkitWaiter		 *waiter = NULL;
	IdemkitStatus		  status;

	if (options == NULL)
		return NO_MEMORY;
	status = idemkit_waiter_options_set_records(options, "records");
	if (status == IDEMKIT_OK)
		status = idemkit_waiter_create("host=/nowhere", options, &waiter, NULL);
	if (status != IDEMKIT_OK && waiter != NULL)
		return SOMETHING_ELSE;
	idemkit_waiter_destroy(waiter);
	idemkit_waiter_options_free(options);
	return of_status(status);
}

static Result
make_shared_waiter(void)
{
	IdemkitSharedWaiter *waiter;
	IdemkitStatus status = idemkit_shared_waiter_create("host=/nowhere", NULL, &waiter, NULL);

	idemkit_shared_waiter_destroy(waiter);
	return of_status(status);
}

static Result
claim_new(void)
{
	const char	 *key = "alloc claim";
	IdemkitClaim *claim;
	IdemkitStatus status = idemkit_claim(conn, key, "f", 1, 30.0, true, NULL, &claim, NULL);
	bool		  done = true;

	if (status == IDEMKIT_OK)
	{
		if (idemkit_claim_verdict(claim) != IDEMKIT_NEW_CLAIMED)
			return SOMETHING_ELSE;
		if (idemkit_release(conn, key, idemkit_claim_our_token(claim), false, NULL, &done, NULL) !=
			IDEMKIT_OK)
			return SOMETHING_ELSE;
		idemkit_claim_free(claim);
	}
	/* a claim that was won and lost for lack of memory would not be ours next time */
	return done ? of_status(status) : SOMETHING_ELSE;
}

static Result
claim_completed(void)
{
	IdemkitClaim *claim;
	IdemkitStatus status = idemkit_claim(conn, body_key, "f", 1, 30.0, true, NULL, &claim, NULL);

	idemkit_claim_free(claim);
	return of_status(status);
}

static Result
get_record(void)
{
	const IdemkitRecord *record;
	IdemkitStatus		 status = idemkit_get(conn, body_key, NULL, &record, NULL);

	idemkit_record_free(record);
	return of_status(status);
}

/* How many waits of a scenario ended how. */
typedef struct Count
{
	int ended;
	int no_memory;
	int else_wrong;
} Count;

static void
count_ended(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
			const IdemkitError *error)
{
	Count *count = arg;

	(void) record;
	count->ended++;
	if (outcome == IDEMKIT_OUTCOME_ERROR && idemkit_error_status(error) == IDEMKIT_ERROR_MEMORY)
		count->no_memory++;
	else if (outcome != IDEMKIT_OUTCOME_COMPLETED && outcome != IDEMKIT_OUTCOME_ABSENT &&
			 outcome != IDEMKIT_OUTCOME_LAPSED)
		count->else_wrong++;
}

/*
 * Enough waits to let every table grow, for keys in every state, ended by reading.
 */
static Result
wait_for_many(void)
{
	Count		   count = {0};
	IdemkitWaiter *waiter;
	int			   submitted = 0;
	int			   refused = 0;
	char		   key[64];

	if (idemkit_waiter_create("", NULL, &waiter, NULL) != IDEMKIT_OK)
		return NO_MEMORY;
	for (int i = 0; i < 150; i++)
	{
		IdemkitStatus status;

		snprintf(key, sizeof(key), "alloc %d", i);
		status = idemkit_waiter_submit(waiter, i == 3 ? body_key : key, 20.0, count_ended, &count,
									   NULL, NULL);
		if (status == IDEMKIT_OK)
			submitted++;
		else if (status == IDEMKIT_ERROR_MEMORY)
			refused++;
	}
	if (submitted + refused != 150 || refused > 1 ||
		!turn_until(waiter, &count.ended, submitted, 5.0 * slowness()))
		return SOMETHING_ELSE;
	idemkit_waiter_destroy(waiter);
	if (count.else_wrong > 0 || count.ended != submitted)
		return SOMETHING_ELSE;
	return refused > 0 || count.no_memory > 0 ? NO_MEMORY : WENT_WELL;
}

/*
 * A claim in flight, whose record is kept from reading to reading.
 */
static Result
wait_in_flight(void)
{
	Count		   count = {0};
	IdemkitWaiter *waiter;
	const char	  *key = "alloc flight";

	must_execute(conn, "SELECT idemkit_claim('alloc flight', lease_ttl_seconds => 0.15)");
	if (idemkit_waiter_create("", NULL, &waiter, NULL) != IDEMKIT_OK)
		return NO_MEMORY;
	if (idemkit_waiter_submit(waiter, key, 20.0, count_ended, &count, NULL, NULL) != IDEMKIT_OK)
	{
		idemkit_waiter_destroy(waiter);
		return NO_MEMORY;
	}
	if (!turn_until(waiter, &count.ended, 1, 5.0 * slowness()))
		return SOMETHING_ELSE;
	idemkit_waiter_destroy(waiter);
	if (count.else_wrong > 0)
		return SOMETHING_ELSE;
	return count.no_memory > 0 ? NO_MEMORY : WENT_WELL;
}

static Result
wait_blocking(void)
{
	IdemkitSharedWaiter *waiter;
	const IdemkitRecord *record = NULL;
	IdemkitOutcome		 outcome = IDEMKIT_OUTCOME_COMPLETED;
	IdemkitStatus		 status = idemkit_shared_waiter_create("", NULL, &waiter, NULL);

	if (status == IDEMKIT_OK)
		status = idemkit_shared_wait(waiter, body_key, 20.0, &outcome, &record, NULL);
	idemkit_record_free(record);
	idemkit_shared_waiter_destroy(waiter);
	return outcome == IDEMKIT_OUTCOME_COMPLETED ? of_status(status) : SOMETHING_ELSE;
}

static void
starve(Result (*scenario)(void), const char *name, int at_least)
{
	int	 requests = 0;
	int	 silent = 0;
	int	 wrong = 0;
	long leaked = 0;

	for (;;)
	{
		long   before = idemkit_test_alloc_live();
		Result result;

		idemkit_test_fail_alloc(requests + 1);
		result = scenario();
		leaked += idemkit_test_alloc_live() - before;
		if (!idemkit_test_alloc_failed())
		{
			idemkit_test_fail_alloc(0);
			wrong += result != WENT_WELL;
			break;
		}
		requests++;
		silent += result == WENT_WELL;
		wrong += result == SOMETHING_ELSE;
		if (requests > 5000)
			give_up("%s: does not come to an end", name);
	}
	ok(requests >= at_least, "%s: each of %d requests for memory failed once", name, requests);
	is_int(silent, 0, "%s: each time that was reported", name);
	is_int(wrong, 0, "%s: as the lack of memory and nothing else", name);
	is_int(leaked, 0, "%s: nothing is left behind", name);
}

int
main(void)
{
	static char body[100000];

	conn = must_connect();
	must_execute(conn, "SET client_min_messages = error");
	memset(body, 'b', sizeof(body) - 1);
	body_key = new_key("alloc body");
	must_complete(conn, body_key, must_claim(conn, body_key, 30.0), body);
	starve(make_error, "error object", 1);
	starve(make_waiter, "waiter", 5);
	starve(make_shared_waiter, "shared waiter", 3);
	starve(claim_new, "claim that is won", 2);
	starve(claim_completed, "claim of a result", 3);
	starve(get_record, "get", 1);
	starve(wait_for_many, "many waits", 300);
	starve(wait_in_flight, "wait for a claim in flight", 9);
	starve(wait_blocking, "blocking wait", 8);
	PQfinish(conn);
	idemkit_error_free(test_error());
	return finish();
}
