/*
 * round.c - reading keys, and judging what was read
 *
 * One query reads a batch of keys with idemkit_subscribe(), which also marks
 * their claims as awaited. Keys that come back are judged by their record, keys
 * that do not are absent. Rows are taken as they come in, so that memory holds
 * one of them at a time and the first wait does not wait for the last row.
 *
 * Marking writes to the row. Where it can not, because a transaction holds the
 * row's lock or since this role may only read, the batch is read without marks:
 * one claim that is being completed in a long transaction must not hold up all
 * other waits.
 *
 * Errors come in three kinds. Those that pass (another server state, a conflict,
 * a lack of resources) leave the keys to be read again later. One that a single
 * key may have caused halves the batch, until the key stands alone and its waits
 * end with the error. Any other ends all waits of the batch.
 */
#include <string.h>

#include "alloc.h"
#include "record.h"
#include "waiter.h"
#include "wire.h"

/*
 * Mark and read. The lock's timeout is set for this one transaction, which leaves
 * nothing behind in a connection that a pooler shares; the CASE makes sure that it
 * is set first.
 */
#define STATEMENT                                                        \
	"SELECT " IDEMKIT_RECORD_COLUMNS " FROM"                             \
	" pg_catalog.set_config('lock_timeout', '50ms', true) AS bound(ms)," \
	" LATERAL idemkit_subscribe(CASE WHEN bound.ms IS NOT NULL THEN $1 END, $2)"
#define STATEMENT_NAME "idemkit_read"
/* Only read. */
#define PLAIN_STATEMENT                                                          \
	"SELECT " IDEMKIT_RECORD_COLUMNS " FROM pg_catalog.unnest($1) AS key(text)," \
	" LATERAL idemkit_get(key.text, $2)"

/* A length of time after which a lease's end is not worth an alarm. */
#define FAR_AWAY_SECONDS 1e9

static const Oid statement_types[] = {IDEMKIT_OID_TEXT_ARRAY, IDEMKIT_OID_REGCLASS};

/*
 * Move keys from a queue to the batch, as many as it may have.
 */
static void
take_keys(IdemkitWaiter *waiter, IdemkitLink *queue)
{
	while (!idemkit_list_empty(queue) && waiter->batch < waiter->batch_limit)
	{
		idemkit_key_read(&waiter->waits, IDEMKIT_MEMBER(IdemkitKey, link, queue->next));
		waiter->batch++;
	}
}

/*
 * Choose the batch. Notified keys go alone, so that their waits do not wait for
 * a long query; but every other time only, lest the rest waits for ever.
 */
static void
take_batch(IdemkitWaiter *waiter)
{
	IdemkitWaits *waits = &waiter->waits;

	waiter->batch = 0;
	take_keys(waiter, &waits->notified);
	if (waiter->batch == 0 || waiter->left_behind)
	{
		take_keys(waiter, &waits->queued);
		waiter->left_behind = false;
	}
	else
		waiter->left_behind = !idemkit_list_empty(&waits->queued);
}

/*
 * The keys of the batch as a text[] in binary format, or NULL when out of memory.
 */
static unsigned char *
encode_batch(const IdemkitWaiter *waiter, size_t *length)
{
	const IdemkitLink *head = &waiter->waits.reading;
	unsigned char	  *array;
	unsigned char	  *to;

	*length = 20;
	for (IdemkitLink *link = head->next; link != head; link = link->next)
		*length += 4 + IDEMKIT_MEMBER(IdemkitKey, link, link)->length;
	array = idemkit_mem_alloc(*length);
	if (array == NULL)
		return NULL;
	to = idemkit_put_int4(array, 1); /* dimensions */
	to = idemkit_put_int4(to, 0);	 /* no NULLs */
	to = idemkit_put_int4(to, IDEMKIT_OID_TEXT);
	to = idemkit_put_int4(to, (uint32_t) waiter->batch);
	to = idemkit_put_int4(to, 1); /* lower bound */
	for (IdemkitLink *link = head->next; link != head; link = link->next)
	{
		const IdemkitKey *key = IDEMKIT_MEMBER(IdemkitKey, link, link);

		to = idemkit_put_int4(to, (uint32_t) key->length);
		memcpy(to, key->text, key->length);
		to += key->length;
	}
	return array;
}

/*
 * End all waits of the batch under way with an error.
 */
static void
end_batch(IdemkitWaiter *waiter, const IdemkitError *error)
{
	IdemkitLink *reading = &waiter->waits.reading;

	while (!idemkit_list_empty(reading))
		idemkit_waits_end_key(&waiter->waits, IDEMKIT_MEMBER(IdemkitKey, link, reading->next));
	idemkit_call_back(waiter, IDEMKIT_OUTCOME_ERROR, NULL, error);
}

/*
 * Send a query for the keys that wait to be read; false where there are none.
 */
bool
idemkit_round_send(IdemkitWaiter *waiter, int64_t now)
{
	IdemkitParams	 params = {0};
	IdemkitHeapNode *first = idemkit_heap_first(&waiter->waits.schedule);
	bool			 plain = waiter->read_plainly || waiter->may_only_read;
	unsigned char	*array;
	size_t			 length;
	int				 sent;

	if (first != NULL && first->when <= now && waiter->next_round <= now)
	{
		idemkit_waits_queue_due(&waiter->waits, now);
		waiter->next_round = now + IDEMKIT_ROUND_SPACING_US;
	}
	take_batch(waiter);
	if (waiter->batch == 0)
		return false;
	array = encode_batch(waiter, &length);
	if (array == NULL)
	{
		(void) idemkit_error_set_memory(&waiter->round_error);
		end_batch(waiter, &waiter->round_error);
		return false;
	}
	idemkit_add_bytes(&params, IDEMKIT_OID_TEXT_ARRAY, array, (int) length);
	idemkit_add_text(&params, IDEMKIT_OID_REGCLASS, waiter->options.records);
	if (waiter->prepared == IDEMKIT_PREPARED && !plain)
		sent = PQsendQueryPrepared(waiter->conn, STATEMENT_NAME, params.count, params.values,
								   params.lengths, params.formats, 1);
	else
		sent = PQsendQueryParams(waiter->conn, plain ? PLAIN_STATEMENT : STATEMENT, params.count,
								 params.types, params.values, params.lengths, params.formats, 1);
	if (sent != 0)
		sent = PQsetSingleRowMode(waiter->conn);
	idemkit_mem_free(array);
	waiter->round_failed = false;
	waiter->read_plainly = false;
	waiter->marking = !plain;
	waiter->counters[IDEMKIT_COUNTER_KEYS_READ] += waiter->batch;
	idemkit_connection_sent(waiter, IDEMKIT_QUERY_READ, sent);
	return true;
}

/*
 * May and should the statement be prepared now? Only on a connection that is
 * known to be a session of its own, and only once it is known to work.
 */
static bool
wants_prepare(const IdemkitWaiter *waiter)
{
	return waiter->proof == IDEMKIT_PROVEN && waiter->has_read &&
		   waiter->prepared == IDEMKIT_UNPREPARED && waiter->waits.wait_count > 0;
}

bool
idemkit_round_send_prepare(IdemkitWaiter *waiter)
{
	if (!wants_prepare(waiter))
		return false;
	waiter->round_failed = false;
	idemkit_connection_sent(
		waiter, IDEMKIT_QUERY_PREPARE,
		PQsendPrepare(waiter->conn, STATEMENT_NAME, STATEMENT, 2, statement_types));
	return true;
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
	if (key->again)
		idemkit_key_notify(&waiter->waits, key);
	else
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
	if (waiter->marking && strcmp(sqlstate, "55P03") == 0) /* lock_not_available */
		waiter->read_plainly = true;
	else if (waiter->marking && strcmp(sqlstate, "42501") == 0) /* insufficient_privilege */
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

	if (waiter->prepared == IDEMKIT_PREPARED &&
		(strcmp(error.sqlstate, "26000") == 0 || strcmp(error.sqlstate, "0A000") == 0))
	{
		/* the prepared statement is gone or outdated */
		waiter->prepared = IDEMKIT_UNPREPARABLE;
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
		end_batch(waiter, &error);
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
		waiter->prepared = waiter->round_failed ? IDEMKIT_UNPREPARABLE : IDEMKIT_PREPARED;
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
	if (wants_prepare(waiter) || !idemkit_list_empty(&waiter->waits.queued) ||
		!idemkit_list_empty(&waiter->waits.notified))
		return now;
	if (first == NULL)
		return IDEMKIT_NEVER;
	return first->when > waiter->next_round ? first->when : waiter->next_round;
}
