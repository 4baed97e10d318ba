/*
 * waiter.h - the waiter from within
 *
 * Who does what:
 *
 *	 waits.c	which waits there are, for which keys, and when each is due
 *	 connect.c	the connection: make it, lose it, send and receive on it
 *	 session.c	what a connection is prepared with: LISTEN and its self-test
 *	 read.c		which keys to read next, and by which statement
 *	 round.c	judging what was read, and what to do about errors
 *	 waiter.c	the public calls, and the order of all of this in one step
 *	 shared.c	the blocking wait for threads, over the public calls
 *
 * At most one query is under way at a time. All of it runs in one thread, inside
 * idemkit_waiter_process().
 */
#ifndef IDEMKIT_WAITER_H
#define IDEMKIT_WAITER_H

#include "clock.h"
#include "error.h"
#include "idemkit.h"
#include "waits.h"

/* The first interval between two readings of a key, and the longest. */
#define IDEMKIT_FIRST_INTERVAL_US 50000
#define IDEMKIT_LAST_INTERVAL_US  1000000
/* At least this long between two scheduled rounds, however many keys are due. */
#define IDEMKIT_ROUND_SPACING_US 25000
/* The most keys in one query. */
#define IDEMKIT_MAX_BATCH 32768
/* How long to wait for the notification of the self-test. */
#define IDEMKIT_SELFTEST_US 1000000
/* How long to go on listening when nobody waits. */
#define IDEMKIT_LINGER_US 1000000

/* How old a query may become that the last of the threads leaves behind. */
#define IDEMKIT_PARK_US 20000

#define IDEMKIT_CHANNEL			 "idemkit_completions"
#define IDEMKIT_SELFTEST_CHANNEL "idemkit_selftest"

struct IdemkitWaiterOptions
{
	char				 *records; /* or NULL */
	IdemkitListen		  listen;
	int64_t				  connect_timeout_us;
	int64_t				  query_timeout_us;
	int64_t				  reconnect_min_us;
	int64_t				  reconnect_max_us;
	IdemkitNoticeCallback notice;
	void				 *notice_arg;
};

typedef enum IdemkitPhase
{
	IDEMKIT_DOWN,
	IDEMKIT_CONNECTING,
	IDEMKIT_UP
} IdemkitPhase;

/* What is under way on a connection that is up. */
typedef enum IdemkitQuery
{
	IDEMKIT_QUERY_NONE,
	IDEMKIT_QUERY_LISTEN,
	IDEMKIT_QUERY_UNLISTEN,
	IDEMKIT_QUERY_PREPARE,
	IDEMKIT_QUERY_READ
} IdemkitQuery;

/* Do notifications arrive on this connection? */
typedef enum IdemkitProof
{
	IDEMKIT_UNPROVEN,
	IDEMKIT_PROVEN,
	IDEMKIT_REFUTED
} IdemkitProof;

typedef enum IdemkitPrepared
{
	IDEMKIT_UNPREPARED, /* not yet */
	IDEMKIT_PREPARED,
	IDEMKIT_UNPREPARABLE /* the server would not have it */
} IdemkitPrepared;

/* How to read keys; in the order in which they are prepared. */
typedef enum IdemkitStatement
{
	IDEMKIT_READ_ONE,
	IDEMKIT_MARK_AND_READ,
	IDEMKIT_READ_MANY,
	IDEMKIT_STATEMENTS
} IdemkitStatement;

struct IdemkitWaiter
{
	char				*conninfo;
	IdemkitWaiterOptions options;
	IdemkitWaits		 waits;
	uint64_t			 random; /* state of idemkit_random_next() */
	uint64_t			 counters[IDEMKIT_COUNTER_LISTENING + 1];
	bool				 processing;   /* in idemkit_waiter_process() or destroy */
	bool				 doomed;	   /* destroy was called from a callback */
	bool				 closing;	   /* all waits are being ended */
	bool				 said_polling; /* IDEMKIT_NOTICE_POLLING has been given */
	IdemkitError		 trouble;	   /* why the server could not be asked lately */

	/* connect.c */
	PGconn					 *conn; /* NULL when down */
	IdemkitPhase			  phase;
	PostgresPollingStatusType connect_wants;
	bool					  unflushed; /* libpq has output that the socket would not take */
	uint64_t				  socket_serial;
	int64_t					  patience;		/* when to give up on connecting, or on the query */
	int64_t					  next_attempt; /* down: not before then */
	int64_t					  backoff;		/* the last pause; 0: none yet */
	IdemkitQuery			  query;

	/* session.c; all of it begins anew with each connection */
	bool		 listening;		/* LISTEN has been executed */
	bool		 untidy;		/* something is listened to that should not be */
	bool		 setup_failed;	/* the LISTEN under way has raised an error */
	IdemkitError session_error; /* that error */
	int			 session_pid;	/* pid of the backend that answered LISTEN */
	bool		 echo_seen;
	IdemkitProof proof;
	int64_t		 selftest_end; /* when the self-test fails */
	int64_t		 idle_since;   /* nobody waits since then; or IDEMKIT_NEVER */
	char		 probe[40];	   /* payload of the self-test */

	/* read.c */
	IdemkitPrepared	 prepared[IDEMKIT_STATEMENTS];
	IdemkitStatement preparing;		/* by the query under way */
	IdemkitStatement statement;		/* of the query under way */
	bool			 notified_only; /* its keys were all notified */
	size_t			 batch;			/* keys in the query under way */
	size_t			 batch_limit;
	bool			 round_failed;	/* the query under way has raised an error */
	bool			 read_plainly;	/* the next one is to read without marking */
	bool			 may_only_read; /* so is every one on this connection */
	IdemkitError	 round_error;	/* that error */
	bool			 has_read;		/* this connection has answered a query for keys */
	bool			 left_behind;	/* the last query did without the queued keys */
	int64_t			 next_round;	/* no scheduled reading before then */
};

/* connect.c */
void idemkit_connection_start(IdemkitWaiter *waiter, int64_t now);
void idemkit_connection_receive(IdemkitWaiter *waiter);
/* A query was handed to libpq (sent is what it said to that): send it. */
void idemkit_connection_sent(IdemkitWaiter *waiter, IdemkitQuery query, int sent);
/* Close the connection because of waiter->trouble, and plan the next attempt. */
void idemkit_connection_lose(IdemkitWaiter *waiter);
void idemkit_connection_lose_for(IdemkitWaiter *waiter, const char *message);
/* Close it without a word. */
void idemkit_connection_close(IdemkitWaiter *waiter);

/* session.c */
void idemkit_session_begin(IdemkitWaiter *waiter);
/* Send what the session needs before, or after, keys are read; false: nothing. */
bool idemkit_session_send_first(IdemkitWaiter *waiter);
bool idemkit_session_send_last(IdemkitWaiter *waiter, int64_t now);
void idemkit_session_rest(IdemkitWaiter *waiter);
void idemkit_session_result(IdemkitWaiter *waiter, const PGresult *result);
void idemkit_session_done(IdemkitWaiter *waiter, IdemkitQuery query);
void idemkit_session_selftest_heard(IdemkitWaiter *waiter, const char *payload);
void idemkit_session_check_selftest(IdemkitWaiter *waiter, int64_t now);
/* When session.c wants to be asked again. */
int64_t idemkit_session_due(const IdemkitWaiter *waiter, int64_t now);

/* read.c */
bool idemkit_read_send(IdemkitWaiter *waiter, int64_t now);
bool idemkit_read_wants_prepare(const IdemkitWaiter *waiter);
bool idemkit_read_send_prepare(IdemkitWaiter *waiter);

/* round.c */
/* End all waits of the batch under way with an error. */
void	idemkit_round_abandon(IdemkitWaiter *waiter, const IdemkitError *error);
void	idemkit_round_result(IdemkitWaiter *waiter, const PGresult *result);
void	idemkit_round_done(IdemkitWaiter *waiter, IdemkitQuery query);
int64_t idemkit_round_due(const IdemkitWaiter *waiter, int64_t now);

/* waiter.c */
/* Call back all waits in waiter->waits.ending. */
void idemkit_call_back(IdemkitWaiter *waiter, IdemkitOutcome outcome, const IdemkitRecord *record,
					   const IdemkitError *error);
void idemkit_end_all(IdemkitWaiter *waiter, IdemkitOutcome outcome, const IdemkitError *error);
void idemkit_notice(IdemkitWaiter *waiter, IdemkitNotice notice, const char *message);
/* End all waits as destroy does, and let no more be submitted. */
void idemkit_waiter_end_all(IdemkitWaiter *waiter);
/* Nobody will call process for a while: leave nothing that needs it. */
void idemkit_waiter_park(IdemkitWaiter *waiter);

/* options.c */
bool idemkit_options_copy(IdemkitWaiterOptions *to, const IdemkitWaiterOptions *from);

#endif /* IDEMKIT_WAITER_H */
