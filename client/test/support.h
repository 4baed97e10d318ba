/*
 * support.h - what the test programs share
 *
 * A test program prints TAP on standard output. It connects by libpq's
 * environment, to a database where the extension is.
 */
#ifndef IDEMKIT_TEST_SUPPORT_H
#define IDEMKIT_TEST_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <idemkit.h>

/*
 * One result; the name is printf's arguments. They return whether it is as it
 * should be, and the last two say both values where they differ.
 */
#define ok(condition, ...)			(begin_ok(condition), printf(__VA_ARGS__), end_result())
#define is_int(got, expected, ...)	(begin_int(got, expected), printf(__VA_ARGS__), end_result())
#define is_text(got, expected, ...) (begin_text(got, expected), printf(__VA_ARGS__), end_result())
/* A line of comment. */
#define note(...) (begin_line("# "), printf(__VA_ARGS__), end_line())
/* Ends the test where going on makes no sense. */
#define give_up(...) (begin_line("Bail out! "), printf(__VA_ARGS__), end_line(), exit(2))

void begin_ok(bool condition);
void begin_int(int64_t got, int64_t expected);
void begin_text(const char *got, const char *expected);
bool end_result(void);
void begin_line(const char *start);
void end_line(void);

/* Prints the plan; returns the exit status. */
int finish(void);

/* How much slower everything is (IDEMKIT_SLOWNESS), at least 1. */
double slowness(void);
double seconds_now(void);
void   sleep_seconds(double seconds);

/* A connection, or the end. Close with PQfinish(). */
PGconn *must_connect(void);
/* Executes a statement that must work. */
void must_execute(PGconn *conn, const char *statement);
/* The one value of a query that must work; to be freed. */
char *must_query(PGconn *conn, const char *query);

/* Does a query say true, now or within ten seconds? */
bool becomes_true(PGconn *conn, const char *query);

/* An error object that lives as long as the program. */
IdemkitError *test_error(void);

/* A key not used before, in one of a few static buffers. */
const char *new_key(const char *what);

/* Claims a key that nobody holds; the token is in a static buffer. */
const char *must_claim(PGconn *conn, const char *key, double lease_seconds);
/* Completes it with that text as body. */
void must_complete(PGconn *conn, const char *key, const char *token, const char *body);
void must_release(PGconn *conn, const char *key, const char *token);

/* What became of a wait. Its address is the callback's argument. */
typedef struct Ended
{
	int					 times; /* the callback was called */
	IdemkitOutcome		 outcome;
	const IdemkitRecord *record; /* a reference, or NULL */
	IdemkitStatus		 error;
	char				 sqlstate[6];
	char				 message[256];
	double				 at; /* seconds_now() */
} Ended;

void note_ended(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
				const IdemkitError *error);
/* Gives the record back, for another wait. */
void reset_ended(Ended *ended);
/* The record's body as text, or a word in brackets. */
const char *ended_body(const Ended *ended);

/* A waiter with these options, or the end. */
IdemkitWaiter *must_create(const char *conninfo, const IdemkitWaiterOptions *options);
void must_submit(IdemkitWaiter *waiter, const char *key, double timeout_seconds, Ended *ended);

/* One poll and one process; polls no longer than that. */
void turn(IdemkitWaiter *waiter, double at_most_seconds);
/* Turns until *counter has reached value; false when seconds went by before. */
bool turn_until(IdemkitWaiter *waiter, const int *counter, int value, double seconds);
/* The same for a waiter's counter. */
bool
turn_until_counter(IdemkitWaiter *waiter, IdemkitCounter counter, uint64_t value, double seconds);
/* Turns for that long. */
void turn_for(IdemkitWaiter *waiter, double seconds);

#endif /* IDEMKIT_TEST_SUPPORT_H */
