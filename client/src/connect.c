/*
 * connect.c - the waiter's connection: made, used, lost, made again
 *
 * Nothing here blocks, apart from libpq's look-up of host names. Whatever the
 * server or the network does, an attempt to connect ends after the connect
 * timeout, and a query after the query timeout: the connection is then closed,
 * and tried anew after a pause that doubles from one failure to the next.
 */
#include <poll.h>
#include <string.h>

#include "waiter.h"

/*
 * libpq prints notices by default; a library must not.
 */
static void
ignore_notice(void *arg, const PGresult *result)
{
	(void) arg;
	(void) result;
}

void
idemkit_connection_close(IdemkitWaiter *waiter)
{
	if (waiter->conn != NULL)
		PQfinish(waiter->conn);
	waiter->conn = NULL;
	waiter->phase = IDEMKIT_DOWN;
	waiter->query = IDEMKIT_QUERY_NONE;
	waiter->unflushed = false;
	waiter->patience = IDEMKIT_NEVER;
	waiter->socket_serial++;
	waiter->counters[IDEMKIT_COUNTER_LISTENING] = 0;
	idemkit_waits_requeue(&waiter->waits);
}

/*
 * Plan the next attempt: the pause doubles, and is cut by up to half at random.
 */
static void
back_off(IdemkitWaiter *waiter)
{
	int64_t pause = waiter->backoff * 2;

	if (pause < waiter->options.reconnect_min_us)
		pause = waiter->options.reconnect_min_us;
	if (pause > waiter->options.reconnect_max_us)
		pause = waiter->options.reconnect_max_us;
	waiter->backoff = pause;
	pause -= (int64_t) (idemkit_random_next(&waiter->random) % (uint64_t) (pause / 2 + 1));
	waiter->next_attempt = idemkit_clock() + pause;
}

void
idemkit_connection_lose(IdemkitWaiter *waiter)
{
	idemkit_connection_close(waiter);
	waiter->counters[IDEMKIT_COUNTER_FAILURES]++;
	back_off(waiter);
	idemkit_notice(waiter, IDEMKIT_NOTICE_DISCONNECTED, waiter->trouble.message);
}

void
idemkit_connection_lose_for(IdemkitWaiter *waiter, const char *message)
{
	idemkit_error_set(&waiter->trouble, IDEMKIT_ERROR_CONNECTION, message);
	idemkit_connection_lose(waiter);
}

/*
 * An SQLSTATE in the text of a failed connection ("FATAL:  28P01: password
 * ..."), which is the only place where libpq gives it. Returns the text after it
 * and copies the code, or NULL.
 */
static const char *
find_sqlstate(const char *text, char code[6])
{
	for (const char *at = strstr(text, ":  "); at != NULL; at = strstr(at + 1, ":  "))
	{
		const char *digits = at + 3;

		if (strspn(digits, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 &&
			strncmp(digits + 5, ": ", 2) == 0)
		{
			memcpy(code, digits, 5);
			code[5] = '\0';
			return digits + 7;
		}
	}
	return NULL;
}

/*
 * Connecting failed; keep why. Returns true where trying again would be no use:
 * the server is there and says that this user or database is not.
 */
static bool
keep_connect_error(IdemkitWaiter *waiter)
{
	IdemkitError *trouble = &waiter->trouble;
	char		  text[IDEMKIT_ERROR_TEXT_BYTES];
	char		  code[6];
	const char	 *message = find_sqlstate(PQerrorMessage(waiter->conn), code);
	size_t		  length;

	if (message == NULL)
	{
		idemkit_error_set_connection(trouble, waiter->conn);
		return false;
	}
	/* one line of it: the next ones are where in the server's source it was */
	length = strcspn(message, "\n");
	if (length >= sizeof(text))
		length = sizeof(text) - 1;
	memcpy(text, message, length);
	text[length] = '\0';
	idemkit_error_set(trouble, IDEMKIT_ERROR_CONNECTION, text);
	memcpy(trouble->sqlstate, code, sizeof(code));
	return strncmp(code, "28", 2) == 0 || strcmp(code, "3D000") == 0 || strcmp(code, "42501") == 0;
}

static void
fail_to_connect(IdemkitWaiter *waiter)
{
	bool		 hopeless = keep_connect_error(waiter);
	IdemkitError error;

	idemkit_connection_lose(waiter);
	if (hopeless)
	{
		error = waiter->trouble;
		error.status = IDEMKIT_ERROR_SERVER;
		idemkit_end_all(waiter, IDEMKIT_OUTCOME_ERROR, &error);
	}
}

void
idemkit_connection_start(IdemkitWaiter *waiter, int64_t now)
{
	const char *const keywords[] = {"dbname", "client_encoding", "fallback_application_name", NULL};
	const char *const values[] = {waiter->conninfo, "UTF8", "libidemkit", NULL};

	waiter->conn = PQconnectStartParams(keywords, values, 1);
	if (waiter->conn == NULL)
	{
		idemkit_error_set_memory(&waiter->trouble);
		idemkit_connection_lose(waiter);
		return;
	}
	(void) PQsetNoticeReceiver(waiter->conn, ignore_notice, NULL);
	(void) PQsetErrorVerbosity(waiter->conn, PQERRORS_VERBOSE);
	waiter->phase = IDEMKIT_CONNECTING;
	waiter->connect_wants = PGRES_POLLING_WRITING;
	waiter->patience = now + waiter->options.connect_timeout_us;
	waiter->socket_serial++;
	if (PQstatus(waiter->conn) == CONNECTION_BAD)
		fail_to_connect(waiter);
}

/*
 * Is the socket ready for what libpq wants of it? PQconnectPoll() may only be
 * called when it is.
 */
static bool
connect_socket_ready(const IdemkitWaiter *waiter)
{
	struct pollfd ready = {.fd = PQsocket(waiter->conn)};

	ready.events = waiter->connect_wants == PGRES_POLLING_READING ? POLLIN : POLLOUT;
	return ready.fd >= 0 && poll(&ready, 1, 0) > 0;
}

static void
connect_further(IdemkitWaiter *waiter)
{
	while (waiter->phase == IDEMKIT_CONNECTING && connect_socket_ready(waiter))
	{
		waiter->connect_wants = PQconnectPoll(waiter->conn);
		/* libpq may have closed one socket and opened another of that number */
		waiter->socket_serial++;
		if (waiter->connect_wants == PGRES_POLLING_FAILED)
			fail_to_connect(waiter);
		else if (waiter->connect_wants == PGRES_POLLING_OK)
		{
			(void) PQsetErrorVerbosity(waiter->conn, PQERRORS_DEFAULT);
			if (PQsetnonblocking(waiter->conn, 1) != 0)
			{
				idemkit_error_set_connection(&waiter->trouble, waiter->conn);
				idemkit_connection_lose(waiter);
				return;
			}
			waiter->phase = IDEMKIT_UP;
			waiter->patience = IDEMKIT_NEVER;
			waiter->counters[IDEMKIT_COUNTER_CONNECTIONS]++;
			idemkit_session_begin(waiter);
			idemkit_notice(waiter, IDEMKIT_NOTICE_CONNECTED, "connected");
		}
	}
}

static void
lose_broken(IdemkitWaiter *waiter)
{
	idemkit_error_set_connection(&waiter->trouble, waiter->conn);
	idemkit_connection_lose(waiter);
}

/*
 * Send what libpq still holds. Returns false where the connection was lost.
 */
static bool
flush(IdemkitWaiter *waiter)
{
	int left = PQflush(waiter->conn);

	if (left < 0)
	{
		lose_broken(waiter);
		return false;
	}
	waiter->unflushed = left > 0;
	return true;
}

void
idemkit_connection_sent(IdemkitWaiter *waiter, IdemkitQuery query, int sent)
{
	if (sent == 0)
	{
		lose_broken(waiter);
		return;
	}
	waiter->query = query;
	waiter->patience = idemkit_clock() + waiter->options.query_timeout_us;
	waiter->counters[IDEMKIT_COUNTER_QUERIES]++;
	(void) flush(waiter);
}

/*
 * Take up the notifications that libpq has read.
 */
static void
receive_notifications(IdemkitWaiter *waiter)
{
	PGnotify *notify;

	while ((notify = PQnotifies(waiter->conn)) != NULL)
	{
		waiter->counters[IDEMKIT_COUNTER_NOTIFICATIONS]++;
		if (strcmp(notify->relname, IDEMKIT_CHANNEL) == 0)
		{
			IdemkitKey *key =
				idemkit_waits_find_key(&waiter->waits, notify->extra, strlen(notify->extra));

			if (key != NULL)
				idemkit_key_notify(&waiter->waits, key);
		}
		else if (strcmp(notify->relname, IDEMKIT_SELFTEST_CHANNEL) == 0)
			idemkit_session_selftest_heard(waiter, notify->extra);
		PQfreemem(notify);
	}
}

/*
 * The query under way has been answered wholly.
 */
static void
finish_query(IdemkitWaiter *waiter)
{
	IdemkitQuery query = waiter->query;

	waiter->query = IDEMKIT_QUERY_NONE;
	waiter->patience = IDEMKIT_NEVER;
	if (query == IDEMKIT_QUERY_READ || query == IDEMKIT_QUERY_PREPARE)
		idemkit_round_done(waiter, query);
	else
		idemkit_session_done(waiter, query);
}

/*
 * Take up the results that libpq has read. Those may call back, and anything may
 * follow from that but the end of the waiter.
 */
static void
receive_results(IdemkitWaiter *waiter)
{
	while (waiter->query != IDEMKIT_QUERY_NONE && !PQisBusy(waiter->conn))
	{
		PGresult *result = PQgetResult(waiter->conn);

		if (result == NULL)
		{
			/* a self-test's own notification may have come with the answer */
			receive_notifications(waiter);
			finish_query(waiter);
			return;
		}
		if (idemkit_error_ends_session(result))
		{
			(void) idemkit_error_set_result(&waiter->trouble, waiter->conn, result);
			PQclear(result);
			idemkit_connection_lose(waiter);
			return;
		}
		/* an answer that is still coming in is not a server that is stuck */
		waiter->patience = idemkit_clock() + waiter->options.query_timeout_us;
		if (waiter->query == IDEMKIT_QUERY_READ || waiter->query == IDEMKIT_QUERY_PREPARE)
			idemkit_round_result(waiter, result);
		else
			idemkit_session_result(waiter, result);
		PQclear(result);
	}
}

void
idemkit_connection_receive(IdemkitWaiter *waiter)
{
	bool broken;

	if (waiter->phase == IDEMKIT_CONNECTING)
		connect_further(waiter);
	if (waiter->phase != IDEMKIT_UP)
		return;
	/* what came before the connection broke still counts */
	broken = PQconsumeInput(waiter->conn) == 0;
	if (!broken && !flush(waiter))
		return;
	receive_notifications(waiter);
	receive_results(waiter);
	if (waiter->phase == IDEMKIT_UP && (broken || PQstatus(waiter->conn) == CONNECTION_BAD))
		lose_broken(waiter);
}
