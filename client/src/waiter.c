/*
 * waiter.c - the waiter's public calls, and the order of things in one step
 *
 * A step takes up what has come in, then ends the waits that are over, then sends
 * what is due. In this order an answer that is there counts for a wait whose
 * deadline is just over, and what callbacks submit goes out in the same step.
 */
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "waiter.h"

/*
 * Is it a connection string of the form that libpq would take apart? Anything
 * else is the name of a database.
 */
static bool
is_connection_string(const char *conninfo)
{
	return strchr(conninfo, '=') != NULL || strncmp(conninfo, "postgresql://", 13) == 0 ||
		   strncmp(conninfo, "postgres://", 11) == 0;
}

static IdemkitStatus
check_conninfo(const char *conninfo, IdemkitError *error)
{
	char			 *message = NULL;
	PQconninfoOption *parsed;

	if (!is_connection_string(conninfo))
		return IDEMKIT_OK;
	parsed = PQconninfoParse(conninfo, &message);
	if (parsed != NULL)
	{
		PQconninfoFree(parsed);
		return IDEMKIT_OK;
	}
	if (message == NULL)
		return idemkit_error_set_memory(error);
	(void) idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT, message);
	PQfreemem(message);
	return IDEMKIT_ERROR_ARGUMENT;
}

/*
 * Numbers to begin with. Without the system's own the clock and an address must
 * do: they scatter clients in time just as well, only keys not as safely.
 */
static void
seed(uint64_t seeds[3], const void *address)
{
	if (!idemkit_random_bytes(seeds, 3 * sizeof(seeds[0])))
	{
		seeds[0] = (uint64_t) idemkit_clock() | 1;
		seeds[1] = (uint64_t) (uintptr_t) address ^ seeds[0];
		seeds[2] = seeds[0] * UINT64_C(0x9E3779B97F4A7C15);
	}
	if (seeds[2] == 0)
		seeds[2] = 1;
}

static void
free_waiter(IdemkitWaiter *waiter)
{
	if (waiter->conn != NULL)
		PQfinish(waiter->conn);
	idemkit_waits_free(&waiter->waits);
	idemkit_mem_free(waiter->options.records);
	idemkit_mem_free(waiter->conninfo);
	idemkit_mem_free(waiter);
}

IdemkitStatus
idemkit_waiter_create(const char *conninfo, const IdemkitWaiterOptions *options,
					  IdemkitWaiter **waiter, IdemkitError *error)
{
	IdemkitWaiter *made;
	IdemkitStatus  status;
	uint64_t	   seeds[3];

	if (waiter == NULL)
		return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT, "place for the waiter is NULL");
	*waiter = NULL;
	if (conninfo == NULL)
		conninfo = "";
	status = check_conninfo(conninfo, error);
	if (status != IDEMKIT_OK)
		return status;
	made = idemkit_mem_alloc(sizeof(*made));
	if (made == NULL)
		return idemkit_error_set_memory(error);
	memset(made, 0, sizeof(*made));
	seed(seeds, made);
	made->random = seeds[2];
	made->patience = IDEMKIT_NEVER;
	made->selftest_end = IDEMKIT_NEVER;
	made->idle_since = IDEMKIT_NEVER;
	made->batch_limit = IDEMKIT_MAX_BATCH;
	idemkit_waits_init(&made->waits, seeds);
	made->conninfo = idemkit_mem_strdup(conninfo);
	if (made->conninfo == NULL || !idemkit_options_copy(&made->options, options))
	{
		free_waiter(made);
		return idemkit_error_set_memory(error);
	}
	idemkit_error_clear(error);
	*waiter = made;
	return IDEMKIT_OK;
}

void
idemkit_call_back(IdemkitWaiter *waiter, IdemkitOutcome outcome, const IdemkitRecord *record,
				  const IdemkitError *error)
{
	IdemkitLink *ending = &waiter->waits.ending;

	while (!idemkit_list_empty(ending))
	{
		IdemkitWait		   *wait = IDEMKIT_MEMBER(IdemkitWait, link, ending->next);
		IdemkitWaitCallback callback = wait->callback;
		void			   *arg = wait->arg;

		idemkit_waits_remove(&waiter->waits, wait);
		callback(arg, outcome, record, error);
	}
}

void
idemkit_end_all(IdemkitWaiter *waiter, IdemkitOutcome outcome, const IdemkitError *error)
{
	IdemkitHeapNode *first;

	while ((first = idemkit_heap_first(&waiter->waits.deadlines)) != NULL)
		idemkit_waits_end(&waiter->waits, IDEMKIT_MEMBER(IdemkitWait, deadline, first));
	idemkit_call_back(waiter, outcome, NULL, error);
}

void
idemkit_notice(IdemkitWaiter *waiter, IdemkitNotice notice, const char *message)
{
	if (waiter->options.notice != NULL)
		waiter->options.notice(waiter->options.notice_arg, notice, message);
}

void
idemkit_waiter_end_all(IdemkitWaiter *waiter)
{
	waiter->processing = true;
	waiter->closing = true;
	idemkit_end_all(waiter, IDEMKIT_OUTCOME_CLOSED, NULL);
	waiter->processing = false;
}

void
idemkit_waiter_destroy(IdemkitWaiter *waiter)
{
	if (waiter == NULL)
		return;
	if (waiter->processing)
	{
		waiter->doomed = true;
		return;
	}
	idemkit_waiter_end_all(waiter);
	free_waiter(waiter);
}

/*
 * The length of the UTF-8 character that begins at text, or 0 where none does:
 * no overlong forms, no surrogates, nothing beyond U+10FFFF.
 */
static int
character_length(const unsigned char *text)
{
	static const struct
	{
		unsigned char first;
		unsigned char last;
		unsigned char second_first;
		unsigned char second_last;
		int			  length;
	} forms[] = {
		{0x01, 0x7F, 0, 0, 1},		 {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
		{0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
		{0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
	{
		if (text[0] < forms[i].first || text[0] > forms[i].last)
			continue;
		if (forms[i].length > 1 &&
			(text[1] < forms[i].second_first || text[1] > forms[i].second_last))
			return 0;
		for (int j = 2; j < forms[i].length; j++)
			if (text[j] < 0x80 || text[j] > 0xBF)
				return 0;
		return forms[i].length;
	}
	return 0;
}

/*
 * Check a key here rather than let the server refuse it together with all other
 * keys of its batch.
 */
static IdemkitStatus
check_key(const char *key, size_t *length, IdemkitError *error)
{
	if (key == NULL)
		return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT, "effective key is NULL");
	*length = strlen(key);
	if (*length < 1 || *length > IDEMKIT_MAX_KEY_BYTES)
		return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT,
								 "effective key must be 1 to 1024 bytes long");
	for (const char *at = key; *at != '\0';)
	{
		int step = character_length((const unsigned char *) at);

		if (step == 0)
			return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT,
									 "effective key is not valid UTF-8");
		at += step;
	}
	return IDEMKIT_OK;
}

IdemkitStatus
idemkit_waiter_submit(IdemkitWaiter *waiter, const char *effective_key, double timeout_seconds,
					  IdemkitWaitCallback callback, void *arg, IdemkitWaitId *id,
					  IdemkitError *error)
{
	IdemkitStatus status;
	IdemkitWait	 *wait;
	size_t		  length = 0;

	if (waiter == NULL || callback == NULL)
		return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT, "waiter or callback is NULL");
	if (waiter->closing || waiter->doomed)
		return idemkit_error_set(error, IDEMKIT_ERROR_CLOSED, "waiter is being destroyed");
	if (!idemkit_seconds_valid(timeout_seconds, 0))
		return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT,
								 "timeout must be between 0 seconds and 10 years");
	status = check_key(effective_key, &length, error);
	if (status != IDEMKIT_OK)
		return status;
	wait =
		idemkit_waits_add(&waiter->waits, effective_key, length,
						  idemkit_clock() + idemkit_seconds_to_us(timeout_seconds), callback, arg);
	if (wait == NULL)
		return idemkit_error_set_memory(error);
	if (id != NULL)
		*id = wait->id;
	waiter->idle_since = IDEMKIT_NEVER;
	idemkit_error_clear(error);
	return IDEMKIT_OK;
}

IdemkitStatus
idemkit_waiter_cancel(IdemkitWaiter *waiter, IdemkitWaitId id)
{
	IdemkitWait *wait;

	if (waiter == NULL)
		return IDEMKIT_ERROR_ARGUMENT;
	wait = idemkit_waits_find(&waiter->waits, id);
	if (wait == NULL)
		return IDEMKIT_ERROR_NOT_FOUND;
	idemkit_waits_remove(&waiter->waits, wait);
	return IDEMKIT_OK;
}

int
idemkit_waiter_socket(const IdemkitWaiter *waiter)
{
	return waiter->conn != NULL ? PQsocket(waiter->conn) : -1;
}

uint64_t
idemkit_waiter_socket_serial(const IdemkitWaiter *waiter)
{
	return waiter->socket_serial;
}

int
idemkit_waiter_events(const IdemkitWaiter *waiter)
{
	switch (waiter->phase)
	{
		case IDEMKIT_CONNECTING:
			return waiter->connect_wants == PGRES_POLLING_READING ? IDEMKIT_EVENT_READ
																  : IDEMKIT_EVENT_WRITE;
		case IDEMKIT_UP:
			return waiter->unflushed ? IDEMKIT_EVENT_READ | IDEMKIT_EVENT_WRITE
									 : IDEMKIT_EVENT_READ;
		default:
			return 0;
	}
}

static int64_t
earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int64_t
idemkit_waiter_timeout_us(const IdemkitWaiter *waiter)
{
	int64_t				   now = idemkit_clock();
	int64_t				   due = waiter->patience;
	const IdemkitHeapNode *deadline = idemkit_heap_first(&waiter->waits.deadlines);

	if (deadline != NULL)
		due = earlier(due, deadline->when);
	if (waiter->phase == IDEMKIT_UP)
	{
		due = earlier(due, idemkit_session_due(waiter, now));
		due = earlier(due, idemkit_round_due(waiter, now));
	}
	else if (waiter->phase == IDEMKIT_DOWN && waiter->waits.wait_count > 0)
		due = earlier(due, waiter->next_attempt);
	if (due == IDEMKIT_NEVER)
		return -1;
	return due > now ? due - now : 0;
}

int
idemkit_waiter_timeout_ms(const IdemkitWaiter *waiter)
{
	int64_t us = idemkit_waiter_timeout_us(waiter);

	if (us < 0)
		return -1;
	us = us / 1000 + (us % 1000 != 0);
	return us < INT_MAX ? (int) us : INT_MAX;
}

/*
 * End the waits whose deadline is over.
 */
static void
end_overdue(IdemkitWaiter *waiter, int64_t now)
{
	IdemkitHeapNode *first;

	while ((first = idemkit_heap_first(&waiter->waits.deadlines)) != NULL && first->when <= now)
	{
		IdemkitWait			*wait = IDEMKIT_MEMBER(IdemkitWait, deadline, first);
		const IdemkitRecord *record = idemkit_record_ref(wait->key->record);
		IdemkitError		 error = waiter->trouble;

		idemkit_waits_end(&waiter->waits, wait);
		idemkit_call_back(waiter, IDEMKIT_OUTCOME_TIMEOUT, record,
						  error.status != IDEMKIT_OK ? &error : NULL);
		idemkit_record_free(record);
	}
}

/*
 * Send the next query, if none is under way and one is due.
 */
static void
send_next(IdemkitWaiter *waiter, int64_t now)
{
	if (waiter->phase != IDEMKIT_UP || waiter->query != IDEMKIT_QUERY_NONE)
		return;
	(void) (idemkit_session_send_first(waiter) || idemkit_read_send(waiter, now) ||
			idemkit_session_send_last(waiter, now) || idemkit_read_send_prepare(waiter));
}

static void
step(IdemkitWaiter *waiter)
{
	int64_t now;

	idemkit_connection_receive(waiter);
	now = idemkit_clock();
	if (waiter->patience <= now)
		idemkit_connection_lose_for(waiter, waiter->phase == IDEMKIT_CONNECTING
												? "connecting took too long"
												: "server did not answer in time");
	idemkit_session_check_selftest(waiter, now);
	end_overdue(waiter, now);
	if (waiter->waits.wait_count > 0)
		waiter->idle_since = IDEMKIT_NEVER;
	else if (waiter->idle_since == IDEMKIT_NEVER)
		waiter->idle_since = now;
	if (waiter->phase == IDEMKIT_DOWN && waiter->waits.wait_count > 0 &&
		waiter->next_attempt <= now)
		idemkit_connection_start(waiter, now);
	send_next(waiter, now);
}

IdemkitStatus
idemkit_waiter_process(IdemkitWaiter *waiter)
{
	if (waiter == NULL)
		return IDEMKIT_ERROR_ARGUMENT;
	if (waiter->processing)
		return IDEMKIT_ERROR_BUSY;
	waiter->processing = true;
	step(waiter);
	waiter->processing = false;
	if (waiter->doomed)
		idemkit_waiter_destroy(waiter);
	return IDEMKIT_OK;
}

/*
 * Is a query under way that park may not leave behind?
 */
static bool
is_busy(const IdemkitWaiter *waiter)
{
	return waiter->phase == IDEMKIT_UP && waiter->query != IDEMKIT_QUERY_NONE &&
		   waiter->query != IDEMKIT_QUERY_UNLISTEN;
}

/*
 * A wait may end before the query that answered it has: the rest of the answer is
 * on its way. Give a query that is that young a moment.
 */
static void
let_query_end(IdemkitWaiter *waiter)
{
	int64_t end = waiter->patience - waiter->options.query_timeout_us + IDEMKIT_PARK_US;
	int64_t now;

	while (is_busy(waiter) && (now = idemkit_clock()) < end)
	{
		struct pollfd ready = {.fd = PQsocket(waiter->conn), .events = POLLIN};

		(void) poll(&ready, 1, (int) ((end - now) / 1000 + 1));
		(void) idemkit_waiter_process(waiter);
	}
}

void
idemkit_waiter_park(IdemkitWaiter *waiter)
{
	if (waiter->waits.wait_count > 0)
		return;
	let_query_end(waiter);
	if (waiter->phase == IDEMKIT_UP && waiter->query == IDEMKIT_QUERY_NONE && waiter->listening)
		idemkit_session_rest(waiter);
	if (is_busy(waiter) || waiter->unflushed)
		idemkit_connection_close(waiter);
}

uint64_t
idemkit_waiter_counter(const IdemkitWaiter *waiter, IdemkitCounter counter)
{
	if (counter == IDEMKIT_COUNTER_WAITS)
		return waiter->waits.wait_count;
	if ((int) counter < 0 || counter > IDEMKIT_COUNTER_LISTENING)
		return 0;
	return waiter->counters[counter];
}
