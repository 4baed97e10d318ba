/*
 * worker.c - the thread of "idemkit run" that calls the database
 *
 * It does one job at a time and decides nothing: when to ask, how long to wait
 * and what follows is the main thread's business. It connects when it has to.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct Worker
{
	const Options *options;
	IdemkitError  *error; /* the thread's */
	PGconn		  *conn;  /* the thread's; the main thread's while idle */
	pthread_t	   thread;
	int			   pipe[2]; /* a byte for each answer */
	bool		   busy;	/* the main thread's */

	pthread_mutex_t lock; /* for what follows */
	pthread_cond_t	wake;
	bool			has_job;
	bool			quit;
	Job				job;
	Answer			answer;
	double			asked;		 /* INFINITY: no statement in progress */
	bool			interrupted; /* the statement in progress was */
	int				socket;		 /* a duplicate of conn's, ours to close; or -1 */
};

/*
 * Keep a descriptor of the connection's socket that nobody else closes, so that
 * worker_interrupt() can never meet another file under its number.
 */
static void
keep_socket(Worker *worker)
{
	int fd = worker->conn != NULL ? PQsocket(worker->conn) : -1;

	pthread_mutex_lock(&worker->lock);
	if (worker->socket >= 0)
		close(worker->socket);
	worker->socket = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
	pthread_mutex_unlock(&worker->lock);
}

void
worker_disconnect(Worker *worker)
{
	PQfinish(worker->conn);
	worker->conn = NULL;
	keep_socket(worker);
}

/*
 * Make the connection good, or leave it bad: the call that follows tells why. One
 * that was found to be lost has been closed, whatever libpq says of it.
 */
static void
connect_if_needed(Worker *worker)
{
	if (worker->conn != NULL && PQstatus(worker->conn) == CONNECTION_OK)
		return;
	worker_disconnect(worker);
	worker->conn = PQconnectdb(worker->options->conninfo);
	keep_socket(worker);
}

static void
set_asked(Worker *worker, double asked)
{
	pthread_mutex_lock(&worker->lock);
	worker->asked = asked;
	if (!isinf(asked))
		worker->interrupted = false;
	pthread_mutex_unlock(&worker->lock);
}

/*
 * Run a statement that gives no rows. False, with the failure noted, where it
 * was not done as told: the answer to the COMMIT of a failed transaction is
 * ROLLBACK, and no error. A connection that is lost is closed.
 */
static bool
execute(Worker *worker, const char *statement, const char *tag, Failure *failure)
{
	PGresult *result = PQexec(worker->conn, statement);
	bool done = PQresultStatus(result) == PGRES_COMMAND_OK && strcmp(PQcmdStatus(result), tag) == 0;

	if (!done)
		note_result(failure, worker->conn, result);
	if (connection_lost(worker->conn, result))
		worker_disconnect(worker);
	PQclear(result);
	return done;
}

/*
 * Claim the key in a transaction of its own, where the wait for a row that an
 * open transaction has locked can be bounded without leaving a setting behind
 * for whoever gets the server's session next from a pooler.
 */
static IdemkitStatus
claim(Worker *worker, const Job *job, Answer *answer)
{
	const Options *options = worker->options;
	char		   begin[128];
	IdemkitStatus  status;

	snprintf(begin, sizeof(begin),
			 "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = %lld",
			 (long long) ceil(job->lock_wait * 1000));
	if (PQstatus(worker->conn) == CONNECTION_OK && !execute(worker, begin, "SET", &answer->failure))
	{
		worker_disconnect(worker); /* it may be half in a transaction */
		answer->failed = true;
		return IDEMKIT_OK;
	}
	status = idemkit_claim(worker->conn, options->key, options->fingerprint,
						   (int32_t) options->fingerprint_version, options->lease, true,
						   options->table, &answer->claim, worker->error);
	if (status != IDEMKIT_OK)
	{
		Failure ignored;

		execute(worker, "ROLLBACK", "ROLLBACK", &ignored);
	}
	else if (!execute(worker, "COMMIT", "COMMIT", &answer->failure))
	{
		answer->failed = true;
		answer->unsure = worker->conn == NULL;
		idemkit_claim_free(answer->claim);
		answer->claim = NULL;
	}
	return status;
}

/*
 * Where a claim is not held any more: is the record completed, and by our claim?
 * The command may have done that with its token, in the transaction of its
 * writes; or an attempt before has, whose answer was lost.
 */
static IdemkitStatus
look_for_result(Worker *worker, const Job *job, bool *ours)
{
	const IdemkitRecord *record = NULL;
	IdemkitStatus status = idemkit_get(worker->conn, worker->options->key, worker->options->table,
									   &record, worker->error);

	*ours = status == IDEMKIT_OK && record != NULL &&
			idemkit_record_state(record) == IDEMKIT_STATE_COMPLETED &&
			strcmp(idemkit_record_claim_token(record), job->token) == 0;
	idemkit_record_free(record);
	return status;
}

static IdemkitStatus
complete(Worker *worker, const Job *job, bool *done)
{
	const Options *options = worker->options;
	double		   retention =
		isnan(options->expires_after) ? DEFAULT_EXPIRES_AFTER : options->expires_after;

	return idemkit_complete(worker->conn, options->key, job->token, &job->status, job->headers,
							job->body, job->length, retention, options->table, done, worker->error);
}

static bool
was_interrupted(Worker *worker)
{
	bool interrupted;

	pthread_mutex_lock(&worker->lock);
	interrupted = worker->interrupted;
	pthread_mutex_unlock(&worker->lock);
	return interrupted;
}

/*
 * Make the call of a job. Only where the connection was good may a call that found
 * it broken have been executed all the same; a claim is not, as it then was in a
 * transaction that is rolled back.
 */
static IdemkitStatus
call(Worker *worker, const Job *job, Answer *answer)
{
	const Options *options = worker->options;
	bool		   connected = PQstatus(worker->conn) == CONNECTION_OK;
	IdemkitStatus  status = IDEMKIT_OK;

	answer->asked = clock_now();
	set_asked(worker, answer->asked);
	switch (job->kind)
	{
		case JOB_CLAIM:
			return claim(worker, job, answer);
		case JOB_RENEW:
			status = idemkit_renew(worker->conn, options->key, job->token, options->lease,
								   options->table, &answer->done, worker->error);
			break;
		case JOB_COMPLETE:
			status = complete(worker, job, &answer->done);
			break;
		case JOB_RELEASE:
			status = idemkit_release(worker->conn, options->key, job->token, false, options->table,
									 &answer->done, worker->error);
			break;
	}
	answer->unsure = connected && status == IDEMKIT_ERROR_CONNECTION;
	if (status == IDEMKIT_OK && !answer->done)
		status = look_for_result(worker, job, &answer->settled);
	return status;
}

/*
 * Do a job and fill the answer.
 *
 * Between renewals the connection idles, and somebody on the way may have cut it
 * meanwhile: a renewal that meets a dead connection is tried again at once, without
 * a word.
 */
static void
do_job(Worker *worker, const Job *job, Answer *answer)
{
	IdemkitStatus status;
	bool		  idled = worker->conn != NULL;

	*answer = (Answer){.asked = 0};
	connect_if_needed(worker);
	status = call(worker, job, answer);
	set_asked(worker, INFINITY);
	if (status == IDEMKIT_ERROR_CONNECTION && job->kind == JOB_RENEW && idled &&
		!was_interrupted(worker))
	{
		worker_disconnect(worker);
		connect_if_needed(worker);
		status = call(worker, job, answer);
		set_asked(worker, INFINITY);
	}
	if (status != IDEMKIT_OK)
	{
		answer->failed = true;
		note_error(&answer->failure, worker->error);
	}
	if (status == IDEMKIT_ERROR_CONNECTION)
		worker_disconnect(worker);
	/* what libpq then says blames the server's closing the connection */
	if (answer->failed && answer->failure.status == EX_UNAVAILABLE && was_interrupted(worker))
		snprintf(answer->failure.text, sizeof(answer->failure.text),
				 "the server did not answer in time");
}

static void *
work(void *arg)
{
	Worker *worker = arg;
	Answer	answer;
	Job		job;

	for (;;)
	{
		pthread_mutex_lock(&worker->lock);
		while (!worker->has_job && !worker->quit)
			pthread_cond_wait(&worker->wake, &worker->lock);
		if (worker->quit)
		{
			pthread_mutex_unlock(&worker->lock);
			return NULL;
		}
		job = worker->job;
		worker->has_job = false;
		pthread_mutex_unlock(&worker->lock);

		do_job(worker, &job, &answer);

		pthread_mutex_lock(&worker->lock);
		worker->answer = answer;
		pthread_mutex_unlock(&worker->lock);
		while (write(worker->pipe[1], "", 1) < 0 && errno == EINTR)
			;
	}
}

Worker *
worker_create(const Options *options)
{
	Worker	*worker = calloc(1, sizeof(*worker));
	sigset_t before;
	int		 error = ENOMEM;

	if (worker != NULL)
	{
		worker->options = options;
		worker->asked = INFINITY;
		worker->socket = -1;
		worker->error = idemkit_error_create();
		pthread_mutex_init(&worker->lock, NULL);
		pthread_cond_init(&worker->wake, NULL);
		if (worker->error != NULL)
			error = pipe2(worker->pipe, O_CLOEXEC) == 0 ? 0 : errno;
	}
	if (error == 0)
	{
		/* signals are the main thread's */
		signals_block(&before);
		error = pthread_create(&worker->thread, NULL, work, worker);
		signals_unblock(&before);
	}
	if (error == 0)
		return worker;
	say("cannot start a thread: %s", strerror(error));
	return NULL;
}

void
worker_submit(Worker *worker, const Job *job)
{
	worker->busy = true;
	pthread_mutex_lock(&worker->lock);
	worker->job = *job;
	worker->has_job = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
}

int
worker_fd(const Worker *worker)
{
	return worker->pipe[0];
}

bool
worker_busy(const Worker *worker)
{
	return worker->busy;
}

/*
 * To be called when worker_fd() is readable: it would wait otherwise.
 */
bool
worker_take(Worker *worker, Answer *answer)
{
	char	byte;
	ssize_t n;

	do
		n = read(worker->pipe[0], &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n != 1)
		return false;
	pthread_mutex_lock(&worker->lock);
	*answer = worker->answer;
	pthread_mutex_unlock(&worker->lock);
	worker->busy = false;
	return true;
}

double
worker_asked(Worker *worker)
{
	double asked;

	pthread_mutex_lock(&worker->lock);
	asked = worker->asked;
	pthread_mutex_unlock(&worker->lock);
	return asked;
}

void
worker_interrupt(Worker *worker)
{
	pthread_mutex_lock(&worker->lock);
	if (worker->socket >= 0 && !isinf(worker->asked))
	{
		worker->interrupted = true;
		shutdown(worker->socket, SHUT_RDWR);
	}
	pthread_mutex_unlock(&worker->lock);
}

bool
worker_destroy(Worker *worker)
{
	if (worker == NULL)
		return true;
	if (worker->busy)
		return false;
	pthread_mutex_lock(&worker->lock);
	worker->quit = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
	pthread_join(worker->thread, NULL);
	worker_disconnect(worker);
	close(worker->pipe[0]);
	close(worker->pipe[1]);
	pthread_cond_destroy(&worker->wake);
	pthread_mutex_destroy(&worker->lock);
	idemkit_error_free(worker->error);
	free(worker);
	return true;
}
