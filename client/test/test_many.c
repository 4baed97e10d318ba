/*
 * test_many.c - ten thousand waits on one connection
 *
 * All end, none twice, in whatever order their keys are completed; how many queries
 * they take while they wait; what they cost in memory. Beside that, and without
 * judging it, how long it takes from a commit to the callback, and how long a bare
 * LISTEN and NOTIFY takes in the same run.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "support.h"

enum
{
	MOST = 10000,
	SAMPLES = 1000
};

static PGconn *conn;
static int	   count;
static int	   ended_count;

/* A wait, by the number in its key. */
typedef struct Many
{
	int	   times;
	bool   right;
	double at;
} Many;

static Many many[MOST];

static void
many_ended(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
		   const IdemkitError *error)
{
	Many *one = arg;
	char  expected[32];

	(void) error;
	snprintf(expected, sizeof(expected), "body %d", (int) (one - many));
	one->at = seconds_now();
	one->times++;
	one->right = outcome == IDEMKIT_OUTCOME_COMPLETED &&
				 strcmp(idemkit_record_response_body(record, NULL), expected) == 0;
	ended_count++;
}

/*
 * Resident memory in bytes.
 */
static long
resident(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	char  line[200] = "";
	char *second;

	if (file == NULL || fgets(line, sizeof(line), file) == NULL)
		give_up("/proc/self/statm");
	fclose(file);
	(void) strtol(line, &second, 10);
	return strtol(second, NULL, 10) * sysconf(_SC_PAGESIZE);
}

static void
submit_many(IdemkitWaiter *waiter, int first, int after)
{
	char key[32];

	for (int i = first; i < after; i++)
	{
		snprintf(key, sizeof(key), "many-%d", i);
		if (idemkit_waiter_submit(waiter, key, 600.0, many_ended, &many[i], NULL, NULL) !=
			IDEMKIT_OK)
			give_up("submit");
	}
}

/*
 * Queries and keys read per second while nothing happens, once the re-reading has
 * slowed down.
 */
static void
count_queries(IdemkitWaiter *waiter, double *queries, double *keys)
{
	const double seconds = 4.0;

	turn_for(waiter, 3.0);
	*queries = (double) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_QUERIES);
	*keys = (double) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_KEYS_READ);
	turn_for(waiter, seconds);
	*queries =
		((double) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_QUERIES) - *queries) / seconds;
	*keys = ((double) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_KEYS_READ) - *keys) / seconds;
}

static void
test_idle(IdemkitWaiter *waiter)
{
	double few;
	double queries;
	double keys;
	long   before;
	double each;

	submit_many(waiter, 0, 10);
	count_queries(waiter, &few, &keys);
	before = resident();
	submit_many(waiter, 10, count);
	turn_for(waiter, 1.0);
	each = (double) (resident() - before) / (count - 10);
	count_queries(waiter, &queries, &keys);
	is_int((int64_t) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_WAITS), count,
		   "%d waits are pending", count);
	note("%.2f queries a second for 10 waits, %.2f for %d, which read %.0f keys", few, queries,
		 count, keys);
	ok(few <= 2.0 && queries <= 2.0, "queries per second do not grow with the waits");
	ok(keys >= 0.5 * count, "and read all keys");
	note("%.0f bytes of memory for each wait", each);
	if (slowness() <= 1.0)
		ok(each < 2048.0, "a wait takes less than 2 kB");
	is_int(ended_count, 0, "none has ended yet");
}

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *) a;
	double y = *(const double *) b;

	return (x > y) - (x < y);
}

static double
quantile(double *values, int n, double q)
{
	qsort(values, (size_t) n, sizeof(*values), compare_doubles);
	return values[(int) (q * (n - 1))] * 1e6;
}

/*
 * From sending the COMMIT of a completion to the callback.
 */
static double
time_completion(IdemkitWaiter *waiter, int which)
{
	char   sql[200];
	double begun;

	must_execute(conn, "BEGIN");
	snprintf(sql, sizeof(sql),
			 "SELECT idemkit_complete('many-%d', (SELECT claim_token FROM idemkit_records WHERE "
			 "effective_key = 'many-%d'), response_body => 'body %d')",
			 which, which, which);
	must_execute(conn, sql);
	begun = seconds_now();
	must_execute(conn, "COMMIT");
	if (!turn_until(waiter, &many[which].times, 1, 20.0))
		give_up("a completion was not heard of");
	return many[which].at - begun;
}

/*
 * From sending the COMMIT of a NOTIFY to having the notification. A row is written
 * as well, so that this COMMIT has to reach the disk like the other.
 */
static double
time_notification(PGconn *listener)
{
	PGnotify *notify;
	double	  begun;

	must_execute(conn, "BEGIN; UPDATE bare SET n = n + 1; NOTIFY bare, 'payload'");
	begun = seconds_now();
	must_execute(conn, "COMMIT");
	while ((notify = PQnotifies(listener)) == NULL)
	{
		struct pollfd ready = {.fd = PQsocket(listener), .events = POLLIN};

		poll(&ready, 1, -1);
		if (PQconsumeInput(listener) == 0)
			give_up("the listener is lost");
	}
	PQfreemem(notify);
	return seconds_now() - begun;
}

static void
compare_latency(IdemkitWaiter *waiter, const int *order)
{
	static double ours[SAMPLES];
	static double bare[SAMPLES];
	PGconn		 *listener = must_connect();
	int			  samples = count / 10 < SAMPLES ? count / 10 : SAMPLES;
	double		  our_median;
	double		  bare_median;

	must_execute(conn, "CREATE TABLE bare AS SELECT 0 AS n");
	must_execute(listener, "LISTEN bare");
	for (int i = 0; i < samples; i++)
	{
		ours[i] = time_completion(waiter, order[i]);
		bare[i] = time_notification(listener);
		/* neither may pile up work for the other */
		turn(waiter, 0.0);
	}
	our_median = quantile(ours, samples, 0.5);
	bare_median = quantile(bare, samples, 0.5);
	note("%d samples, %d waits pending, microseconds from COMMIT:", samples, count);
	note("callback of a wait     p50 %5.0f  p90 %5.0f  p99 %5.0f", our_median,
		 quantile(ours, samples, 0.9), quantile(ours, samples, 0.99));
	note("bare LISTEN and NOTIFY p50 %5.0f  p90 %5.0f  p99 %5.0f", bare_median,
		 quantile(bare, samples, 0.9), quantile(bare, samples, 0.99));
	note("p50 ratio %.2f", our_median / bare_median);
	is_int(ended_count, samples, "each of %d completions ended its wait", samples);
	PQfinish(listener);
}

static void
shuffle(int *order)
{
	uint64_t random = 1;

	for (int i = 0; i < count; i++)
		order[i] = i;
	for (int i = count - 1; i > 0; i--)
	{
		int j = (int) (idemkit_random_next(&random) % (uint64_t) (i + 1));
		int kept = order[i];

		order[i] = order[j];
		order[j] = kept;
	}
}

/*
 * The rest, completed in bursts of every size, in random order.
 */
static void
complete_rest(IdemkitWaiter *waiter)
{
	const char *const sql =
		"SELECT count(*) FROM (SELECT idemkit_complete(effective_key, claim_token, response_body "
		"=> convert_to('body ' || substr(effective_key, 6), 'UTF8')) AS done FROM (SELECT * FROM "
		"idemkit_records WHERE effective_key LIKE 'many-%%' AND state = 'CLAIMED' ORDER BY "
		"random() LIMIT %d) AS picked) AS results WHERE done";
	char   query[500];
	double begun = seconds_now();

	for (int left = count - ended_count, burst = 1; left > 0; burst = burst * 3 + 1)
	{
		char *done;

		snprintf(query, sizeof(query), sql, burst);
		done = must_query(conn, query);
		left -= (int) strtol(done, NULL, 10);
		free(done);
		turn(waiter, 0.0);
	}
	turn_until(waiter, &ended_count, count, 30.0 * slowness());
	note("%d bursts' worth of waits ended %.3f s after the first was begun", count,
		 seconds_now() - begun);
}

int
main(void)
{
	static int	   order[MOST];
	IdemkitWaiter *waiter;
	char		   sql[200];
	int			   once = 0;
	int			   right = 0;

	count = (int) (MOST / slowness());
	conn = must_connect();
	snprintf(sql, sizeof(sql),
			 "SELECT count(idemkit_claim('many-' || i, lease_ttl_seconds => 3600)) FROM "
			 "generate_series(0, %d) AS i",
			 count - 1);
	must_execute(conn, sql);
	must_execute(conn, "ANALYZE idemkit_records");
	waiter = must_create("", NULL);
	test_idle(waiter);
	shuffle(order);
	compare_latency(waiter, order);
	complete_rest(waiter);
	for (int i = 0; i < count; i++)
	{
		once += many[i].times == 1;
		right += many[i].right;
	}
	is_int(once, count, "all %d waits ended, none twice", count);
	is_int(right, count, "each with the result of its own key");
	is_int((int64_t) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_WAITS), 0, "none is left");
	is_int((int64_t) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_CONNECTIONS), 1,
		   "on one connection");
	idemkit_waiter_destroy(waiter);
	PQfinish(conn);
	return finish();
}
