/*
 * read.c - the statements that read keys: which keys, which statement
 *
 * A key that is new, or due to be read again, is read with idemkit_subscribe(),
 * which also marks its claim as awaited. That writes to the row. Where it can not,
 * because a transaction holds the row's lock or since this role may only read, the
 * batch is read without marks: one claim that is being completed in a long
 * transaction must not hold up all other waits. A key that was notified is read
 * without marks as well, since most likely its claim is over, and the plain
 * statements are quicker.
 *
 * Statements are prepared where the connection is known to be a session of its
 * own, and once they are known to work.
 */
#include <string.h>

#include "alloc.h"
#include "record.h"
#include "waiter.h"
#include "wire.h"

typedef struct Statement
{
	const char *name;
	const char *text;
	Oid			types[2];
} Statement;

/*
 * The lock's timeout is set for one transaction only, which leaves nothing behind
 * in a connection that a pooler shares; the CASE makes sure that it is set first.
 */
static const Statement statements[IDEMKIT_STATEMENTS] = {
	[IDEMKIT_READ_ONE] = {"idemkit_read_one",
						  "SELECT " IDEMKIT_RECORD_COLUMNS " FROM idemkit_get($1, $2)",
						  {IDEMKIT_OID_TEXT, IDEMKIT_OID_REGCLASS}},
	[IDEMKIT_MARK_AND_READ] =
		{"idemkit_mark_and_read",
		 "SELECT " IDEMKIT_RECORD_COLUMNS " FROM"
		 " pg_catalog.set_config('lock_timeout', '50ms', true) AS bound(ms),"
		 " LATERAL idemkit_subscribe(CASE WHEN bound.ms IS NOT NULL THEN $1 END, $2)",
		 {IDEMKIT_OID_TEXT_ARRAY, IDEMKIT_OID_REGCLASS}},
	[IDEMKIT_READ_MANY] = {"idemkit_read_many",
						   "SELECT " IDEMKIT_RECORD_COLUMNS
						   " FROM pg_catalog.unnest($1) AS key(text),"
						   " LATERAL idemkit_get(key.text, $2)",
						   {IDEMKIT_OID_TEXT_ARRAY, IDEMKIT_OID_REGCLASS}},
};

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
	waiter->notified_only =
		waiter->batch > 0 && (idemkit_list_empty(&waits->queued) || !waiter->left_behind);
	if (!waiter->notified_only)
		take_keys(waiter, &waits->queued);
	waiter->left_behind = waiter->notified_only && !idemkit_list_empty(&waits->queued);
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
 * The statement for the batch that has been chosen.
 */
static IdemkitStatement
choose_statement(const IdemkitWaiter *waiter)
{
	if (!waiter->notified_only && !waiter->read_plainly && !waiter->may_only_read)
		return IDEMKIT_MARK_AND_READ;
	return waiter->batch == 1 ? IDEMKIT_READ_ONE : IDEMKIT_READ_MANY;
}

/*
 * Hand the statement to libpq; returns what that says. array is the batch, where
 * the statement takes one.
 */
static int
send_statement(IdemkitWaiter *waiter, const unsigned char *array, size_t length)
{
	const Statement	 *statement = &statements[waiter->statement];
	IdemkitParams	  params = {0};
	const IdemkitKey *key;
	int				  sent;

	if (array != NULL)
		idemkit_add_bytes(&params, IDEMKIT_OID_TEXT_ARRAY, array, (int) length);
	else
	{
		key = IDEMKIT_MEMBER(IdemkitKey, link, waiter->waits.reading.next);
		idemkit_add_bytes(&params, IDEMKIT_OID_TEXT, key->text, (int) key->length);
	}
	idemkit_add_text(&params, IDEMKIT_OID_REGCLASS, waiter->options.records);
	if (waiter->prepared[waiter->statement] == IDEMKIT_PREPARED)
		sent = PQsendQueryPrepared(waiter->conn, statement->name, params.count, params.values,
								   params.lengths, params.formats, 1);
	else
		sent = PQsendQueryParams(waiter->conn, statement->text, params.count, params.types,
								 params.values, params.lengths, params.formats, 1);
	return sent != 0 ? PQsetSingleRowMode(waiter->conn) : 0;
}

/*
 * Send a query for the keys that wait to be read; false where there are none.
 */
bool
idemkit_read_send(IdemkitWaiter *waiter, int64_t now)
{
	IdemkitHeapNode *first = idemkit_heap_first(&waiter->waits.schedule);
	unsigned char	*array = NULL;
	size_t			 length = 0;
	int				 sent;

	if (first != NULL && first->when <= now && waiter->next_round <= now)
	{
		idemkit_waits_queue_due(&waiter->waits, now);
		waiter->next_round = now + IDEMKIT_ROUND_SPACING_US;
	}
	take_batch(waiter);
	if (waiter->batch == 0)
		return false;
	waiter->statement = choose_statement(waiter);
	if (waiter->statement != IDEMKIT_READ_ONE)
	{
		array = encode_batch(waiter, &length);
		if (array == NULL)
		{
			(void) idemkit_error_set_memory(&waiter->round_error);
			idemkit_round_abandon(waiter, &waiter->round_error);
			return false;
		}
	}
	sent = send_statement(waiter, array, length);
	idemkit_mem_free(array);
	waiter->round_failed = false;
	waiter->read_plainly = false;
	waiter->counters[IDEMKIT_COUNTER_KEYS_READ] += waiter->batch;
	idemkit_connection_sent(waiter, IDEMKIT_QUERY_READ, sent);
	return true;
}

/*
 * The next statement to prepare, or IDEMKIT_STATEMENTS.
 */
static IdemkitStatement
next_to_prepare(const IdemkitWaiter *waiter)
{
	int i = 0;

	if (waiter->proof != IDEMKIT_PROVEN || !waiter->has_read || waiter->waits.wait_count == 0)
		return IDEMKIT_STATEMENTS;
	while (i < IDEMKIT_STATEMENTS && waiter->prepared[i] != IDEMKIT_UNPREPARED)
		i++;
	return (IdemkitStatement) i;
}

bool
idemkit_read_wants_prepare(const IdemkitWaiter *waiter)
{
	return next_to_prepare(waiter) != IDEMKIT_STATEMENTS;
}

bool
idemkit_read_send_prepare(IdemkitWaiter *waiter)
{
	const Statement *statement;

	waiter->preparing = next_to_prepare(waiter);
	if (waiter->preparing == IDEMKIT_STATEMENTS)
		return false;
	statement = &statements[waiter->preparing];
	waiter->round_failed = false;
	idemkit_connection_sent(
		waiter, IDEMKIT_QUERY_PREPARE,
		PQsendPrepare(waiter->conn, statement->name, statement->text, 2, statement->types));
	return true;
}
