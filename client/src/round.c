/*
 * round.c - judging what was read
 *
 * Keys that come back from a query are judged by their record, keys that do not
 * are absent. Rows are taken as they come in, so that memory holds one of them at a
 * time and the first wait does not wait for the last row.
 *
 * Errors come in three kinds. Those that pass (another server state, a conflict,
 * a lack of resources) leave the keys to be read again later. One that a single
 * key may have caused halves the batch, until the key stands alone and its waits
 * end with the error. Any other ends all waits of the batch.
 */
#include <string.h>

#include "record.h"
#include "waiter.h"

/* A length of time after which a lease's end is not worth an alarm. */
#define FAR_AWAY_SECONDS 1e9

/*
 * End all waits of the batch under way with an error.
 */
void
idemkit_round_abandon(IdemkitWaiter *waiter, const IdemkitError *error)
{
	IdemkitLink *reading = &waiter->waits.reading;

	while (!idemkit_list_empty(reading))
		idemkit_waits_end_key(&waiter->waits, IDEMKIT_MEMBER(IdemkitKey, link, reading->next));
	idemkit_call_back(waiter, IDEMKIT_OUTCOME_ERROR, NULL, error);
}

/*
 * What does a record mean for those who wait for it? Returns 0 where they are to
 * wait on. It is the judgement a claim would make: what a claim could win is not
 * worth waiting for.
 */
static int
judge(const IdemkitRecord *record)
{
	bool	live = idemkit_record_remaining_seconds(record) > 0;
	int64_t completed_at;

	switch (idemkit_record_state(record))
	{
		case IDEMKIT_STATE_CLAIMED:
			return live ? 0 : IDEMKIT_OUTCOME_LAPSED;
		case IDEMKIT_STATE_COMPLETED:
			return live && idemkit_record_completed_at(record, &completed_at)
					   ? IDEMKIT_OUTCOME_COMPLETED
					   : IDEMKIT_OUTCOME_ABSENT;
		default:
			return IDEMKIT_OUTCOME_ABSENT;
	}
}

/*
 * Let a key wait until its next reading.
 */
static void
schedule_key(IdemkitWaiter *waiter, IdemkitKey *key, double lease_seconds)
{
	int64_t now = idemkit_clock();
	int64_t lease_end = IDEMKIT_NEVER;

	if (lease_seconds < FAR_AWAY_SECONDS)
		lease_end = now + idemkit_seconds_to_us(lease_seconds);
	key->interval = key->interval == 0 ? IDEMKIT_FIRST_INTERVAL_US : key->interval * 2;
	if (key->interval > IDEMKIT_LAST_INTERVAL_US)
		key->interval = IDEMKIT_LAST_INTERVAL_US;
	idemkit_key_schedule(&waiter->waits, key, now + key->interval, lease_end);
}

/*
 * One row: find its key, and end its waits or let them wait on.
 */
static void
take_row(IdemkitWaiter *waiter, const PGresult *result)
{
	IdemkitKey	  *key = NULL;
	IdemkitRecord *record = NULL;
	IdemkitStatus  status;
	int			   outcome;

	if (PQnfields(result) == IDEMKIT_RECORD_NCOLUMNS)
		key = idemkit_waits_find_key(&waiter->waits, PQgetvalue(result, 0, 0),
									 (size_t) PQgetlength(result, 0, 0));
	/* nobody waits any more, or has begun to after this query was sent */
	if (key == NULL || key->place != IDEMKIT_READING)
		return;
	status = idemkit_record_fill(&record, result, 0, 0, &waiter->round_error);
	if (status != IDEMKIT_OK)
	{
		idemkit_waits_end_key(&waiter->waits, key);
		idemkit_call_back(waiter, IDEMKIT_OUTCOME_ERROR, NULL, &waiter->round_error);
		return;
	}
	outcome = judge(record);
	if (outcome != 0)
	{
		idemkit_waits_end_key(&waiter->waits, key);
		idemkit_call_back(waiter, (IdemkitOutcome) outcome,
						  outcome == IDEMKIT_OUTCOME_ABSENT ? NULL : record, NULL);
		idemkit_record_free(record);
		return;
	}
	idemkit_record_free(key->record);
	key->record = record;
	/* notified, and claimed nevertheless: a new claim, which has to be marked */
	if (waiter->notified_only && !waiter->may_only_read)
		idemkit_key_queue(&waiter->waits, key);
	else
		schedule_key(waiter, key, idemkit_record_remaining_seconds(record));
}

void
idemkit_round_result(IdemkitWaiter *waiter, const PGresult *result)
{
	switch (PQresultStatus(result))
	{
		case PGRES_SINGLE_TUPLE:
			take_row(waiter, result);
			break;
		case PGRES_TUPLES_OK:
		case PGRES_COMMAND_OK:
			break;
		default:
			waiter->round_failed = true;
			(void) idemkit_error_set_result(&waiter->round_error, waiter->conn, result);
			break;
	}
}

/*
 * Is it an error that goes away by itself?
 */
static bool
is_passing(const char *sqlstate)
{
	static const char *const classes[] = {"08", "40", "53", "57"};

	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
		if (strncmp(sqlstate, classes[i], 2) == 0)
			return true;
	return false;
}

/*
 * Is it an error of marking, which reading alone would not have? Prepares for
 * reading alone.
 */
static bool
can_read_plainly(IdemkitWaiter *waiter, const char *sqlstate)
{
	if (waiter->statement != IDEMKIT_MARK_AND_READ)
		return false;
	if (strcmp(sqlstate, "55P03") == 0) /* lock_not_available */
		waiter->read_plainly = true;
	else if (strcmp(sqlstate, "42501") == 0) /* insufficient_privilege */
		waiter->may_only_read = true;
	else
		return false;
	return true;
}

/*
 * The query for the batch failed.
 */
static void
fail_batch(IdemkitWaiter *waiter)
{
	IdemkitError error = waiter->round_error;
	IdemkitLink *reading = &waiter->waits.reading;

	if (waiter->prepared[waiter->statement] == IDEMKIT_PREPARED &&
		(strcmp(error.sqlstate, "26000") == 0 || strcmp(error.sqlstate, "0A000") == 0))
	{
		/* the prepared statement is gone or outdated */
		waiter->prepared[waiter->statement] = IDEMKIT_UNPREPARABLE;
		idemkit_waits_requeue(&waiter->waits);
	}
	else if (error.status != IDEMKIT_ERROR_SERVER)
	{
		/* libpq's own trouble: begin anew */
		waiter->trouble = error;
		idemkit_connection_lose(waiter);
	}
	else if (can_read_plainly(waiter, error.sqlstate))
		idemkit_waits_requeue(&waiter->waits);
	else if (is_passing(error.sqlstate))
	{
		waiter->trouble = error;
		/* a statement_timeout that the batch is too large for */
		if (strcmp(error.sqlstate, "57014") == 0 && waiter->batch > 1)
			waiter->batch_limit = waiter->batch / 2;
		while (!idemkit_list_empty(reading))
			schedule_key(waiter, IDEMKIT_MEMBER(IdemkitKey, link, reading->next), FAR_AWAY_SECONDS);
	}
	else if (strncmp(error.sqlstate, "22", 2) == 0 && waiter->batch > 1)
	{
		waiter->batch_limit = waiter->batch / 2;
		idemkit_waits_requeue(&waiter->waits);
	}
	else
		idemkit_round_abandon(waiter, &error);
}

/*
 * The query for the batch, or the statement's preparation, has been answered.
 */
void
idemkit_round_done(IdemkitWaiter *waiter, IdemkitQuery query)
{
	IdemkitWaits *waits = &waiter->waits;

	if (PQstatus(waiter->conn) == CONNECTION_BAD)
		return;
	if (query == IDEMKIT_QUERY_PREPARE)
	{
		waiter->prepared[waiter->preparing] =
			waiter->round_failed ? IDEMKIT_UNPREPARABLE : IDEMKIT_PREPARED;
		return;
	}
	if (waiter->round_failed)
	{
		fail_batch(waiter);
		return;
	}
	waiter->has_read = true;
	waiter->backoff = 0;
	idemkit_error_clear(&waiter->trouble);
	if (waiter->batch_limit < IDEMKIT_MAX_BATCH)
		waiter->batch_limit *= 2;
	while (!idemkit_list_empty(&waits->reading))
		idemkit_waits_end_key(waits, IDEMKIT_MEMBER(IdemkitKey, link, waits->reading.next));
	idemkit_call_back(waiter, IDEMKIT_OUTCOME_ABSENT, NULL, NULL);
}

int64_t
idemkit_round_due(const IdemkitWaiter *waiter, int64_t now)
{
	const IdemkitHeapNode *first = idemkit_heap_first(&waiter->waits.schedule);

	if (waiter->query != IDEMKIT_QUERY_NONE)
		return IDEMKIT_NEVER;
	if (idemkit_read_wants_prepare(waiter) || !idemkit_list_empty(&waiter->waits.queued) ||
		!idemkit_list_empty(&waiter->waits.notified))
		return now;
	if (first == NULL)
		return IDEMKIT_NEVER;
	return first->when > waiter->next_round ? first->when : waiter->next_round;
}
