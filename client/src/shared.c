/*
 * shared.c - the blocking wait, safe from many threads
 *
 * One lock guards a waiter. Of the threads that wait, one drives: it polls the
 * socket without the lock and steps the waiter with it. The others sleep, each on
 * a condition of its own, so that the end of a wait wakes the one thread it
 * concerns. When the driver's own wait has ended it names a sleeper to follow it.
 *
 * A thread that submits a wait while the driver polls writes to a pipe that the
 * driver polls as well. It does so with the lock held, and the driver makes up
 * its mind how long to poll with the lock held, so no submission goes unseen.
 *
 * The last thread to leave parks the waiter, since nobody will read what the
 * server sends until the next wait.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "alloc.h"
#include "error.h"
#include "list.h"
#include "waiter.h"

struct IdemkitSharedWaiter
{
	pthread_mutex_t lock;
	pthread_cond_t	left; /* a thread has left idemkit_shared_wait() */
	IdemkitWaiter  *waiter;
	IdemkitLink		sleepers; /* of Sleeper.link: waiting and not driving */
	int				inside;	  /* threads in idemkit_shared_wait() */
	bool			driven;	  /* one of them drives, or is named to */
	bool			polling;  /* it polls, without the lock */
	bool			poked;	  /* the pipe has a byte in it */
	bool			closing;
	int				pipe[2];
};

/* A thread that waits; lives on its stack. */
typedef struct Sleeper
{
	IdemkitLink			 link;
	pthread_cond_t		 wake;
	bool				 named; /* it is to drive */
	bool				 ended;
	IdemkitOutcome		 outcome;
	const IdemkitRecord *record;
	IdemkitError		*error; /* the caller's, or NULL */
	IdemkitStatus		 error_status;
} Sleeper;

static bool
open_pipe(int ends[2])
{
	if (pipe(ends) != 0)
		return false;
	for (int i = 0; i < 2; i++)
	{
		(void) fcntl(ends[i], F_SETFD, FD_CLOEXEC);
		(void) fcntl(ends[i], F_SETFL, O_NONBLOCK);
	}
	return true;
}

static IdemkitStatus
set_system(IdemkitError *error, const char *message)
{
	return idemkit_error_set(error, IDEMKIT_ERROR_SYSTEM, message);
}

/*
 * Make what the system has to give; on failure nothing is left of it.
 */
static IdemkitStatus
open_shared(IdemkitSharedWaiter *shared, IdemkitError *error)
{
	if (!open_pipe(shared->pipe))
		return set_system(error, "could not create a pipe");
	if (pthread_mutex_init(&shared->lock, NULL) == 0)
	{
		if (pthread_cond_init(&shared->left, NULL) == 0)
			return IDEMKIT_OK;
		(void) pthread_mutex_destroy(&shared->lock);
	}
	(void) close(shared->pipe[0]);
	(void) close(shared->pipe[1]);
	return set_system(error, "could not create a lock");
}

IdemkitStatus
idemkit_shared_waiter_create(const char *conninfo, const IdemkitWaiterOptions *options,
							 IdemkitSharedWaiter **waiter, IdemkitError *error)
{
	IdemkitSharedWaiter *shared;
	IdemkitStatus		 status;

	if (waiter == NULL)
		return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT, "place for the waiter is NULL");
	*waiter = NULL;
	shared = idemkit_mem_alloc(sizeof(*shared));
	if (shared == NULL)
		return idemkit_error_set_memory(error);
	*shared = (IdemkitSharedWaiter){0};
	idemkit_list_init(&shared->sleepers);
	status = idemkit_waiter_create(conninfo, options, &shared->waiter, error);
	if (status == IDEMKIT_OK)
	{
		status = open_shared(shared, error);
		if (status != IDEMKIT_OK)
			idemkit_waiter_destroy(shared->waiter);
	}
	if (status != IDEMKIT_OK)
	{
		idemkit_mem_free(shared);
		return status;
	}
	*waiter = shared;
	return IDEMKIT_OK;
}

/*
 * A wait has ended: tell its thread. Called by the driver, with the lock.
 */
static void
wait_ended(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
		   const IdemkitError *error)
{
	Sleeper *sleeper = arg;

	sleeper->ended = true;
	sleeper->outcome = outcome;
	sleeper->record = idemkit_record_ref(record);
	if (error != NULL)
	{
		sleeper->error_status = idemkit_error_status(error);
		idemkit_error_copy(sleeper->error, error);
	}
	(void) pthread_cond_signal(&sleeper->wake);
}

/*
 * Make the driver look again, if it polls.
 */
static void
poke(IdemkitSharedWaiter *shared)
{
	ssize_t written;

	if (!shared->polling || shared->poked)
		return;
	do
		written = write(shared->pipe[1], "", 1);
	while (written < 0 && errno == EINTR);
	/* a pipe that is full would wake the driver just as well */
	shared->poked = true;
}

static void
drain_pipe(IdemkitSharedWaiter *shared)
{
	char bytes[16];

	if (!shared->poked)
		return;
	while (read(shared->pipe[0], bytes, sizeof(bytes)) > 0)
		;
	shared->poked = false;
}

/*
 * Poll once, without the lock.
 */
static void
poll_once(IdemkitSharedWaiter *shared)
{
	struct pollfd fds[2] = {{.fd = idemkit_waiter_socket(shared->waiter)},
							{.fd = shared->pipe[0], .events = POLLIN}};
	int			  events = idemkit_waiter_events(shared->waiter);
	int			  timeout = idemkit_waiter_timeout_ms(shared->waiter);

	if (events & IDEMKIT_EVENT_READ)
		fds[0].events |= POLLIN;
	if (events & IDEMKIT_EVENT_WRITE)
		fds[0].events |= POLLOUT;
	if (timeout == 0)
		return;
	shared->polling = true;
	(void) pthread_mutex_unlock(&shared->lock);
	(void) poll(fds, 2, timeout);
	(void) pthread_mutex_lock(&shared->lock);
	shared->polling = false;
	drain_pipe(shared);
}

/*
 * Drive until our own wait has ended; then name another driver.
 */
static void
drive(IdemkitSharedWaiter *shared, Sleeper *self)
{
	shared->driven = true;
	while (!self->ended)
	{
		(void) idemkit_waiter_process(shared->waiter);
		if (self->ended)
			break;
		if (shared->closing)
		{
			/* ends our own wait with all others */
			idemkit_waiter_end_all(shared->waiter);
			break;
		}
		poll_once(shared);
	}
	shared->driven = false;
	for (IdemkitLink *link = shared->sleepers.next; link != &shared->sleepers; link = link->next)
	{
		Sleeper *next = IDEMKIT_MEMBER(Sleeper, link, link);

		if (next->ended)
			continue;
		shared->driven = true;
		next->named = true;
		(void) pthread_cond_signal(&next->wake);
		return;
	}
}

/*
 * Stay until our wait has ended, asleep or driving.
 */
static void
stay(IdemkitSharedWaiter *shared, Sleeper *self)
{
	if (shared->driven)
	{
		idemkit_list_append(&shared->sleepers, &self->link);
		poke(shared);
		while (!self->ended && !self->named)
			(void) pthread_cond_wait(&self->wake, &shared->lock);
		idemkit_list_remove(&self->link);
		/* a driver that was named and has no need to drive names the next */
		if (!self->named)
			return;
	}
	drive(shared, self);
}

/*
 * Take part in the waiting; with the lock held.
 */
static IdemkitStatus
wait_inside(IdemkitSharedWaiter *shared, const char *effective_key, double timeout_seconds,
			Sleeper *self)
{
	IdemkitStatus status;

	if (shared->closing)
		return idemkit_error_set(self->error, IDEMKIT_ERROR_CLOSED, "waiter is being destroyed");
	status = idemkit_waiter_submit(shared->waiter, effective_key, timeout_seconds, wait_ended, self,
								   NULL, self->error);
	if (status != IDEMKIT_OK)
		return status;
	shared->inside++;
	stay(shared, self);
	shared->inside--;
	if (shared->inside == 0)
	{
		idemkit_waiter_park(shared->waiter);
		(void) pthread_cond_broadcast(&shared->left);
	}
	return self->outcome == IDEMKIT_OUTCOME_ERROR ? self->error_status : IDEMKIT_OK;
}

IdemkitStatus
idemkit_shared_wait(IdemkitSharedWaiter *waiter, const char *effective_key, double timeout_seconds,
					IdemkitOutcome *outcome, const IdemkitRecord **record, IdemkitError *error)
{
	Sleeper		  self = {.error = error};
	IdemkitStatus status;
	int			  cancel_state;

	if (record != NULL)
		*record = NULL;
	if (waiter == NULL || outcome == NULL)
		return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT,
								 "waiter or place for the outcome is NULL");
	idemkit_list_init(&self.link);
	if (pthread_cond_init(&self.wake, NULL) != 0)
		return set_system(error, "could not create a condition variable");
	(void) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
	(void) pthread_mutex_lock(&waiter->lock);
	status = wait_inside(waiter, effective_key, timeout_seconds, &self);
	(void) pthread_mutex_unlock(&waiter->lock);
	(void) pthread_setcancelstate(cancel_state, NULL);
	(void) pthread_cond_destroy(&self.wake);

	if (status == IDEMKIT_OK)
		*outcome = self.outcome;
	if (status == IDEMKIT_OK && record != NULL)
		*record = self.record;
	else
		idemkit_record_free(self.record);
	return status;
}

uint64_t
idemkit_shared_waiter_counter(IdemkitSharedWaiter *waiter, IdemkitCounter counter)
{
	uint64_t value;

	(void) pthread_mutex_lock(&waiter->lock);
	value = idemkit_waiter_counter(waiter->waiter, counter);
	(void) pthread_mutex_unlock(&waiter->lock);
	return value;
}

void
idemkit_shared_waiter_destroy(IdemkitSharedWaiter *waiter)
{
	if (waiter == NULL)
		return;
	(void) pthread_mutex_lock(&waiter->lock);
	waiter->closing = true;
	poke(waiter);
	while (waiter->inside > 0)
		(void) pthread_cond_wait(&waiter->left, &waiter->lock);
	(void) pthread_mutex_unlock(&waiter->lock);
	idemkit_waiter_destroy(waiter->waiter);
	(void) pthread_mutex_destroy(&waiter->lock);
	(void) pthread_cond_destroy(&waiter->left);
	(void) close(waiter->pipe[0]);
	(void) close(waiter->pipe[1]);
	idemkit_mem_free(waiter);
}
