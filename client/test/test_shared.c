/*
 * test_shared.c - the blocking wait from many threads
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "support.h"

enum
{
	THREADS = 24,
	ROUNDS = 6
};

/* One thread, and what it is to do and found. */
typedef struct Worker
{
	pthread_t			 thread;
	IdemkitSharedWaiter *waiter;
	int					 number;
	char				 key[128];
	double				 timeout;
	IdemkitStatus		 status;
	IdemkitOutcome		 outcome;
	const IdemkitRecord *record;
	double				 took;
	atomic_int			 wrong;
	atomic_int			 done;
} Worker;

static PGconn *conn;

static IdemkitSharedWaiter *
must_create_shared(const char *conninfo)
{
	IdemkitSharedWaiter *waiter;

	if (idemkit_shared_waiter_create(conninfo, NULL, &waiter, test_error()) != IDEMKIT_OK)
		give_up("shared waiter: %s", idemkit_error_message(test_error()));
	return waiter;
}

static void
start(Worker *worker, void *(*work)(void *) )
{
	if (pthread_create(&worker->thread, NULL, work, worker) != 0)
		give_up("pthread_create");
}

/*
 * One wait, with all that is known of its end.
 */
static void *
wait_once(void *arg)
{
	Worker		 *worker = arg;
	IdemkitError *error = idemkit_error_create();
	double		  begun = seconds_now();

	worker->status = idemkit_shared_wait(worker->waiter, worker->key, worker->timeout,
										 &worker->outcome, &worker->record, error);
	worker->took = seconds_now() - begun;
	idemkit_error_free(error);
	return NULL;
}

static void
test_arguments(void)
{
	IdemkitSharedWaiter *waiter = must_create_shared("host=/nowhere");
	IdemkitOutcome		 outcome;
	double				 begun = seconds_now();

	is_int(idemkit_shared_wait(waiter, "", 1.0, &outcome, NULL, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "an empty key is refused");
	is_int(idemkit_shared_wait(waiter, "k", 1.0, NULL, NULL, test_error()), IDEMKIT_ERROR_ARGUMENT,
		   "so is no place for the outcome");
	is_int(idemkit_shared_wait(waiter, "k", 0.2, &outcome, NULL, test_error()), IDEMKIT_OK,
		   "without a server a wait ends well");
	is_int(outcome, IDEMKIT_OUTCOME_TIMEOUT, "by its deadline");
	ok(seconds_now() - begun < 0.2 + 0.3 * slowness(), "in time");
	ok(strstr(idemkit_error_message(test_error()), "/nowhere") != NULL, "and says why");
	idemkit_shared_waiter_destroy(waiter);
	is_int(idemkit_shared_waiter_create("a=b=c", NULL, &waiter, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "a malformed connection string is refused");
}

static void
test_one_thread(void)
{
	IdemkitSharedWaiter *waiter = must_create_shared("application_name=alone");
	const IdemkitRecord *record;
	IdemkitOutcome		 outcome;

	for (int i = 0; i < 20; i++)
	{
		const char *key = new_key("alone");
		char		body[32];

		snprintf(body, sizeof(body), "%d", i);
		must_complete(conn, key, must_claim(conn, key, 30.0), body);
		if (idemkit_shared_wait(waiter, key, 10.0, &outcome, &record, test_error()) != IDEMKIT_OK ||
			outcome != IDEMKIT_OUTCOME_COMPLETED ||
			strcmp(idemkit_record_response_body(record, NULL), body) != 0)
			give_up("a wait of one thread");
		idemkit_record_free(record);
	}
	is_int((int64_t) idemkit_shared_waiter_counter(waiter, IDEMKIT_COUNTER_CONNECTIONS), 1,
		   "one wait after another, on one connection");
	ok(becomes_true(conn, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = "
						  "'alone' AND state = 'idle' AND query = 'UNLISTEN *'"),
	   "which does not listen while nobody waits");
	is_int(idemkit_shared_wait(waiter, new_key("none"), 10.0, &outcome, NULL, test_error()),
		   IDEMKIT_OK, "a wait without a place for the record");
	is_int(outcome, IDEMKIT_OUTCOME_ABSENT, "absent");
	idemkit_shared_waiter_destroy(waiter);
	waiter = must_create_shared("dbname=no_such_database");
	is_int(idemkit_shared_wait(waiter, "k", 10.0, &outcome, &record, test_error()),
		   IDEMKIT_ERROR_SERVER, "an error of the server is a status");
	is_text(idemkit_error_sqlstate(test_error()), "3D000", "with its SQLSTATE");
	idemkit_shared_waiter_destroy(waiter);
}

/*
 * Threads that wait for keys of their own, completed in another order.
 */
static void
test_many_threads(IdemkitSharedWaiter *waiter)
{
	static Worker workers[THREADS];
	static char	  tokens[THREADS][64];
	int			  right = 0;

	for (int i = 0; i < THREADS; i++)
	{
		Worker *worker = &workers[i];

		memset(worker, 0, sizeof(*worker));
		worker->waiter = waiter;
		worker->timeout = 30.0;
		snprintf(worker->key, sizeof(worker->key), "%s", new_key("threads"));
		snprintf(tokens[i], sizeof(tokens[i]), "%s", must_claim(conn, worker->key, 60.0));
		start(worker, wait_once);
	}
	while (idemkit_shared_waiter_counter(waiter, IDEMKIT_COUNTER_WAITS) < THREADS)
		sleep_seconds(0.001);
	/* the first to come drives; end it first, then every seventh */
	for (int i = 0; i < THREADS; i++)
	{
		int which = i * 7 % THREADS;

		must_complete(conn, workers[which].key, tokens[which], workers[which].key);
	}
	for (int i = 0; i < THREADS; i++)
	{
		Worker *worker = &workers[i];

		(void) pthread_join(worker->thread, NULL);
		if (worker->status == IDEMKIT_OK && worker->outcome == IDEMKIT_OUTCOME_COMPLETED &&
			strcmp(idemkit_record_response_body(worker->record, NULL), worker->key) == 0)
			right++;
		idemkit_record_free(worker->record);
	}
	is_int(right, THREADS, "every thread gets the result of its own key");
	is_int((int64_t) idemkit_shared_waiter_counter(waiter, IDEMKIT_COUNTER_CONNECTIONS), 1,
		   "on one connection");
}

/*
 * Each driver's wait ends before those of the threads that sleep: the driving is
 * handed on, and nobody oversleeps.
 */
static void
test_handing_on(IdemkitSharedWaiter *waiter)
{
	static Worker workers[THREADS];
	const char	 *key = new_key("handing");
	double		  worst = 0.0;
	int			  right = 0;

	must_claim(conn, key, 60.0);
	for (int i = 0; i < THREADS; i++)
	{
		memset(&workers[i], 0, sizeof(workers[i]));
		workers[i].waiter = waiter;
		workers[i].timeout = 0.2 + 0.03 * i;
		snprintf(workers[i].key, sizeof(workers[i].key), "%s", key);
		start(&workers[i], wait_once);
	}
	for (int i = 0; i < THREADS; i++)
	{
		double late;

		(void) pthread_join(workers[i].thread, NULL);
		late = workers[i].took - workers[i].timeout;
		if (workers[i].status == IDEMKIT_OK && workers[i].outcome == IDEMKIT_OUTCOME_TIMEOUT &&
			late >= 0.0)
			right++;
		if (late > worst)
			worst = late;
		idemkit_record_free(workers[i].record);
	}
	is_int(right, THREADS, "each thread waits until its own deadline");
	ok(worst < 0.2 * slowness(), "and no longer: at most %.1f ms", worst * 1000.0);
}

/*
 * A driver whose own wait has come to be read once a second takes up what others
 * submit at once, and keeps their deadlines.
 */
static void
test_submit_to_driver(IdemkitSharedWaiter *waiter)
{
	static Worker driver;
	const char	 *key = new_key("driver");
	double		  worst_answer = 0.0;
	double		  worst_timeout = 0.0;

	must_claim(conn, key, 60.0);
	memset(&driver, 0, sizeof(driver));
	driver.waiter = waiter;
	driver.timeout = 5.0;
	snprintf(driver.key, sizeof(driver.key), "%s", key);
	start(&driver, wait_once);
	sleep_seconds(2.0);
	for (int i = 0; i < 10; i++)
	{
		IdemkitOutcome outcome;
		double		   begun = seconds_now();

		if (idemkit_shared_wait(waiter, new_key("none"), 10.0, &outcome, NULL, NULL) !=
				IDEMKIT_OK ||
			outcome != IDEMKIT_OUTCOME_ABSENT)
			give_up("a wait beside a driver");
		if (seconds_now() - begun > worst_answer)
			worst_answer = seconds_now() - begun;
		begun = seconds_now();
		if (idemkit_shared_wait(waiter, key, 0.05, &outcome, NULL, NULL) != IDEMKIT_OK ||
			outcome != IDEMKIT_OUTCOME_TIMEOUT)
			give_up("a short wait beside a driver");
		if (seconds_now() - begun - 0.05 > worst_timeout)
			worst_timeout = seconds_now() - begun - 0.05;
	}
	(void) pthread_join(driver.thread, NULL);
	idemkit_record_free(driver.record);
	ok(worst_answer < 0.2 * slowness(), "a driver takes up new waits at once: %.1f ms",
	   worst_answer * 1000.0);
	ok(worst_timeout < 0.2 * slowness(), "and keeps their deadlines: %.1f ms late",
	   worst_timeout * 1000.0);
}

static double
cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double) (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		   (double) (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void
test_idle(IdemkitSharedWaiter *waiter)
{
	static Worker workers[THREADS];
	const char	 *key = new_key("idle");
	double		  cpu = cpu_seconds();
	uint64_t	  queries;

	must_claim(conn, key, 60.0);
	queries = idemkit_shared_waiter_counter(waiter, IDEMKIT_COUNTER_QUERIES);
	for (int i = 0; i < THREADS; i++)
	{
		memset(&workers[i], 0, sizeof(workers[i]));
		workers[i].waiter = waiter;
		workers[i].timeout = 2.0;
		snprintf(workers[i].key, sizeof(workers[i].key), "%s", key);
		start(&workers[i], wait_once);
	}
	for (int i = 0; i < THREADS; i++)
	{
		(void) pthread_join(workers[i].thread, NULL);
		idemkit_record_free(workers[i].record);
	}
	cpu = cpu_seconds() - cpu;
	queries = idemkit_shared_waiter_counter(waiter, IDEMKIT_COUNTER_QUERIES) - queries;
	ok(cpu < 0.3 * slowness(), "%d threads that wait 2 s use %.3f s of processor", THREADS, cpu);
	ok(queries <= 20, "and %d queries", (int) queries);
}

/*
 * Short waits of random length and kind, begun and ended in every order, so that a
 * wake-up that is lost would show: a thread would stay until its deadline or for
 * ever.
 */
static void *
wait_at_random(void *arg)
{
	Worker	*worker = arg;
	unsigned random = (unsigned) worker->number * 2654435761u + 1;
	double	 end = seconds_now() + 3.0;

	while (seconds_now() < end)
	{
		IdemkitOutcome outcome;
		char		   key[160];
		double		   timeout = 10.0;
		double		   begun = seconds_now();

		random = random * 1664525u + 1013904223u;
		if (random >> 31 != 0)
		{
			/* claimed by nobody: ends by its answer */
			snprintf(key, sizeof(key), "none %u", random);
		}
		else
		{
			/* claimed: ends by its deadline */
			snprintf(key, sizeof(key), "%s", worker->key);
			timeout = (random >> 20 & 15) / 1000.0;
		}
		if (idemkit_shared_wait(worker->waiter, key, timeout, &outcome, NULL, NULL) != IDEMKIT_OK ||
			seconds_now() - begun > 1.0 * slowness())
			atomic_fetch_add(&worker->wrong, 1);
		atomic_fetch_add(&worker->done, 1);
	}
	return NULL;
}

static void
test_stress(IdemkitSharedWaiter *waiter)
{
	static Worker workers[THREADS];
	const char	 *key = new_key("stress");
	int			  wrong = 0;
	int			  done = 0;

	must_claim(conn, key, 60.0);
	for (int i = 0; i < THREADS; i++)
	{
		memset(&workers[i], 0, sizeof(workers[i]));
		workers[i].waiter = waiter;
		workers[i].number = i;
		snprintf(workers[i].key, sizeof(workers[i].key), "%s", key);
		start(&workers[i], wait_at_random);
	}
	for (int i = 0; i < THREADS; i++)
	{
		(void) pthread_join(workers[i].thread, NULL);
		wrong += atomic_load(&workers[i].wrong);
		done += atomic_load(&workers[i].done);
	}
	is_int(wrong, 0, "no wait failed or overslept");
	ok(done > THREADS * 10, "of %d", done);
}

static void
test_destroy(void)
{
	for (int round = 0; round < ROUNDS; round++)
	{
		static Worker		 workers[THREADS];
		IdemkitSharedWaiter *waiter = must_create_shared("");
		const char			*key = new_key("destroy");
		int					 right = 0;

		must_claim(conn, key, 60.0);
		for (int i = 0; i < THREADS; i++)
		{
			memset(&workers[i], 0, sizeof(workers[i]));
			workers[i].waiter = waiter;
			workers[i].timeout = 30.0;
			snprintf(workers[i].key, sizeof(workers[i].key), "%s", key);
			start(&workers[i], wait_once);
		}
		while (idemkit_shared_waiter_counter(waiter, IDEMKIT_COUNTER_WAITS) < THREADS)
			sleep_seconds(0.001);
		idemkit_shared_waiter_destroy(waiter);
		for (int i = 0; i < THREADS; i++)
		{
			(void) pthread_join(workers[i].thread, NULL);
			if (workers[i].status == IDEMKIT_OK && workers[i].outcome == IDEMKIT_OUTCOME_CLOSED &&
				workers[i].took < 10.0)
				right++;
			idemkit_record_free(workers[i].record);
		}
		is_int(right, THREADS, "destroy ends the waits of all threads");
	}
}

int
main(void)
{
	IdemkitSharedWaiter *waiter;

	conn = must_connect();
	test_arguments();
	test_one_thread();
	waiter = must_create_shared("");
	for (int round = 0; round < ROUNDS; round++)
		test_many_threads(waiter);
	test_handing_on(waiter);
	test_submit_to_driver(waiter);
	test_idle(waiter);
	test_stress(waiter);
	idemkit_shared_waiter_destroy(waiter);
	test_destroy();
	PQfinish(conn);
	idemkit_error_free(test_error());
	return finish();
}
