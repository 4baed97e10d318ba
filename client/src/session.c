/*
 * session.c - what a connection is prepared with: LISTEN, and the proof of it
 *
 * A notification sent to oneself comes back together with the answer to the
 * query that sent it, also through a pooler that gives every transaction another
 * server connection. So the echo alone proves nothing; it is the server process
 * that must be ours: where the process that answers is not the one the
 * connection was opened to, a proxy hands out connections, and LISTEN, which
 * belongs to a connection, can not be relied on. Both are asked for, the process
 * and the echo, the second since something on the way may drop notifications.
 *
 * While nobody waits the waiter does not listen: a listening connection that
 * nobody reads would in time keep the server from truncating its queue.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "waiter.h"

void
idemkit_session_begin(IdemkitWaiter *waiter)
{
	waiter->listening = false;
	waiter->untidy = false;
	waiter->echo_seen = false;
	for (int i = 0; i < IDEMKIT_STATEMENTS; i++)
		waiter->prepared[i] = IDEMKIT_UNPREPARED;
	waiter->selftest_end = IDEMKIT_NEVER;
	waiter->has_read = false;
	waiter->read_plainly = false;
	waiter->may_only_read = false;
	waiter->batch_limit = IDEMKIT_MAX_BATCH;
	switch (waiter->options.listen)
	{
		case IDEMKIT_LISTEN_OFF:
			waiter->proof = IDEMKIT_REFUTED;
			break;
		case IDEMKIT_LISTEN_ALWAYS:
			waiter->proof = IDEMKIT_PROVEN;
			break;
		default:
			waiter->proof = IDEMKIT_UNPROVEN;
			break;
	}
	idemkit_waits_queue_all(&waiter->waits);
}

static void
prove(IdemkitWaiter *waiter)
{
	waiter->proof = IDEMKIT_PROVEN;
	waiter->selftest_end = IDEMKIT_NEVER;
	waiter->counters[IDEMKIT_COUNTER_LISTENING] = 1;
	/* the self-test's channel is not needed any more */
	waiter->untidy = true;
}

static void
refute(IdemkitWaiter *waiter, const char *why)
{
	waiter->proof = IDEMKIT_REFUTED;
	waiter->selftest_end = IDEMKIT_NEVER;
	waiter->untidy = waiter->listening;
	waiter->listening = false;
	if (!waiter->said_polling)
	{
		waiter->said_polling = true;
		idemkit_notice(waiter, IDEMKIT_NOTICE_POLLING, why);
	}
}

/*
 * LISTEN, with the self-test unless it has been passed. In one message, which
 * even a transaction pooler sends to one server connection.
 */
static void
send_listen(IdemkitWaiter *waiter)
{
	char statement[256];

	waiter->setup_failed = false;
	waiter->session_pid = 0;
	if (waiter->proof == IDEMKIT_PROVEN)
	{
		idemkit_connection_sent(waiter, IDEMKIT_QUERY_LISTEN,
								PQsendQuery(waiter->conn, "LISTEN " IDEMKIT_CHANNEL));
		return;
	}
	(void) snprintf(waiter->probe, sizeof(waiter->probe), "%016llx%016llx",
					(unsigned long long) idemkit_random_next(&waiter->random),
					(unsigned long long) idemkit_random_next(&waiter->random));
	(void) snprintf(statement, sizeof(statement),
					"LISTEN " IDEMKIT_CHANNEL "; LISTEN " IDEMKIT_SELFTEST_CHANNEL "; "
					"SELECT pg_catalog.pg_backend_pid(), "
					"pg_catalog.pg_notify('" IDEMKIT_SELFTEST_CHANNEL "', '%s')",
					waiter->probe);
	idemkit_connection_sent(waiter, IDEMKIT_QUERY_LISTEN, PQsendQuery(waiter->conn, statement));
}

bool
idemkit_session_send_first(IdemkitWaiter *waiter)
{
	if (waiter->proof == IDEMKIT_REFUTED || waiter->listening || waiter->waits.wait_count == 0)
		return false;
	send_listen(waiter);
	return true;
}

/*
 * Has nobody waited for so long that listening should end?
 */
static bool
lingered(const IdemkitWaiter *waiter, int64_t now)
{
	return waiter->listening && waiter->idle_since != IDEMKIT_NEVER &&
		   now - waiter->idle_since >= IDEMKIT_LINGER_US;
}

static void
send_unlisten(IdemkitWaiter *waiter, const char *statement)
{
	waiter->untidy = false;
	idemkit_connection_sent(waiter, IDEMKIT_QUERY_UNLISTEN, PQsendQuery(waiter->conn, statement));
}

/*
 * Stop listening; the next wait begins with LISTEN.
 */
void
idemkit_session_rest(IdemkitWaiter *waiter)
{
	waiter->listening = false;
	waiter->counters[IDEMKIT_COUNTER_LISTENING] = 0;
	send_unlisten(waiter, "UNLISTEN *");
}

/*
 * Is it time to stop listening to what is not needed? Where we listen anyway there
 * is no hurry: what comes first is that the connection is free for the next wait.
 */
static bool
must_tidy(const IdemkitWaiter *waiter)
{
	return waiter->untidy && (waiter->proof == IDEMKIT_REFUTED || waiter->waits.wait_count > 0);
}

bool
idemkit_session_send_last(IdemkitWaiter *waiter, int64_t now)
{
	if (must_tidy(waiter))
		send_unlisten(waiter, waiter->proof == IDEMKIT_PROVEN
								  ? "UNLISTEN " IDEMKIT_SELFTEST_CHANNEL
								  : "UNLISTEN " IDEMKIT_CHANNEL
									"; UNLISTEN " IDEMKIT_SELFTEST_CHANNEL);
	else if (lingered(waiter, now))
		idemkit_session_rest(waiter);
	else
		return false;
	return true;
}

/*
 * A result of LISTEN or UNLISTEN. Whether UNLISTEN worked does not matter: what
 * comes in unasked is ignored.
 */
void
idemkit_session_result(IdemkitWaiter *waiter, const PGresult *result)
{
	if (waiter->query != IDEMKIT_QUERY_LISTEN)
		return;
	switch (PQresultStatus(result))
	{
		case PGRES_COMMAND_OK:
			break;
		case PGRES_TUPLES_OK:
			if (PQntuples(result) == 1)
				waiter->session_pid = (int) strtol(PQgetvalue(result, 0, 0), NULL, 10);
			break;
		default:
			waiter->setup_failed = true;
			(void) idemkit_error_set_result(&waiter->session_error, waiter->conn, result);
			break;
	}
}

/*
 * LISTEN or UNLISTEN has been answered.
 */
void
idemkit_session_done(IdemkitWaiter *waiter, IdemkitQuery query)
{
	if (query != IDEMKIT_QUERY_LISTEN || PQstatus(waiter->conn) == CONNECTION_BAD)
		return;
	if (waiter->setup_failed)
	{
		refute(waiter, waiter->session_error.message);
		return;
	}
	waiter->listening = true;
	if (waiter->proof == IDEMKIT_PROVEN)
		waiter->counters[IDEMKIT_COUNTER_LISTENING] = 1;
	else if (waiter->session_pid != PQbackendPID(waiter->conn))
		refute(waiter, "server is reached through a connection pooler, "
					   "notifications may not arrive");
	else if (waiter->echo_seen)
		prove(waiter);
	else
		waiter->selftest_end = idemkit_clock() + IDEMKIT_SELFTEST_US;
}

/*
 * A notification came on the self-test's channel; others use it too.
 */
void
idemkit_session_selftest_heard(IdemkitWaiter *waiter, const char *payload)
{
	if (strcmp(payload, waiter->probe) != 0)
		return;
	waiter->echo_seen = true;
	if (waiter->selftest_end != IDEMKIT_NEVER)
		prove(waiter);
}

void
idemkit_session_check_selftest(IdemkitWaiter *waiter, int64_t now)
{
	if (waiter->phase == IDEMKIT_UP && waiter->selftest_end <= now)
		refute(waiter, "notification of the self-test did not arrive");
}

int64_t
idemkit_session_due(const IdemkitWaiter *waiter, int64_t now)
{
	int64_t due = waiter->selftest_end;

	if (waiter->query != IDEMKIT_QUERY_NONE)
		return due;
	if (must_tidy(waiter))
		return now;
	if (waiter->proof != IDEMKIT_REFUTED && !waiter->listening && waiter->waits.wait_count > 0)
		return now;
	if (waiter->listening && waiter->idle_since != IDEMKIT_NEVER &&
		waiter->idle_since + IDEMKIT_LINGER_US < due)
		due = waiter->idle_since + IDEMKIT_LINGER_US;
	return due;
}
