/*
 * support.c - what the test programs share
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support.h"

static int	tests;
static int	failures;
static bool last_result;
static char last_difference[1000];

void
begin_ok(bool condition)
{
	last_result = condition;
	last_difference[0] = '\0';
	if (!condition)
		failures++;
	printf("%sok %d - ", condition ? "" : "not ", ++tests);
}

void
begin_int(int64_t got, int64_t expected)
{
	begin_ok(got == expected);
	if (got != expected)
		snprintf(last_difference, sizeof(last_difference), "got %lld, expected %lld",
				 (long long) got, (long long) expected);
}

void
begin_text(const char *got, const char *expected)
{
	bool same = got != NULL && expected != NULL ? strcmp(got, expected) == 0 : got == expected;

	begin_ok(same);
	if (!same)
		snprintf(last_difference, sizeof(last_difference), "got \"%s\", expected \"%s\"",
				 got != NULL ? got : "(NULL)", expected != NULL ? expected : "(NULL)");
}

bool
end_result(void)
{
	end_line();
	if (last_difference[0] != '\0')
		note("%s", last_difference);
	return last_result;
}

void
begin_line(const char *start)
{
	fputs(start, stdout);
}

void
end_line(void)
{
	putchar('\n');
	fflush(stdout);
}

int
finish(void)
{
	printf("1..%d\n", tests);
	fflush(stdout);
	return failures > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

double
slowness(void)
{
	const char *value = getenv("IDEMKIT_SLOWNESS");
	double		factor = value != NULL ? strtod(value, NULL) : 1.0;

	return factor > 1.0 ? factor : 1.0;
}

double
seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

void
sleep_seconds(double seconds)
{
	struct timespec time = {(time_t) seconds, (long) ((seconds - (double) (time_t) seconds) * 1e9)};

	nanosleep(&time, NULL);
}

PGconn *
must_connect(void)
{
	PGconn *conn = PQconnectdb("");

	if (PQstatus(conn) != CONNECTION_OK)
		give_up("could not connect: %s", PQerrorMessage(conn));
	return conn;
}

void
must_execute(PGconn *conn, const char *statement)
{
	PGresult	  *result = PQexec(conn, statement);
	ExecStatusType status = PQresultStatus(result);

	PQclear(result);
	if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
		give_up("%s: %s", statement, PQerrorMessage(conn));
}

char *
must_query(PGconn *conn, const char *query)
{
	PGresult *result = PQexec(conn, query);
	char	 *value;

	if (PQresultStatus(result) != PGRES_TUPLES_OK || PQntuples(result) != 1)
		give_up("%s: %s", query, PQerrorMessage(conn));
	value = strdup(PQgetvalue(result, 0, 0));
	PQclear(result);
	return value;
}

bool
becomes_true(PGconn *conn, const char *query)
{
	double end = seconds_now() + 10.0;

	for (;;)
	{
		char *value = must_query(conn, query);
		bool  is_true = strcmp(value, "t") == 0;

		free(value);
		if (is_true || seconds_now() > end)
			return is_true;
		sleep_seconds(0.005);
	}
}

IdemkitError *
test_error(void)
{
	static IdemkitError *error;

	if (error == NULL)
		error = idemkit_error_create();
	return error;
}

const char *
new_key(const char *what)
{
	static char buffers[16][128];
	static int	count;
	char	   *buffer = buffers[count % 16];

	snprintf(buffer, sizeof(buffers[0]), "%s-%d-%d", what, (int) getpid(), count++);
	return buffer;
}

const char *
must_claim(PGconn *conn, const char *key, double lease_seconds)
{
	static char	  token[64];
	IdemkitClaim *claim;

	if (idemkit_claim(conn, key, NULL, 1, lease_seconds, true, NULL, &claim, test_error()) !=
		IDEMKIT_OK)
		give_up("claim: %s", idemkit_error_message(test_error()));
	if (idemkit_claim_our_token(claim) == NULL)
		give_up("claim of %s was not won", key);
	snprintf(token, sizeof(token), "%s", idemkit_claim_our_token(claim));
	idemkit_claim_free(claim);
	return token;
}

void
must_complete(PGconn *conn, const char *key, const char *token, const char *body)
{
	bool done = false;

	if (idemkit_complete(conn, key, token, NULL, NULL, body, strlen(body), 3600.0, NULL, &done,
						 test_error()) != IDEMKIT_OK ||
		!done)
		give_up("complete: %s", idemkit_error_message(test_error()));
}

void
must_release(PGconn *conn, const char *key, const char *token)
{
	bool done = false;

	if (idemkit_release(conn, key, token, false, NULL, &done, test_error()) != IDEMKIT_OK || !done)
		give_up("release: %s", idemkit_error_message(test_error()));
}

void
note_ended(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
		   const IdemkitError *error)
{
	Ended *ended = arg;

	ended->at = seconds_now();
	ended->times++;
	ended->outcome = outcome;
	idemkit_record_free(ended->record);
	ended->record = idemkit_record_ref(record);
	ended->error = idemkit_error_status(error);
	snprintf(ended->sqlstate, sizeof(ended->sqlstate), "%s", idemkit_error_sqlstate(error));
	snprintf(ended->message, sizeof(ended->message), "%s", idemkit_error_message(error));
}

void
reset_ended(Ended *ended)
{
	idemkit_record_free(ended->record);
	memset(ended, 0, sizeof(*ended));
}

const char *
ended_body(const Ended *ended)
{
	const char *body;

	if (ended->record == NULL)
		return "(no record)";
	body = idemkit_record_response_body(ended->record, NULL);
	return body != NULL ? body : "(no body)";
}

IdemkitWaiter *
must_create(const char *conninfo, const IdemkitWaiterOptions *options)
{
	IdemkitWaiter *waiter;

	if (idemkit_waiter_create(conninfo, options, &waiter, test_error()) != IDEMKIT_OK)
		give_up("waiter: %s", idemkit_error_message(test_error()));
	return waiter;
}

void
must_submit(IdemkitWaiter *waiter, const char *key, double timeout_seconds, Ended *ended)
{
	if (idemkit_waiter_submit(waiter, key, timeout_seconds, note_ended, ended, NULL,
							  test_error()) != IDEMKIT_OK)
		give_up("submit: %s", idemkit_error_message(test_error()));
}

void
turn(IdemkitWaiter *waiter, double at_most_seconds)
{
	struct pollfd ready = {.fd = idemkit_waiter_socket(waiter)};
	int			  events = idemkit_waiter_events(waiter);
	int			  timeout = idemkit_waiter_timeout_ms(waiter);
	int			  at_most = (int) (at_most_seconds * 1000.0) + 1;

	if (events & IDEMKIT_EVENT_READ)
		ready.events |= POLLIN;
	if (events & IDEMKIT_EVENT_WRITE)
		ready.events |= POLLOUT;
	poll(&ready, 1, timeout < 0 || timeout > at_most ? at_most : timeout);
	idemkit_waiter_process(waiter);
}

bool
turn_until(IdemkitWaiter *waiter, const int *counter, int value, double seconds)
{
	double end = seconds_now() + seconds;

	while (*counter < value && seconds_now() < end)
		turn(waiter, end - seconds_now());
	return *counter >= value;
}

bool
turn_until_counter(IdemkitWaiter *waiter, IdemkitCounter counter, uint64_t value, double seconds)
{
	double end = seconds_now() + seconds;

	while (idemkit_waiter_counter(waiter, counter) < value && seconds_now() < end)
		turn(waiter, 0.01);
	return idemkit_waiter_counter(waiter, counter) >= value;
}

void
turn_for(IdemkitWaiter *waiter, double seconds)
{
	double end = seconds_now() + seconds;

	while (seconds_now() < end)
		turn(waiter, end - seconds_now());
}
