/*
 * idemkit.h - the client library of idemkit for PostgreSQL
 *
 * Two parts, on libpq alone:
 *
 *	 - plain calls (claim, complete, release, renew, guard, get), each one
 *	   statement on a connection that stays the caller's;
 *	 - the waiter, which waits for any number of keys on one connection of its
 *	   own: IdemkitWaiter for event loops, IdemkitSharedWaiter for threads that
 *	   want to block.
 *
 * What the words mean (effective key, claim, lease, claim token, fence,
 * retention) is said in docs/sql.md; this header says what a C caller must know.
 *
 * Rules that hold for every declaration here:
 *
 * Status	 Every call that can fail returns an IdemkitStatus, IDEMKIT_OK being 0.
 *			 Results come back through pointers, which are set on IDEMKIT_OK and
 *			 left NULL (objects) or untouched (numbers) otherwise. A result that is
 *			 merely unwelcome, such as a timeout or a claim held by somebody else,
 *			 is a result and not an error.
 * Ownership Objects are opaque. What a call hands out through a pointer to a
 *			 pointer belongs to the caller, who frees it with the function named
 *			 beside it. Freeing NULL is legal and does nothing. What an accessor
 *			 returns belongs to the object and lives as long as it. Arguments are
 *			 only read, and copied where they are kept.
 * Strings	 Text is a C string in the connection's client_encoding (the waiter's
 *			 connection uses UTF-8). Keys are 1 to 1024 bytes. Response bodies are
 *			 bytes with a length; a body that is NULL and one that is empty are two
 *			 things and stay so.
 * Units	 Durations are double precision seconds. Times are microseconds since
 *			 1970-01-01 00:00 UTC by the database's clock: compare them with each
 *			 other, never with the clock of this machine.
 * Memory	 Running out of memory is IDEMKIT_ERROR_MEMORY and leaves nothing
 *			 behind. What a claim that is won needs is set aside before it is sent,
 *			 so that none is won here and lost again. The library never exits, never prints, installs no signal
 *			 handler, starts no thread and keeps no global state. It writes to
 *			 sockets through libpq only, which does not raise SIGPIPE.
 * Threads	 Different objects may be used by different threads at once. One
 *			 object may be used by one thread at a time, except where its
 *			 declaration says otherwise. A PGconn is one such object.
 * Fork		 A waiter belongs to the process that made it. A child must neither
 *			 use nor free it.
 * Numbers	 Enumerators keep their numbers for ever; new ones are added at the
 *			 end. Switch over them with a default branch.
 *
 * The SQL functions are found through the search_path of the connection, as any
 * statement's are: where the extension lives in a schema of its own, put that
 * schema on it (ALTER ROLE ... SET search_path, or options in the connection
 * string).
 */
#ifndef IDEMKIT_H
#define IDEMKIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <libpq-fe.h>

/* Around what C++ must know to be C. */
#ifdef __cplusplus
#define IDEMKIT_BEGIN_C \
	extern "C"          \
	{
#define IDEMKIT_END_C }
#else
#define IDEMKIT_BEGIN_C
#define IDEMKIT_END_C
#endif

/* The version of this header. The shared library's soname follows MAJOR. */
#define IDEMKIT_VERSION_MAJOR 1
#define IDEMKIT_VERSION_MINOR 0
#define IDEMKIT_VERSION_PATCH 0

/* The longest effective key, in bytes, without its terminating NUL. */
#define IDEMKIT_MAX_KEY_BYTES 1024

#if defined(__GNUC__)
#define IDEMKIT_API		   __attribute__((visibility("default")))
#define IDEMKIT_MUST_CHECK __attribute__((warn_unused_result))
#else
#define IDEMKIT_API
#define IDEMKIT_MUST_CHECK
#endif

IDEMKIT_BEGIN_C

/*
 * The library's version at run time, as MAJOR * 10000 + MINOR * 100 + PATCH.
 */
IDEMKIT_API int idemkit_version(void);


/* ------------------------------------------------------------------------
 * Status and errors
 * ------------------------------------------------------------------------
 */

typedef enum IdemkitStatus
{
	/* done; see the result */
	IDEMKIT_OK = 0,
	/* no memory, here or in libpq */
	IDEMKIT_ERROR_MEMORY = 1,
	/* an argument this library itself refuses; nothing was sent */
	IDEMKIT_ERROR_ARGUMENT = 2,
	/*
	 * The connection is broken, or broke during the call. In the second case
	 * the server may or may not have executed the statement.
	 */
	IDEMKIT_ERROR_CONNECTION = 3,
	/* the server raised an error: see idemkit_error_sqlstate() */
	IDEMKIT_ERROR_SERVER = 4,
	/* idemkit_guard: the claim is not held any more (SQLSTATE IK001) */
	IDEMKIT_ERROR_CLAIM_LOST = 5,
	/* the answer has another shape than this library knows: versions differ */
	IDEMKIT_ERROR_PROTOCOL = 6,
	/*
	 * The object is in use: the PGconn has a command in progress or is in
	 * pipeline or COPY mode, or a waiter's callback called what it must not.
	 */
	IDEMKIT_ERROR_BUSY = 7,
	/* the waiter is being destroyed */
	IDEMKIT_ERROR_CLOSED = 8,
	/* the operating system refused a descriptor, a lock or a clock */
	IDEMKIT_ERROR_SYSTEM = 9,
	/* idemkit_waiter_cancel: no such wait, it has ended already */
	IDEMKIT_ERROR_NOT_FOUND = 10
} IdemkitStatus;

/* An English phrase for a status; never NULL, static storage. */
IDEMKIT_API const char *idemkit_status_text(IdemkitStatus status);

/*
 * What went wrong with a call: status, SQLSTATE, message, detail and hint.
 *
 * The caller makes one and passes it to as many calls as it likes. A call that
 * returns IDEMKIT_OK empties it, any other call fills it. Every parameter of
 * this type may be NULL where only the status is of interest. The texts are held
 * in the object itself (long ones are cut at a character's end), so that
 * recording an error can not fail. They contain no response body and no claim
 * token.
 */
typedef struct IdemkitError IdemkitError;

/* Returns NULL when out of memory. Free with idemkit_error_free(). */
IDEMKIT_API IdemkitError *idemkit_error_create(void);
IDEMKIT_API void		  idemkit_error_free(IdemkitError *error);

/*
 * Accessors. None returns NULL: a text that was not given is "". A NULL error
 * reads as an empty one. The pointers live until the error object is next passed
 * to a call, or freed.
 */
IDEMKIT_API IdemkitStatus idemkit_error_status(const IdemkitError *error);
/* five characters, or "" where the error did not come from the server */
IDEMKIT_API const char *idemkit_error_sqlstate(const IdemkitError *error);
/* one line, without a newline at its end */
IDEMKIT_API const char *idemkit_error_message(const IdemkitError *error);
IDEMKIT_API const char *idemkit_error_detail(const IdemkitError *error);
IDEMKIT_API const char *idemkit_error_hint(const IdemkitError *error);


/* ------------------------------------------------------------------------
 * Records
 * ------------------------------------------------------------------------
 */

typedef enum IdemkitState
{
	/* a state this library does not know: the record is corrupt */
	IDEMKIT_STATE_UNKNOWN = 0,
	IDEMKIT_STATE_CLAIMED = 1,
	IDEMKIT_STATE_COMPLETED = 2
} IdemkitState;

/* "CLAIMED", "COMPLETED", "UNKNOWN"; static storage. */
IDEMKIT_API const char *idemkit_state_name(IdemkitState state);

/*
 * One record as it stood when it was read. It never changes, and any number of
 * threads may read it at once.
 *
 * Records are counted by reference: idemkit_record_ref() takes one more and can
 * not fail, idemkit_record_free() gives one back and the last one frees. Both
 * are safe from any thread.
 */
typedef struct IdemkitRecord IdemkitRecord;

/* Returns its argument, which may be NULL. */
IDEMKIT_API const IdemkitRecord *idemkit_record_ref(const IdemkitRecord *record);
IDEMKIT_API void				 idemkit_record_free(const IdemkitRecord *record);

/*
 * Accessors; record must not be NULL. Pointers live as long as the record. Where
 * a column is NULL a pointer accessor returns NULL and the bool ones return false
 * and leave *value alone.
 */
IDEMKIT_API const char	*idemkit_record_effective_key(const IdemkitRecord *record);
IDEMKIT_API IdemkitState idemkit_record_state(const IdemkitRecord *record);
IDEMKIT_API const char	*idemkit_record_fingerprint(const IdemkitRecord *record);
IDEMKIT_API int32_t		 idemkit_record_fingerprint_version(const IdemkitRecord *record);
IDEMKIT_API const char	*idemkit_record_claim_token(const IdemkitRecord *record);
IDEMKIT_API int64_t		 idemkit_record_claimed_at(const IdemkitRecord *record);
IDEMKIT_API int64_t		 idemkit_record_lease_until(const IdemkitRecord *record);
IDEMKIT_API bool		 idemkit_record_completed_at(const IdemkitRecord *record, int64_t *value);
IDEMKIT_API bool idemkit_record_response_status(const IdemkitRecord *record, int32_t *value);
/* JSON text of an object */
IDEMKIT_API const char *idemkit_record_response_headers(const IdemkitRecord *record);
/*
 * NULL: there is no body (*length = 0). Not NULL with *length = 0: an empty
 * body. length may be NULL. A NUL byte that does not count follows the body.
 */
IDEMKIT_API const void *idemkit_record_response_body(const IdemkitRecord *record, size_t *length);
IDEMKIT_API int32_t		idemkit_record_attempts(const IdemkitRecord *record);
/*
 * What was left of the lease (CLAIMED) or the retention (COMPLETED) at the
 * moment of reading, by the database's clock; not below 0.
 */
IDEMKIT_API double idemkit_record_remaining_seconds(const IdemkitRecord *record);
/* Increases with every win of the stored record: let others refuse a lower one. */
IDEMKIT_API int64_t idemkit_record_fence(const IdemkitRecord *record);


/* ------------------------------------------------------------------------
 * Plain calls
 *
 * conn is the caller's: connected, with no command in progress and not in
 * pipeline mode. Each call is one statement, takes part in whatever transaction
 * is open, and blocks as PQexecParams() does: bound it with statement_timeout,
 * lock_timeout, tcp_user_timeout as you would any statement. Nothing of conn is
 * changed. conn's notice receiver sees the notices.
 *
 * Arguments are those of the SQL function of the same name, in its order.
 * records names the records table as SQL would write it ("idemkit_records",
 * "app.\"Jobs\""); NULL is the extension's own table.
 * ------------------------------------------------------------------------
 */

typedef enum IdemkitVerdict
{
	IDEMKIT_NEW_CLAIMED = 1,	  /* won */
	IDEMKIT_LEASE_RECLAIMED = 2,  /* won, after an owner's lease ran out */
	IDEMKIT_LEASE_LAPSED = 3,	  /* not won: lease over, and reclaim was false */
	IDEMKIT_ALREADY_CLAIMED = 4,  /* not won: somebody is at work */
	IDEMKIT_ALREADY_COMPLETED = 5 /* not won: the record has the result */
} IdemkitVerdict;

/* "new_claimed" and so on, as SQL has it; "unknown" for other numbers. */
IDEMKIT_API const char *idemkit_verdict_name(IdemkitVerdict verdict);

/* The answer to idemkit_claim(). */
typedef struct IdemkitClaim IdemkitClaim;

/* Frees the claim and its reference to the record. */
IDEMKIT_API void idemkit_claim_free(IdemkitClaim *claim);

IDEMKIT_API IdemkitVerdict idemkit_claim_verdict(const IdemkitClaim *claim);
/* NULL unless the claim was won: the token for complete, release and renew. */
IDEMKIT_API const char *idemkit_claim_our_token(const IdemkitClaim *claim);
/* the claim was won over a record that could not be understood */
IDEMKIT_API bool idemkit_claim_recovered_from_corrupt(const IdemkitClaim *claim);
/* false: the key is in use for another payload */
IDEMKIT_API bool idemkit_claim_fingerprint_matches(const IdemkitClaim *claim);
/* The record, never NULL; lives with the claim unless referenced. */
IDEMKIT_API const IdemkitRecord *idemkit_claim_record(const IdemkitClaim *claim);

/*
 * Claim a key. On IDEMKIT_OK *claim holds the verdict; free it with
 * idemkit_claim_free(). fingerprint NULL is the empty one. SQL's defaults:
 * fingerprint "", version 1, lease 30 seconds, reclaim true.
 */
IDEMKIT_API IdemkitStatus idemkit_claim(PGconn *conn, const char *effective_key,
										const char *fingerprint, int32_t fingerprint_version,
										double lease_ttl_seconds, bool reclaim, const char *records,
										IdemkitClaim **claim,
										IdemkitError  *error) IDEMKIT_MUST_CHECK;

/*
 * Store the result. *completed is false where the claim is not ours any more
 * (nothing was changed).
 *
 * response_status		NULL for none
 * response_headers		JSON text of an object, NULL for none
 * response_body		NULL for none; else response_body_length bytes, 0 being an
 *						empty body
 * expires_after_seconds  retention; SQL's default is 86400
 */
IDEMKIT_API IdemkitStatus idemkit_complete(PGconn *conn, const char *effective_key,
										   const char *claim_token, const int32_t *response_status,
										   const char *response_headers, const void *response_body,
										   size_t response_body_length,
										   double expires_after_seconds, const char *records,
										   bool *completed, IdemkitError *error) IDEMKIT_MUST_CHECK;

/*
 * Give the claim back without a result. *released is false where it is not ours
 * any more. keep_attempts keeps the record, and with it the count of attempts,
 * for the next claim.
 */
IDEMKIT_API IdemkitStatus idemkit_release(PGconn *conn, const char *effective_key,
										  const char *claim_token, bool keep_attempts,
										  const char *records, bool *released,
										  IdemkitError *error) IDEMKIT_MUST_CHECK;

/*
 * Let the lease run for lease_ttl_seconds from now. *renewed is false where the
 * claim is not ours any more: stop the work.
 */
IDEMKIT_API IdemkitStatus idemkit_renew(PGconn *conn, const char *effective_key,
										const char *claim_token, double lease_ttl_seconds,
										const char *records, bool *renewed,
										IdemkitError *error) IDEMKIT_MUST_CHECK;

/*
 * In a transaction: hold the claim until the transaction ends. On
 * IDEMKIT_ERROR_CLAIM_LOST it is not ours any more; the server has raised an
 * error, so the transaction has failed and is to be rolled back.
 */
IDEMKIT_API IdemkitStatus idemkit_guard(PGconn *conn, const char *effective_key,
										const char *claim_token, const char *records,
										IdemkitError *error) IDEMKIT_MUST_CHECK;

/*
 * Read the record. *record is NULL where there is none; free it with
 * idemkit_record_free(). A record whose lease or retention is over is returned
 * as it stands, with remaining_seconds 0.
 */
IDEMKIT_API IdemkitStatus idemkit_get(PGconn *conn, const char *effective_key, const char *records,
									  const IdemkitRecord **record,
									  IdemkitError		   *error) IDEMKIT_MUST_CHECK;


/* ------------------------------------------------------------------------
 * Waiting: outcomes and options, for both kinds of waiter
 * ------------------------------------------------------------------------
 */

typedef enum IdemkitOutcome
{
	/* there is a result: record */
	IDEMKIT_OUTCOME_COMPLETED = 1,
	/* no record: released, expired or never there. Claim again. record is NULL */
	IDEMKIT_OUTCOME_ABSENT = 2,
	/* the lease ran out without a result. Claim again. record: as it was read */
	IDEMKIT_OUTCOME_LAPSED = 3,
	/*
	 * The deadline came first. record: the claim as last read, or NULL where it
	 * never was. error: NULL, or why the server could not be asked lately.
	 */
	IDEMKIT_OUTCOME_TIMEOUT = 4,
	/* the wait can not be answered: error says why. record is NULL */
	IDEMKIT_OUTCOME_ERROR = 5,
	/* the waiter was destroyed. record is NULL */
	IDEMKIT_OUTCOME_CLOSED = 6
} IdemkitOutcome;

/* "completed", "absent", "lapsed", "timeout", "error", "closed". */
IDEMKIT_API const char *idemkit_outcome_name(IdemkitOutcome outcome);

typedef enum IdemkitListen
{
	/*
	 * LISTEN, test that notifications arrive, and where they do not (behind a
	 * transaction pooler, on a standby) go on by re-reading.
	 */
	IDEMKIT_LISTEN_AUTO = 0,
	/* Never LISTEN: re-read only. */
	IDEMKIT_LISTEN_OFF = 1,
	/*
	 * LISTEN and trust it, also where the server is reached through a proxy that
	 * AUTO takes for a transaction pooler. For a pooler in session mode.
	 */
	IDEMKIT_LISTEN_ALWAYS = 2
} IdemkitListen;

typedef enum IdemkitNotice
{
	/*
	 * Notifications do not arrive: waits are answered by re-reading, which takes
	 * up to a second longer. Given once in a waiter's life.
	 */
	IDEMKIT_NOTICE_POLLING = 1,
	/* the connection was lost or could not be made; it will be tried again */
	IDEMKIT_NOTICE_DISCONNECTED = 2,
	/* the connection is up */
	IDEMKIT_NOTICE_CONNECTED = 3
} IdemkitNotice;

/*
 * Something happened that no wait's outcome tells. message is one line, and
 * lives until the callback returns. The callback is called by the thread that
 * drives the waiter and must call nothing of that waiter.
 */
typedef void (*IdemkitNoticeCallback)(void *arg, IdemkitNotice notice, const char *message);

/*
 * Settings of a waiter to be made. Every setter may be left out; each returns
 * IDEMKIT_ERROR_ARGUMENT for a value out of range and then changes nothing.
 */
typedef struct IdemkitWaiterOptions IdemkitWaiterOptions;

/* Returns NULL when out of memory. Free with idemkit_waiter_options_free(). */
IDEMKIT_API IdemkitWaiterOptions *idemkit_waiter_options_create(void);
IDEMKIT_API void				  idemkit_waiter_options_free(IdemkitWaiterOptions *options);

/* The records table, as in the plain calls; NULL (default): the extension's own. */
IDEMKIT_API IdemkitStatus idemkit_waiter_options_set_records(IdemkitWaiterOptions *options,
															 const char			  *records);
/* Default: IDEMKIT_LISTEN_AUTO. */
IDEMKIT_API IdemkitStatus idemkit_waiter_options_set_listen(IdemkitWaiterOptions *options,
															IdemkitListen		  listen);
/*
 * How long one attempt to connect may take, over all hosts of the connection
 * string (whose connect_timeout is not used). More than 0; default 5 seconds. A
 * look-up of a host's name is libpq's and blocks; a hostaddr avoids it.
 */
IDEMKIT_API IdemkitStatus idemkit_waiter_options_set_connect_timeout(IdemkitWaiterOptions *options,
																	 double				   seconds);
/*
 * How long the server may stay silent while it owes an answer, before the
 * connection is taken for dead and made anew. More than 0; default 5 seconds.
 */
IDEMKIT_API IdemkitStatus idemkit_waiter_options_set_query_timeout(IdemkitWaiterOptions *options,
																   double				 seconds);
/*
 * Pauses between attempts to connect: the first is about min, each next one
 * twice as long up to max; each is shortened by up to half at random so that
 * clients do not come in step. 0 < min <= max; default 0.05 and 5 seconds.
 */
IDEMKIT_API IdemkitStatus idemkit_waiter_options_set_reconnect(IdemkitWaiterOptions *options,
															   double				 min_seconds,
															   double				 max_seconds);
/* Default: NULL, none. */
IDEMKIT_API IdemkitStatus idemkit_waiter_options_set_notice(IdemkitWaiterOptions *options,
															IdemkitNoticeCallback callback,
															void				 *arg);


/* ------------------------------------------------------------------------
 * The waiter for event loops
 *
 * One connection for any number of waits. It is made when the first wait is
 * submitted, and made anew whenever it breaks. Notifications make a wait's end
 * prompt (they are taken up at once); re-reading makes it right: all waiting
 * keys are read again in one query, 50 ms after they were submitted, then after
 * twice that, up to once a second. A wait ends by its deadline whatever happens
 * to network and server, provided the loop calls idemkit_waiter_process() when
 * asked to.
 *
 * The loop, in short (examples/c/ has it for poll(2) and for libev):
 *
 *	   for (;;)
 *	   {
 *		   struct pollfd p = {idemkit_waiter_socket(w), 0, 0};
 *		   int			 events = idemkit_waiter_events(w);
 *
 *		   if (events & IDEMKIT_EVENT_READ)
 *			   p.events |= POLLIN;
 *		   if (events & IDEMKIT_EVENT_WRITE)
 *			   p.events |= POLLOUT;
 *		   poll(&p, 1, idemkit_waiter_timeout_ms(w));
 *		   idemkit_waiter_process(w);
 *	   }
 *
 * Ask for socket, events and timeout again after every call of submit, cancel
 * and process: any of these may change them, the socket included. A loop that
 * keeps a descriptor registered takes it out and puts it in again when
 * idemkit_waiter_socket_serial() has changed, since the number alone may be used
 * again for another connection.
 *
 * One thread at a time; IdemkitSharedWaiter is the one for many.
 * ------------------------------------------------------------------------
 */

typedef struct IdemkitWaiter IdemkitWaiter;

/* Names one wait of one waiter; never 0, never used twice. */
typedef uint64_t IdemkitWaitId;

/*
 * How a wait ended: called exactly once for each submitted wait that is not
 * cancelled, from within idemkit_waiter_process() or idemkit_waiter_destroy(),
 * never from within idemkit_waiter_submit().
 *
 * record and error are borrowed until the callback returns; to keep the record
 * take a reference with idemkit_record_ref(). Which of them is given with which
 * outcome is said at IdemkitOutcome.
 *
 * The callback may submit and cancel waits of the same waiter, and may destroy
 * it (which then happens when idemkit_waiter_process() is about to return). It
 * must not call idemkit_waiter_process(). It must return: no longjmp, no C++
 * exception.
 */
typedef void (*IdemkitWaitCallback)(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
									const IdemkitError *error);

/*
 * Make a waiter. conninfo is a connection string or URI as for PQconnectdb();
 * NULL or "" leaves all to libpq's environment. It is checked for its form, but
 * nothing is connected yet. options may be NULL, is copied, and stays the
 * caller's. Free with idemkit_waiter_destroy().
 */
IDEMKIT_API IdemkitStatus idemkit_waiter_create(const char				   *conninfo,
												const IdemkitWaiterOptions *options,
												IdemkitWaiter			  **waiter,
												IdemkitError *error) IDEMKIT_MUST_CHECK;

/*
 * End all waits with IDEMKIT_OUTCOME_CLOSED, close the connection, free. What a
 * callback submits meanwhile is refused with IDEMKIT_ERROR_CLOSED.
 */
IDEMKIT_API void idemkit_waiter_destroy(IdemkitWaiter *waiter);

/*
 * Wait for effective_key for at most timeout_seconds from now (0 to 10 years). Sends
 * nothing itself: the next idemkit_waiter_process(), which is due at once, does
 * that for all waits submitted by then. The key must be UTF-8. Several waits for
 * one key are legal, each has its own deadline. id may be NULL.
 */
IDEMKIT_API IdemkitStatus idemkit_waiter_submit(IdemkitWaiter *waiter, const char *effective_key,
												double				timeout_seconds,
												IdemkitWaitCallback callback, void *arg,
												IdemkitWaitId *id,
												IdemkitError  *error) IDEMKIT_MUST_CHECK;

/*
 * Forget a wait: its callback will not be called. IDEMKIT_ERROR_NOT_FOUND where
 * it has ended already, which includes the wait whose callback is running.
 */
IDEMKIT_API IdemkitStatus idemkit_waiter_cancel(IdemkitWaiter *waiter, IdemkitWaitId id);

enum
{
	IDEMKIT_EVENT_READ = 1,
	IDEMKIT_EVENT_WRITE = 2
};

/* The socket to watch, or -1 while there is none. Never close or read it. */
IDEMKIT_API int idemkit_waiter_socket(const IdemkitWaiter *waiter);

/* A number that changes whenever idemkit_waiter_socket() means another socket. */
IDEMKIT_API uint64_t idemkit_waiter_socket_serial(const IdemkitWaiter *waiter);

/*
 * IDEMKIT_EVENT_READ and IDEMKIT_EVENT_WRITE or-ed together: what to watch the
 * socket for, level-triggered; 0 while there is none.
 */
IDEMKIT_API int idemkit_waiter_events(const IdemkitWaiter *waiter);

/*
 * How long until idemkit_waiter_process() must be called even if the socket
 * stays silent: in microseconds, or in milliseconds rounded up as poll(2) takes
 * them. 0: now. -1: no such time.
 */
IDEMKIT_API int64_t idemkit_waiter_timeout_us(const IdemkitWaiter *waiter);
IDEMKIT_API int		idemkit_waiter_timeout_ms(const IdemkitWaiter *waiter);

/*
 * Do what is due: connect, read, send, call back. Never blocks (but see
 * idemkit_waiter_options_set_connect_timeout() on names of hosts) and may be
 * called at any time, also when nothing is due. Trouble with the connection is
 * not reported here but repaired. IDEMKIT_ERROR_BUSY when called from one of the
 * waiter's own callbacks.
 *
 * Keep calling it, when the socket is readable or the timeout is over, also while
 * no wait is pending: after a second without waits the waiter stops listening,
 * and until then the server sends it notifications that somebody must read.
 */
IDEMKIT_API IdemkitStatus idemkit_waiter_process(IdemkitWaiter *waiter);

typedef enum IdemkitCounter
{
	IDEMKIT_COUNTER_WAITS = 0,		   /* waits pending now */
	IDEMKIT_COUNTER_QUERIES = 1,	   /* queries sent, set-up included */
	IDEMKIT_COUNTER_KEYS_READ = 2,	   /* keys in these queries */
	IDEMKIT_COUNTER_NOTIFICATIONS = 3, /* notifications received */
	IDEMKIT_COUNTER_CONNECTIONS = 4,   /* connections made */
	IDEMKIT_COUNTER_FAILURES = 5,	   /* connections lost, or not made */
	IDEMKIT_COUNTER_LISTENING = 6	   /* 1: notifications are known to arrive, else 0 */
} IdemkitCounter;

/* For monitoring; 0 for a counter this library does not know. */
IDEMKIT_API uint64_t idemkit_waiter_counter(const IdemkitWaiter *waiter, IdemkitCounter counter);


/* ------------------------------------------------------------------------
 * The waiter for threads
 *
 * The same waiter behind a lock, with a wait that blocks. Any number of threads
 * may wait at once, still on one connection. One of the waiting threads attends
 * to the socket, the others sleep; when its own wait ends another takes over. No
 * thread runs while none waits, and the waiter then does not listen.
 * ------------------------------------------------------------------------
 */

typedef struct IdemkitSharedWaiter IdemkitSharedWaiter;

/* As idemkit_waiter_create(). Free with idemkit_shared_waiter_destroy(). */
IDEMKIT_API IdemkitStatus idemkit_shared_waiter_create(const char				  *conninfo,
													   const IdemkitWaiterOptions *options,
													   IdemkitSharedWaiter		 **waiter,
													   IdemkitError *error) IDEMKIT_MUST_CHECK;

/*
 * Wait for a key, for at most timeout_seconds. Safe from many threads at once;
 * each passes its own record and error.
 *
 * IDEMKIT_OK: *outcome is COMPLETED, ABSENT, LAPSED, TIMEOUT or CLOSED, and
 * *record what IdemkitOutcome says of it, or NULL; free it with
 * idemkit_record_free(). With TIMEOUT, error may tell why the server could not be
 * asked (this is the one case where IDEMKIT_OK fills it). record may be NULL.
 *
 * Any other status: the wait could not be made, or ended as
 * IDEMKIT_OUTCOME_ERROR, with error filled accordingly.
 *
 * Not to be called from the notice callback. The thread is not cancelled (as by
 * pthread_cancel()) while it waits.
 */
IDEMKIT_API IdemkitStatus idemkit_shared_wait(IdemkitSharedWaiter *waiter,
											  const char *effective_key, double timeout_seconds,
											  IdemkitOutcome *outcome, const IdemkitRecord **record,
											  IdemkitError *error) IDEMKIT_MUST_CHECK;

/* As idemkit_waiter_counter(); safe from any thread. */
IDEMKIT_API uint64_t idemkit_shared_waiter_counter(IdemkitSharedWaiter *waiter,
												   IdemkitCounter		counter);

/*
 * End all waits in progress with IDEMKIT_OUTCOME_CLOSED, wait until their
 * threads have left, free. May be called while other threads wait, but none may
 * begin a call of this waiter once destroy has been called. Not to be called from
 * the notice callback.
 */
IDEMKIT_API void idemkit_shared_waiter_destroy(IdemkitSharedWaiter *waiter);

IDEMKIT_END_C

#endif /* IDEMKIT_H */
