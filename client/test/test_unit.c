/*
 * test_unit.c - what needs no server: arguments, errors, options, and the
 * collection of waits under random use
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "clock.h"
#include "error.h"
#include "support.h"
#include "waits.h"

static void
test_names(void)
{
	is_int(idemkit_version(), 10000, "version");
	is_text(idemkit_status_text(IDEMKIT_OK), "no error", "status text");
	is_text(idemkit_status_text((IdemkitStatus) 999), "unknown status", "unknown status text");
	is_text(idemkit_outcome_name(IDEMKIT_OUTCOME_LAPSED), "lapsed", "outcome name");
	is_text(idemkit_verdict_name(IDEMKIT_LEASE_LAPSED), "lease_lapsed", "verdict name");
	is_text(idemkit_state_name(IDEMKIT_STATE_CLAIMED), "CLAIMED", "state name");
}

static void
test_errors(void)
{
	IdemkitError *error = idemkit_error_create();
	char		  longer[2000];

	is_text(idemkit_error_message(NULL), "", "a NULL error reads as empty");
	is_int(idemkit_error_status(NULL), IDEMKIT_OK, "and as no error");
	idemkit_error_set(NULL, IDEMKIT_ERROR_SYSTEM, "nobody wants to know");

	idemkit_error_set(error, IDEMKIT_ERROR_SYSTEM, "line one\nline two\n");
	is_text(idemkit_error_message(error), "line one line two", "a message is one line");

	/* two-byte characters that do not fit evenly */
	memset(longer, 'x', sizeof(longer));
	for (size_t i = 1; i + 1 < sizeof(longer); i += 2)
		memcpy(longer + i, "\303\244", 2);
	longer[sizeof(longer) - 1] = '\0';
	idemkit_error_set(error, IDEMKIT_ERROR_SYSTEM, longer);
	is_int((int64_t) strlen(idemkit_error_message(error)), IDEMKIT_ERROR_TEXT_BYTES - 1,
		   "a long message is cut");
	idemkit_error_set(error, IDEMKIT_ERROR_SYSTEM, longer + 1);
	is_int((int64_t) strlen(idemkit_error_message(error)), IDEMKIT_ERROR_TEXT_BYTES - 2,
		   "between characters");
	idemkit_error_clear(error);
	is_int(idemkit_error_status(error), IDEMKIT_OK, "cleared");
	idemkit_error_free(error);
	idemkit_error_free(NULL);
	idemkit_record_free(NULL);
	idemkit_claim_free(NULL);
	idemkit_waiter_destroy(NULL);
	idemkit_shared_waiter_destroy(NULL);
	idemkit_waiter_options_free(NULL);
}

static void
test_options(void)
{
	IdemkitWaiterOptions *options = idemkit_waiter_options_create();

	is_int(idemkit_waiter_options_set_connect_timeout(options, 0.0), IDEMKIT_ERROR_ARGUMENT,
		   "no connect timeout of 0");
	is_int(idemkit_waiter_options_set_query_timeout(options, NAN), IDEMKIT_ERROR_ARGUMENT,
		   "no query timeout of NaN");
	is_int(idemkit_waiter_options_set_query_timeout(options, INFINITY), IDEMKIT_ERROR_ARGUMENT,
		   "none without end");
	is_int(idemkit_waiter_options_set_reconnect(options, 2.0, 1.0), IDEMKIT_ERROR_ARGUMENT,
		   "no longest pause below the shortest");
	is_int(idemkit_waiter_options_set_listen(options, (IdemkitListen) 9), IDEMKIT_ERROR_ARGUMENT,
		   "no unknown way to listen");
	is_int(idemkit_waiter_options_set_records(NULL, "t"), IDEMKIT_ERROR_ARGUMENT,
		   "no NULL options");
	is_int(idemkit_waiter_options_set_records(options, "t"), IDEMKIT_OK, "records");
	is_int(idemkit_waiter_options_set_records(options, NULL), IDEMKIT_OK, "records taken back");
	is_int(idemkit_waiter_options_set_reconnect(options, 0.01, 0.01), IDEMKIT_OK, "reconnect");
	idemkit_waiter_options_free(options);
}

static void
refuse_key(IdemkitWaiter *waiter, const char *key, const char *why)
{
	Ended ended = {0};

	is_int(idemkit_waiter_submit(waiter, key, 1.0, note_ended, &ended, NULL, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "refused: %s", why);
}

static void
test_waiter_arguments(void)
{
	IdemkitWaiter *waiter;
	IdemkitWaitId  id = 0;
	Ended		   ended = {0};
	char		   key[IDEMKIT_MAX_KEY_BYTES + 2];

	is_int(idemkit_waiter_create("host=x nonsense", NULL, &waiter, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "a malformed connection string is refused");
	ok(strlen(idemkit_error_message(test_error())) > 0, "with a message");
	is_int(idemkit_waiter_create("postgresql://[::1/x", NULL, &waiter, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "a malformed URI too");
	waiter = must_create("host=/nowhere", NULL);
	is_int(idemkit_waiter_socket(waiter), -1, "no socket before the first wait");
	is_int(idemkit_waiter_timeout_us(waiter), -1, "nor anything due");
	is_int(idemkit_waiter_process(waiter), IDEMKIT_OK, "process is legal nevertheless");
	is_int((int64_t) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_FAILURES), 0,
		   "and does not connect");

	refuse_key(waiter, NULL, "no key");
	refuse_key(waiter, "", "an empty key");
	memset(key, 'k', sizeof(key));
	key[IDEMKIT_MAX_KEY_BYTES + 1] = '\0';
	refuse_key(waiter, key, "1025 bytes");
	refuse_key(waiter, "a\377", "no UTF-8");
	refuse_key(waiter, "\300\200", "overlong");
	refuse_key(waiter, "\355\240\200", "a surrogate");
	refuse_key(waiter, "\364\220\200\200", "beyond Unicode");
	refuse_key(waiter, "\342\202", "cut off");
	is_int(idemkit_waiter_submit(waiter, "k", -1.0, note_ended, &ended, NULL, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "refused: a negative timeout");
	is_int(idemkit_waiter_submit(waiter, "k", NAN, note_ended, &ended, NULL, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "refused: NaN");
	is_int(idemkit_waiter_submit(waiter, "k", 1e12, note_ended, &ended, NULL, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "refused: for ever");
	is_int(idemkit_waiter_submit(waiter, "k", 1.0, NULL, NULL, NULL, test_error()),
		   IDEMKIT_ERROR_ARGUMENT, "refused: no callback");
	is_int((int64_t) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_WAITS), 0, "no wait is left");

	key[IDEMKIT_MAX_KEY_BYTES] = '\0';
	is_int(idemkit_waiter_submit(waiter, key, 1.0, note_ended, &ended, &id, test_error()),
		   IDEMKIT_OK, "1024 bytes are legal");
	is_int(idemkit_waiter_timeout_us(waiter), 0, "process is due at once");
	is_int(idemkit_waiter_cancel(waiter, id), IDEMKIT_OK, "cancelled");
	is_int(idemkit_waiter_cancel(waiter, id), IDEMKIT_ERROR_NOT_FOUND, "only once");
	must_submit(waiter, "\360\237\230\200 \303\244", 60.0, &ended);
	idemkit_waiter_destroy(waiter);
	is_int(ended.times, 1, "destroy ends the wait");
	is_int(ended.outcome, IDEMKIT_OUTCOME_CLOSED, "as closed");
}

static void
submit_when_closed(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
				   const IdemkitError *error)
{
	static Ended other;

	(void) outcome;
	(void) record;
	(void) error;
	is_int(idemkit_waiter_submit(arg, "more", 1.0, note_ended, &other, NULL, test_error()),
		   IDEMKIT_ERROR_CLOSED, "no wait is taken by a waiter being destroyed");
	is_int(idemkit_waiter_process(arg), IDEMKIT_ERROR_BUSY, "which can not be processed either");
	idemkit_waiter_destroy(arg);
}

static void
test_destroy(void)
{
	IdemkitWaiter *waiter = must_create("host=/nowhere", NULL);

	(void) !idemkit_waiter_submit(waiter, "k", 60.0, submit_when_closed, waiter, NULL, NULL);
	idemkit_waiter_destroy(waiter);
	ok(true, "destroying twice at once does no harm");
}

/*
 * Without a server a wait ends by its deadline, and says why.
 */
static void
test_nobody_there(void)
{
	IdemkitWaiter *waiter = must_create("host=/nowhere", NULL);
	Ended		   ended = {0};
	double		   begun = seconds_now();

	must_submit(waiter, "k", 0.4, &ended);
	ok(turn_until(waiter, &ended.times, 1, 5.0 * slowness()), "a wait without a server ends");
	is_int(ended.outcome, IDEMKIT_OUTCOME_TIMEOUT, "as timeout");
	ok(ended.at - begun >= 0.4 && ended.at - begun < 0.5 * slowness(), "by its deadline: %.3f s",
	   ended.at - begun);
	is_int(ended.error, IDEMKIT_ERROR_CONNECTION, "with an error");
	ok(strstr(ended.message, "/nowhere") != NULL, "that tells: %s", ended.message);
	ok(idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_FAILURES) >= 2 &&
		   idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_FAILURES) <= 8,
	   "connecting was tried again, with pauses");
	is_int(idemkit_waiter_timeout_us(waiter), -1, "and is not when nobody waits");
	idemkit_waiter_destroy(waiter);
}

static int
compare_times(const void *a, const void *b)
{
	int64_t x = *(const int64_t *) a;
	int64_t y = *(const int64_t *) b;

	return (x > y) - (x < y);
}

/*
 * Deadlines come out of the heap in order, whatever was taken out between.
 */
static void
test_heap(void)
{
	enum
	{
		COUNT = 2000
	};
	static IdemkitHeapNode nodes[COUNT];
	static int64_t		   expected[COUNT];
	IdemkitHeap			   heap = {0};
	uint64_t			   random = 42;
	int					   kept = 0;
	bool				   in_order = true;

	(void) idemkit_heap_reserve(&heap, COUNT);
	for (int i = 0; i < COUNT; i++)
		idemkit_heap_add(&heap, &nodes[i], (int64_t) (idemkit_random_next(&random) % 1000));
	for (int i = 0; i < COUNT; i++)
	{
		if (idemkit_random_next(&random) % 3 == 0)
			idemkit_heap_remove(&heap, &nodes[i]);
		else
			expected[kept++] = nodes[i].when;
	}
	qsort(expected, (size_t) kept, sizeof(expected[0]), compare_times);
	is_int((int64_t) heap.count, kept, "the heap has what was not taken out");
	for (int i = 0; i < kept; i++)
	{
		IdemkitHeapNode *first = idemkit_heap_first(&heap);

		in_order = in_order && first->when == expected[i];
		idemkit_heap_remove(&heap, first);
	}
	ok(in_order, "and gives it in order");
	ok(idemkit_heap_first(&heap) == NULL, "until it is empty");
	idemkit_heap_free(&heap);
}

static void
never_called(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
			 const IdemkitError *error)
{
	(void) arg;
	(void) outcome;
	(void) record;
	(void) error;
}

/*
 * Waits that come, end and are looked up in random order, for keys that many
 * share: nothing is lost, nothing is left.
 */
static void
test_waits(void)
{
	enum
	{
		COUNT = 5000,
		KEYS = 700
	};
	static IdemkitWaitId ids[COUNT];
	const uint64_t		 seed[2] = {1, 2};
	IdemkitWaits		 waits;
	uint64_t			 random = 7;
	char				 key[32];
	size_t				 alive = 0;
	bool				 found = true;
	bool				 keyed = true;
	long				 before = idemkit_test_alloc_live();

	idemkit_waits_init(&waits, seed);
	for (int turn = 0; turn < 10 * COUNT; turn++)
	{
		uint64_t	 choice = idemkit_random_next(&random);
		int			 slot = (int) (choice % COUNT);
		IdemkitWait *wait = ids[slot] != 0 ? idemkit_waits_find(&waits, ids[slot]) : NULL;

		if (ids[slot] == 0)
		{
			size_t length = (size_t) snprintf(key, sizeof(key), "key %d", slot % KEYS);

			wait =
				idemkit_waits_add(&waits, key, length, (int64_t) (choice >> 8), never_called, NULL);
			ids[slot] = wait->id;
			keyed = keyed && strcmp(wait->key->text, key) == 0 &&
					idemkit_waits_find_key(&waits, key, length) == wait->key;
			if (choice % 5 == 0)
				idemkit_key_schedule(&waits, wait->key, (int64_t) (choice >> 9), IDEMKIT_NEVER);
			if (choice % 5 == 1)
				idemkit_key_read(&waits, wait->key);
			if (choice % 5 == 2)
				idemkit_key_notify(&waits, wait->key);
			alive++;
			continue;
		}
		found = found && wait != NULL && wait->id == ids[slot];
		idemkit_waits_remove(&waits, wait);
		found = found && idemkit_waits_find(&waits, ids[slot]) == NULL;
		ids[slot] = 0;
		alive--;
	}
	ok(found, "every wait is found by its number until it is removed");
	ok(keyed, "every key by its text");
	is_int((int64_t) waits.wait_count, (int64_t) alive, "the count of waits is right");
	is_int((int64_t) waits.deadlines.count, (int64_t) alive, "each has its deadline");
	for (int slot = 0; slot < COUNT; slot++)
		if (ids[slot] != 0)
			idemkit_waits_remove(&waits, idemkit_waits_find(&waits, ids[slot]));
	is_int((int64_t) waits.keys.count, 0, "no key outlives its waits");
	is_int((int64_t) waits.schedule.count, 0, "nor its schedule");
	ok(idemkit_list_empty(&waits.queued) && idemkit_list_empty(&waits.reading) &&
		   idemkit_list_empty(&waits.notified),
	   "nor its place in a queue");
	idemkit_waits_free(&waits);
	is_int(idemkit_test_alloc_live(), before, "all memory is given back");
}

/*
 * Keys submitted at different times come to be read together.
 */
static void
test_rounds(void)
{
	const uint64_t seed[2] = {3, 4};
	IdemkitWaits   waits;
	char		   key[32];
	int			   queued = 0;

	idemkit_waits_init(&waits, seed);
	for (int i = 0; i < 100; i++)
	{
		size_t		 length = (size_t) snprintf(key, sizeof(key), "key %d", i);
		IdemkitWait *wait =
			idemkit_waits_add(&waits, key, length, IDEMKIT_NEVER, never_called, NULL);

		wait->key->interval = 1000;
		idemkit_key_schedule(&waits, wait->key, 1000 + i * 10, IDEMKIT_NEVER);
	}
	idemkit_waits_queue_due(&waits, 1000);
	for (IdemkitLink *link = waits.queued.next; link != &waits.queued; link = link->next)
		queued++;
	is_int(queued, 51, "a round takes along what is due within half its interval");
	is_int((int64_t) waits.schedule.count, 49, "the rest stays");
	is_int(idemkit_heap_first(&waits.schedule)->when, 1510, "in order");
	idemkit_waits_queue_all(&waits);
	is_int((int64_t) waits.schedule.count, 0, "a new connection queues them all");
	idemkit_waits_free(&waits);
}

int
main(void)
{
	test_names();
	test_errors();
	test_options();
	test_waiter_arguments();
	test_destroy();
	test_nobody_there();
	test_heap();
	test_waits();
	test_rounds();
	idemkit_error_free(test_error());
	return finish();
}
