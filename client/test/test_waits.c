/*
 * test_waits.c - the waiter against a healthy server: every outcome, every order of
 * events, callbacks that submit, cancel and destroy
 *
 * What a broken server or network does to it is in waiter_failures.t.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

static PGconn		 *conn;
static IdemkitWaiter *waiter;

/* Where a notification must have done it, since re-reading comes up to 1 s later. */
#define PROMPT (0.3 * slowness())
/* Where re-reading may. */
#define SOON (1.3 + 0.3 * slowness())

static void
expect_end(Ended *ended, IdemkitOutcome outcome, double within, const char *what)
{
	turn_until(waiter, &ended->times, 1, within);
	is_int(ended->times, 1, "%s: the wait ended in time", what);
	is_text(idemkit_outcome_name(ended->outcome), idemkit_outcome_name(outcome), "%s: outcome",
			what);
}

static void
test_already_over(void)
{
	const char *key = new_key("over");
	Ended		ended = {0};
	Ended		absent = {0};

	must_complete(conn, key, must_claim(conn, key, 30.0), "done before");
	must_submit(waiter, key, 10.0, &ended);
	must_submit(waiter, new_key("nothing"), 10.0, &absent);
	expect_end(&ended, IDEMKIT_OUTCOME_COMPLETED, PROMPT, "completed before");
	is_text(ended_body(&ended), "done before", "the result is there");
	expect_end(&absent, IDEMKIT_OUTCOME_ABSENT, PROMPT, "never there");
	ok(absent.record == NULL, "and there is no record");
	reset_ended(&ended);
}

/*
 * The re-reading has slowed down to once a second when the end comes: only a
 * notification is as quick as this asks for.
 */
static void
test_notified(void)
{
	const char *keys[3] = {new_key("later"), new_key("released"), new_key("kept")};
	char		tokens[3][64];
	Ended		ended[3] = {{0}};
	bool		done;

	for (int i = 0; i < 3; i++)
	{
		snprintf(tokens[i], sizeof(tokens[i]), "%s", must_claim(conn, keys[i], 60.0));
		must_submit(waiter, keys[i], 20.0, &ended[i]);
	}
	turn_for(waiter, 2.0);
	ok(ended[0].times == 0 && ended[1].times == 0 && ended[2].times == 0,
	   "a claim in flight is waited for");
	is_int((int64_t) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_LISTENING), 1,
		   "the self-test was passed");
	must_complete(conn, keys[0], tokens[0], "later");
	expect_end(&ended[0], IDEMKIT_OUTCOME_COMPLETED, PROMPT, "completed");
	is_text(ended_body(&ended[0]), "later", "with its result");
	must_release(conn, keys[1], tokens[1]);
	expect_end(&ended[1], IDEMKIT_OUTCOME_ABSENT, PROMPT, "released");
	ok(idemkit_release(conn, keys[2], tokens[2], true, NULL, &done, NULL) == IDEMKIT_OK && done,
	   "release that keeps the attempts");
	expect_end(&ended[2], IDEMKIT_OUTCOME_LAPSED, PROMPT, "released with its attempts");
	for (int i = 0; i < 3; i++)
		reset_ended(&ended[i]);
}

static void
test_lapse(void)
{
	const char *key = new_key("lapse");
	const char *renewed = new_key("renewed");
	double		begun = seconds_now();
	char		token[64];
	bool		done;
	Ended		ended = {0};
	Ended		lives = {0};

	must_claim(conn, key, 0.8);
	snprintf(token, sizeof(token), "%s", must_claim(conn, renewed, 0.8));
	must_submit(waiter, key, 20.0, &ended);
	must_submit(waiter, renewed, 20.0, &lives);
	turn_for(waiter, 0.3);
	ok(idemkit_renew(conn, renewed, token, 60.0, NULL, &done, NULL) == IDEMKIT_OK && done,
	   "one lease is renewed");
	expect_end(&ended, IDEMKIT_OUTCOME_LAPSED, 2.0 * slowness(), "lease over");
	ok(ended.at - begun >= 0.8 && ended.at - begun < 0.8 + PROMPT,
	   "at the end of the lease, not before and not by chance: %.3f s", ended.at - begun);
	ok(ended.record != NULL && idemkit_record_state(ended.record) == IDEMKIT_STATE_CLAIMED &&
		   idemkit_record_remaining_seconds(ended.record) <= 0.0,
	   "with the record as it was read");
	turn_for(waiter, 0.5);
	is_int(lives.times, 0, "the renewed lease did not end");
	must_complete(conn, renewed, token, "x");
	expect_end(&lives, IDEMKIT_OUTCOME_COMPLETED, PROMPT, "renewed");
	reset_ended(&ended);
	reset_ended(&lives);
}

static void
test_timeout(void)
{
	const char *key = new_key("timeout");
	double		begun = seconds_now();
	Ended		ended = {0};
	Ended		at_once = {0};

	must_claim(conn, key, 0.9);
	must_submit(waiter, key, 0.5, &ended);
	must_submit(waiter, key, 0.0, &at_once);
	expect_end(&ended, IDEMKIT_OUTCOME_TIMEOUT, 2.0 * slowness(), "deadline");
	is_int(at_once.times, 1, "a timeout of 0 ends");
	is_int(at_once.outcome, IDEMKIT_OUTCOME_TIMEOUT, "as one");
	ok(ended.at - begun >= 0.5 && ended.at - begun < 0.5 + PROMPT,
	   "at the deadline, before the lease's end: %.3f s", ended.at - begun);
	is_int(ended.error, IDEMKIT_OK, "no error: the server could be asked");
	ok(ended.record != NULL && idemkit_record_remaining_seconds(ended.record) > 0.0,
	   "the record tells what was seen last");
	reset_ended(&ended);
}

/*
 * What a claim could win is not worth waiting for.
 */
static void
test_expired(void)
{
	const char *key = new_key("expired");
	const char *corrupt = new_key("corrupt");
	const char *token = must_claim(conn, key, 30.0);
	char		sql[400];
	Ended		ended = {0};
	bool		done;

	ok(idemkit_complete(conn, key, token, NULL, NULL, "x", 1, 0.0, NULL, &done, NULL) ==
			   IDEMKIT_OK &&
		   done,
	   "completed with no retention");
	sleep_seconds(0.01);
	must_submit(waiter, key, 10.0, &ended);
	expect_end(&ended, IDEMKIT_OUTCOME_ABSENT, PROMPT, "retention over");
	reset_ended(&ended);
	must_complete(conn, corrupt, must_claim(conn, corrupt, 30.0), "x");
	snprintf(sql, sizeof(sql),
			 "UPDATE idemkit_records SET completed_at = NULL WHERE effective_key = '%s'", corrupt);
	must_execute(conn, sql);
	must_submit(waiter, corrupt, 10.0, &ended);
	expect_end(&ended, IDEMKIT_OUTCOME_ABSENT, PROMPT, "corrupt");
	reset_ended(&ended);
}

/*
 * A completion at every step of the waiter's way: before it connects, between
 * LISTEN and reading, between reading and sleeping, and while it sleeps.
 */
static void
test_every_interleaving(void)
{
	for (int steps = 0; steps < 24; steps++)
	{
		const char	  *key = new_key("step");
		char		   token[64];
		IdemkitWaiter *fresh = must_create("", NULL);
		Ended		   ended = {0};

		snprintf(token, sizeof(token), "%s", must_claim(conn, key, 30.0));
		must_submit(fresh, key, 10.0, &ended);
		for (int i = 0; i < steps; i++)
			turn(fresh, 0.02);
		if (ended.times != 0)
			give_up("the wait ended before its time");
		must_complete(conn, key, token, "in time");
		turn_until(fresh, &ended.times, 1, PROMPT);
		ok(ended.times == 1 && ended.outcome == IDEMKIT_OUTCOME_COMPLETED &&
			   strcmp(ended_body(&ended), "in time") == 0,
		   "completed after %d steps", steps);
		reset_ended(&ended);
		idemkit_waiter_destroy(fresh);
	}
}

/*
 * The same, with the answer to the reading already under way: it says "claimed"
 * and the notification is behind it.
 */
static void
test_between_read_and_sleep(void)
{
	for (int i = 0; i < 5; i++)
	{
		const char	 *key = new_key("between");
		char		  token[64];
		uint64_t	  read = idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_KEYS_READ);
		struct pollfd answered = {.events = POLLIN};
		Ended		  ended = {0};

		snprintf(token, sizeof(token), "%s", must_claim(conn, key, 30.0));
		must_submit(waiter, key, 10.0, &ended);
		if (!turn_until_counter(waiter, IDEMKIT_COUNTER_KEYS_READ, read + 1, 5.0))
			give_up("the key is not read");
		answered.fd = idemkit_waiter_socket(waiter);
		if (poll(&answered, 1, 5000) != 1)
			give_up("the reading is not answered");
		must_complete(conn, key, token, "between");
		turn_until(waiter, &ended.times, 1, PROMPT);
		ok(ended.times == 1 && ended.outcome == IDEMKIT_OUTCOME_COMPLETED,
		   "completed between reading and sleeping");
		reset_ended(&ended);
	}
}

static void
test_notify_settings(void)
{
	static const char *const settings[] = {"never", "awaited", "always"};

	for (int i = 0; i < 3; i++)
	{
		const char *key = new_key(settings[i]);
		char		token[64];
		char		sql[100];
		double		begun;
		Ended		ended = {0};

		snprintf(sql, sizeof(sql), "SET idemkit.notify = '%s'", settings[i]);
		must_execute(conn, sql);
		snprintf(token, sizeof(token), "%s", must_claim(conn, key, 60.0));
		must_submit(waiter, key, 20.0, &ended);
		turn_for(waiter, 2.0);
		must_complete(conn, key, token, settings[i]);
		begun = seconds_now();
		expect_end(&ended, IDEMKIT_OUTCOME_COMPLETED, i == 0 ? SOON : PROMPT, settings[i]);
		note("idemkit.notify = %s: %.1f ms", settings[i], (ended.at - begun) * 1000.0);
		is_text(ended_body(&ended), settings[i], "the result is there");
		reset_ended(&ended);
	}
	must_execute(conn, "RESET idemkit.notify");
}

static void
test_shared_key(void)
{
	const char	 *key = new_key("shared");
	char		  token[64];
	Ended		  ended[5] = {{0}};
	IdemkitWaitId cancelled = 0;

	snprintf(token, sizeof(token), "%s", must_claim(conn, key, 60.0));
	for (int i = 0; i < 5; i++)
		if (idemkit_waiter_submit(waiter, key, i == 1 ? 0.3 : 20.0, note_ended, &ended[i],
								  i == 2 ? &cancelled : NULL, test_error()) != IDEMKIT_OK)
			give_up("submit");
	turn_for(waiter, 0.1);
	is_int(idemkit_waiter_cancel(waiter, cancelled), IDEMKIT_OK, "one of five waits is cancelled");
	turn_until(waiter, &ended[1].times, 1, 2.0 * slowness());
	is_int(ended[1].outcome, IDEMKIT_OUTCOME_TIMEOUT, "one times out");
	must_complete(conn, key, token, "for all");
	expect_end(&ended[4], IDEMKIT_OUTCOME_COMPLETED, PROMPT, "the last");
	for (int i = 0; i < 5; i++)
	{
		is_int(ended[i].times, i == 2 ? 0 : 1, "wait %d of one key", i);
		if (i != 1 && i != 2)
			is_text(ended_body(&ended[i]), "for all", "has the result");
		reset_ended(&ended[i]);
	}
}

/* What a callback does, and to what. */
typedef struct Chain
{
	IdemkitWaiter *waiter;
	const char	  *next_key;
	IdemkitWaitId  own;
	IdemkitWaitId  other;
	Ended		  *next;
	int			   called;
} Chain;

static void
submit_and_cancel(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
				  const IdemkitError *error)
{
	Chain *chain = arg;

	(void) outcome;
	(void) record;
	(void) error;
	chain->called++;
	is_int(idemkit_waiter_cancel(chain->waiter, chain->own), IDEMKIT_ERROR_NOT_FOUND,
		   "a wait whose callback runs is over");
	is_int(idemkit_waiter_cancel(chain->waiter, chain->other), IDEMKIT_OK,
		   "another of its key can still be cancelled");
	is_int(idemkit_waiter_process(chain->waiter), IDEMKIT_ERROR_BUSY, "process is refused");
	must_submit(chain->waiter, chain->next_key, 10.0, chain->next);
}

static void
test_callbacks(void)
{
	const char *key = new_key("chain");
	Ended		next = {0};
	Ended		other = {0};
	Chain		chain = {.waiter = waiter, .next_key = key, .next = &next};

	must_complete(conn, key, must_claim(conn, key, 30.0), "again");
	(void) !idemkit_waiter_submit(waiter, key, 10.0, submit_and_cancel, &chain, &chain.own, NULL);
	(void) !idemkit_waiter_submit(waiter, key, 10.0, note_ended, &other, &chain.other, NULL);
	expect_end(&next, IDEMKIT_OUTCOME_COMPLETED, PROMPT, "submitted by a callback");
	is_int(chain.called, 1, "the callback was called once");
	is_int(other.times, 0, "the cancelled one not at all");
	reset_ended(&next);
}

static void
destroy_it(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
		   const IdemkitError *error)
{
	Chain *chain = arg;

	(void) outcome;
	(void) record;
	(void) error;
	chain->called++;
	idemkit_waiter_destroy(chain->waiter);
}

static void
test_destroy_by_callback(void)
{
	const char *key = new_key("claimed");
	Ended		other = {0};
	Chain		chain = {.waiter = must_create("", NULL)};
	double		end = seconds_now() + 5.0 * slowness();

	must_claim(conn, key, 30.0);
	must_submit(chain.waiter, key, 20.0, &other);
	(void) !idemkit_waiter_submit(chain.waiter, new_key("absent"), 10.0, destroy_it, &chain, NULL,
								  NULL);
	/* the turn in which the callback is called must be the last to touch it */
	while (chain.called == 0 && seconds_now() < end)
		turn(chain.waiter, 0.1);
	is_int(chain.called, 1, "a callback destroyed its waiter");
	is_int(other.times, 1, "which ended the other wait");
	is_int(other.outcome, IDEMKIT_OUTCOME_CLOSED, "as closed");
}

static void
expect_error(const char *conninfo, const char *records, const char *sqlstate, const char *what)
{
	IdemkitWaiterOptions *options = idemkit_waiter_options_create();
	IdemkitWaiter		 *failing;
	Ended				  ended[2] = {{0}};

	if (idemkit_waiter_options_set_records(options, records) != IDEMKIT_OK)
		give_up("options");
	failing = must_create(conninfo, options);
	must_submit(failing, "k1", 20.0, &ended[0]);
	must_submit(failing, "k2", 20.0, &ended[1]);
	turn_until(failing, &ended[1].times, 1, 2.0 * slowness());
	for (int i = 0; i < 2; i++)
	{
		is_int(ended[i].times, 1, "%s ends the wait", what);
		is_int(ended[i].outcome, IDEMKIT_OUTCOME_ERROR, "as an error");
		is_int(ended[i].error, IDEMKIT_ERROR_SERVER, "of the server");
		is_text(ended[i].sqlstate, sqlstate, "with its SQLSTATE");
		ok(ended[i].message[0] != '\0', "and a message: %s", ended[i].message);
		reset_ended(&ended[i]);
	}
	must_submit(failing, "k1", 20.0, &ended[0]);
	turn_until(failing, &ended[0].times, 1, 2.0 * slowness());
	is_text(ended[0].sqlstate, sqlstate, "the next wait fares no better");
	idemkit_waiter_destroy(failing);
	idemkit_waiter_options_free(options);
}

static void
test_errors(void)
{
	must_execute(conn, "CREATE ROLE waits_nobody LOGIN");
	expect_error("", "no_such_table", "42P01", "a missing table");
	expect_error("", "pg_class", "55000", "a table of another kind");
	expect_error("user=waits_nobody", NULL, "42501", "a role without rights");
	expect_error("user=no_such_role", NULL, "28000", "a role that does not exist");
	expect_error("dbname=no_such_database", NULL, "3D000", "a database that does not exist");
	must_execute(conn, "CREATE DATABASE without_extension");
	expect_error("dbname=without_extension", NULL, "42883", "a database without the extension");
}

/*
 * A role that may read the records and not mark them still can wait.
 */
static void
test_reader(void)
{
	const char	  *key = new_key("reader");
	char		   token[64];
	IdemkitWaiter *reader;
	Ended		   ended = {0};

	must_execute(conn, "CREATE ROLE waits_reader LOGIN; GRANT SELECT ON idemkit_records TO "
					   "waits_reader");
	snprintf(token, sizeof(token), "%s", must_claim(conn, key, 30.0));
	reader = must_create("user=waits_reader", NULL);
	must_submit(reader, key, 20.0, &ended);
	turn_for(reader, 0.5);
	is_int(ended.times, 0, "a role that may only read waits");
	must_complete(conn, key, token, "for readers");
	turn_until(reader, &ended.times, 1, PROMPT);
	is_text(ended_body(&ended), "for readers", "and gets the result");
	reset_ended(&ended);
	idemkit_waiter_destroy(reader);
}

/*
 * One key that the server can not take must not end the waits for others.
 */
static void
test_bad_key_among_good(void)
{
	const char	  *key = new_key("latin");
	PGconn		  *latin;
	IdemkitWaiter *other;
	Ended		   ended[12] = {{0}};
	char		   keys[12][32];
	int			   right = 0;

	must_execute(conn, "CREATE DATABASE waits_latin TEMPLATE template0 ENCODING 'LATIN1' "
					   "LC_COLLATE 'C' LC_CTYPE 'C'");
	latin = PQconnectdb("dbname=waits_latin client_encoding=UTF8");
	must_execute(latin, "CREATE EXTENSION idemkit");
	must_claim(latin, key, 60.0);
	other = must_create("dbname=waits_latin", NULL);
	for (int i = 0; i < 12; i++)
	{
		/* the euro sign is not in Latin-1, the umlaut is */
		snprintf(keys[i], sizeof(keys[i]), "%d %s", i, i == 7 ? "\342\202\254" : "\303\244");
		must_submit(other, keys[i], 20.0, &ended[i]);
	}
	for (int i = 0; i < 12; i++)
	{
		turn_until(other, &ended[i].times, 1, 2.0 * slowness());
		if (i != 7 && ended[i].outcome == IDEMKIT_OUTCOME_ABSENT)
			right++;
	}
	is_int(right, 11, "waits beside a key that the server refuses are answered");
	is_int(ended[7].outcome, IDEMKIT_OUTCOME_ERROR, "that key's ends with an error");
	is_text(ended[7].sqlstate, "22P05", "which is the server's");
	idemkit_waiter_destroy(other);
	PQfinish(latin);
}

/*
 * A row that a transaction holds on to must not hold up the waits for others.
 */
static void
test_locked_row(void)
{
	const char *held = new_key("held");
	const char *freed = new_key("free");
	char		held_token[64];
	char		freed_token[64];
	PGconn	   *holder = must_connect();
	double		begun;
	Ended		ended[2] = {{0}};

	snprintf(held_token, sizeof(held_token), "%s", must_claim(conn, held, 60.0));
	snprintf(freed_token, sizeof(freed_token), "%s", must_claim(conn, freed, 60.0));
	must_execute(holder, "BEGIN");
	must_complete(holder, held, held_token, "held");
	must_submit(waiter, held, 20.0, &ended[0]);
	must_submit(waiter, freed, 20.0, &ended[1]);
	turn_for(waiter, 0.6);
	must_complete(conn, freed, freed_token, "free");
	begun = seconds_now();
	expect_end(&ended[1], IDEMKIT_OUTCOME_COMPLETED, PROMPT, "beside a locked row");
	note("beside a locked row: %.1f ms", (ended[1].at - begun) * 1000.0);
	is_int(ended[0].times, 0, "the locked row is waited for");
	must_execute(holder, "COMMIT");
	expect_end(&ended[0], IDEMKIT_OUTCOME_COMPLETED, PROMPT, "the locked row, once committed");
	reset_ended(&ended[0]);
	reset_ended(&ended[1]);
	PQfinish(holder);
}

/*
 * Trouble that passes does not end a wait, and does not make the waiter spin.
 */
static void
test_passing_trouble(void)
{
	IdemkitWaiter *patient = must_create("options='-c statement_timeout=200ms'", NULL);
	PGconn		  *holder = must_connect();
	const char	  *key = new_key("trouble");
	Ended		   ended[2] = {{0}};

	must_complete(conn, key, must_claim(conn, key, 30.0), "patience");
	must_execute(holder, "BEGIN; LOCK TABLE idemkit_records IN ACCESS EXCLUSIVE MODE");
	must_submit(patient, key, 1.0, &ended[0]);
	must_submit(patient, key, 20.0, &ended[1]);
	turn_until(patient, &ended[0].times, 1, 3.0 * slowness());
	is_int(ended[0].outcome, IDEMKIT_OUTCOME_TIMEOUT, "a table that is locked times out");
	is_text(ended[0].sqlstate, "57014", "and the wait says why");
	ok(idemkit_waiter_counter(patient, IDEMKIT_COUNTER_QUERIES) < 20, "after %d queries",
	   (int) idemkit_waiter_counter(patient, IDEMKIT_COUNTER_QUERIES));
	must_execute(holder, "COMMIT");
	turn_until(patient, &ended[1].times, 1, SOON);
	is_text(ended_body(&ended[1]), "patience", "the longer wait is answered");
	reset_ended(&ended[0]);
	reset_ended(&ended[1]);
	idemkit_waiter_destroy(patient);
	PQfinish(holder);
}

static void
count_notice(void *arg, IdemkitNotice notice, const char *message)
{
	int *counts = arg;

	(void) message;
	counts[notice]++;
}

static void
test_listen_off(void)
{
	IdemkitWaiterOptions *options = idemkit_waiter_options_create();
	IdemkitWaiter		 *polling;
	const char			 *key = new_key("poll");
	char				  token[64];
	int					  counts[4] = {0};
	Ended				  ended = {0};

	must_execute(conn, "SELECT idemkit_create_table('waits_table')");
	if (idemkit_waiter_options_set_listen(options, IDEMKIT_LISTEN_OFF) != IDEMKIT_OK ||
		idemkit_waiter_options_set_notice(options, count_notice, counts) != IDEMKIT_OK)
		give_up("options");
	polling = must_create("", options);
	idemkit_waiter_options_free(options);
	snprintf(token, sizeof(token), "%s", must_claim(conn, key, 60.0));
	must_submit(polling, key, 20.0, &ended);
	turn_for(polling, 1.0);
	is_int((int64_t) idemkit_waiter_counter(polling, IDEMKIT_COUNTER_LISTENING), 0,
		   "told not to listen it does not");
	must_complete(conn, key, token, "polled");
	turn_until(polling, &ended.times, 1, SOON);
	is_text(ended_body(&ended), "polled", "and finds the result by reading");
	is_int((int64_t) idemkit_waiter_counter(polling, IDEMKIT_COUNTER_NOTIFICATIONS), 0,
		   "without a notification");
	is_int(counts[IDEMKIT_NOTICE_CONNECTED], 1, "it said that it connected");
	is_int(counts[IDEMKIT_NOTICE_POLLING], 0, "but did not complain of what it was told");
	reset_ended(&ended);
	idemkit_waiter_destroy(polling);
}

/*
 * While nobody waits the server has no listener that nobody reads.
 */
static void
test_rest(void)
{
	IdemkitWaiter *resting = must_create("application_name=resting", NULL);
	const char	  *key = new_key("rest");
	char		   token[64];
	char		  *query;
	Ended		   ended = {0};

	must_submit(resting, new_key("absent"), 10.0, &ended);
	turn_until(resting, &ended.times, 1, 2.0);
	is_int((int64_t) idemkit_waiter_counter(resting, IDEMKIT_COUNTER_LISTENING), 1, "it listens");
	turn_for(resting, 1.0 + PROMPT);
	is_int((int64_t) idemkit_waiter_counter(resting, IDEMKIT_COUNTER_LISTENING), 0,
		   "and stops when nobody has waited for a second");
	query = must_query(conn, "SELECT state || ' ' || query FROM pg_stat_activity "
							 "WHERE application_name = 'resting'");
	is_text(query, "idle UNLISTEN *", "the server knows");
	free(query);
	is_int(idemkit_waiter_timeout_us(resting), -1, "nothing more is due");
	reset_ended(&ended);
	snprintf(token, sizeof(token), "%s", must_claim(conn, key, 60.0));
	must_submit(resting, key, 20.0, &ended);
	turn_for(resting, 1.7);
	must_complete(conn, key, token, "awake");
	turn_until(resting, &ended.times, 1, PROMPT);
	is_text(ended_body(&ended), "awake", "the next wait makes it listen again");
	is_int((int64_t) idemkit_waiter_counter(resting, IDEMKIT_COUNTER_CONNECTIONS), 1,
		   "on the same connection");
	reset_ended(&ended);
	idemkit_waiter_destroy(resting);
}

static void
test_other_table(void)
{
	IdemkitWaiterOptions *options = idemkit_waiter_options_create();
	IdemkitWaiter		 *other;
	Ended				  ended = {0};

	must_execute(conn, "SELECT idemkit_complete('k', (idemkit_claim('k', records => "
					   "'waits_table')).our_claim_token, response_body => 'table', records => "
					   "'waits_table')");
	if (idemkit_waiter_options_set_records(options, "public.waits_table") != IDEMKIT_OK)
		give_up("options");
	other = must_create("", options);
	idemkit_waiter_options_free(options);
	must_submit(other, "k", 10.0, &ended);
	turn_until(other, &ended.times, 1, 2.0 * slowness());
	is_text(ended_body(&ended), "table", "a waiter for another table");
	reset_ended(&ended);
	idemkit_waiter_destroy(other);
}

int
main(void)
{
	conn = must_connect();
	/* nothing here may wait for the waiter's locks: better an error than a test that hangs */
	must_execute(conn, "SET client_min_messages = error; SET lock_timeout = '5s'");
	waiter = must_create("", NULL);
	test_already_over();
	test_notified();
	test_lapse();
	test_timeout();
	test_expired();
	test_every_interleaving();
	test_between_read_and_sleep();
	test_notify_settings();
	test_shared_key();
	test_callbacks();
	test_destroy_by_callback();
	test_errors();
	test_reader();
	test_bad_key_among_good();
	test_locked_row();
	test_passing_trouble();
	test_listen_off();
	test_rest();
	test_other_table();
	is_int((int64_t) idemkit_waiter_counter(waiter, IDEMKIT_COUNTER_CONNECTIONS), 1,
		   "all of it on one connection");
	idemkit_waiter_destroy(waiter);
	PQfinish(conn);
	idemkit_error_free(test_error());
	return finish();
}
