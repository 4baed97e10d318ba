/*
 * run.c - "idemkit run" until the claim is won, or somebody else's result is here
 */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Seconds to wait for a row that somebody's open transaction has locked before
 * looking at the clock again. At least the minimum, for with --wait 0 too a claim
 * may meet another that is about to commit.
 */
#define LOCK_WAIT_MIN 1.0
#define LOCK_WAIT_MAX 10.0

/* Seconds a server may take to answer a claim, beyond its wait for a lock. */
#define CLAIM_PATIENCE 30.0

/* Seconds to wait for the answer to a claim when a signal asks to end. */
#define SIGNAL_PATIENCE 1.0

/*
 * Seconds of one wait. The wait for ever is made of them: after each it is seen
 * whether the server could be asked.
 */
#define WAIT_SLICE 60.0

/*
 * Set how it ended, for what leads to no command of ours.
 */
static void
end_run(Run *run, const char *outcome, int exit_status)
{
	run->report.outcome = outcome;
	run->report.exit_status = exit_status;
}

/*
 * The next signal that asks to end, or 0. There is no command yet to pass
 * signals to: they mean us.
 */
static int
take_ending_signal(void)
{
	bool from_terminal;
	int	 signo;

	while ((signo = signals_take(&from_terminal)) != 0)
	{
		if (signals_ends(signo))
			return signo;
		if (signo == SIGTSTP)
			raise(SIGSTOP);
	}
	return 0;
}

/*
 * Have a job done, for at most patience seconds once it was sent. A signal that
 * asks to end cuts that short and is returned; *answered tells whether there is
 * an answer all the same.
 */
static int
ask(Run *run, const Job *job, double patience, Answer *answer, bool *answered)
{
	int	   ending = 0;
	double give_up = INFINITY;

	*answered = false;
	*answer = (Answer){.failed = true, .failure = {.status = EX_SOFTWARE}};
	worker_submit(run->worker, job);
	for (;;)
	{
		struct pollfd fds[] = {
			{worker_fd(run->worker), POLLIN, 0},
			{signals_fd(), POLLIN, 0},
		};
		double asked = worker_asked(run->worker);
		double now = clock_now();

		if (now >= give_up)
			return ending;
		if (now >= asked + patience)
			worker_interrupt(run->worker);
		if (poll(fds, 2, clock_timeout(now, give_up)) > 0 && (fds[0].revents & POLLIN) != 0)
		{
			*answered = worker_take(run->worker, answer);
			return ending != 0 ? ending : take_ending_signal();
		}
		if (ending == 0)
		{
			ending = take_ending_signal();
			/*
			 * What was asked since poll() began counts. Where nothing is asked, the
			 * answer may be just on its way, or a connection be sought.
			 */
			if (ending != 0)
				give_up = clock_now() + (isinf(worker_asked(run->worker)) ? SIGNAL_PATIENCE / 10
																		  : SIGNAL_PATIENCE);
		}
	}
}

/*
 * Give a claim back that was won when a signal came.
 */
static void
undo_claim(Run *run, const IdemkitClaim *claim)
{
	Job	   job = {.kind = JOB_RELEASE};
	Answer answer;
	bool   answered;

	job.token = idemkit_claim_our_token(claim);
	if (job.token != NULL)
		(void) ask(run, &job, SIGNAL_PATIENCE, &answer, &answered);
}

/*
 * End as the signal would have ended us.
 */
static void __attribute__((noreturn)) die(Run *run, int signo)
{
	end_run(run, "interrupted", EX_SIGNAL + signo);
	(void) report_close(run);
	signals_die(signo);
}

/*
 * Write a stored result to standard output, and take over its exit status.
 */
static void
replay(Run *run, const IdemkitRecord *record)
{
	size_t		length;
	const char *body = idemkit_record_response_body(record, &length);
	int32_t		status = 0;

	run->report.attempts = idemkit_record_attempts(record);
	run->report.fence = idemkit_record_fence(record);
	if (!idemkit_record_response_status(record, &status) || status < 0 || status > 255)
	{
		say("the stored result is not that of a command");
		end_run(run, "not_a_command", EX_DATAERR);
		return;
	}
	run->report.command_status = status;
	run->report.output_stored = body != NULL;
	end_run(run, "replayed", status);
	if (body == NULL)
	{
		say("the output of the command was not stored; its exit status was %d", (int) status);
		return;
	}
	run->report.output_bytes = (int64_t) length;
	while (length > 0)
	{
		ssize_t n = write(STDOUT_FILENO, body, length);

		if (n < 0 && errno == EINTR)
		{
			int signo = take_ending_signal();

			if (signo != 0)
				die(run, signo);
			continue;
		}
		if (n < 0 && errno == EAGAIN)
		{
			struct pollfd out = {STDOUT_FILENO, POLLOUT, 0};

			(void) poll(&out, 1, 1000);
			continue;
		}
		if (n < 0)
		{
			say("cannot write to standard output: %s", strerror(errno));
			run->report.exit_status = EX_IOERR;
			return;
		}
		body += n;
		length -= (size_t) n;
	}
}

/*
 * Somebody uses the key for something else.
 */
static void
refuse_fingerprint(Run *run)
{
	say("the key was used with another fingerprint; nothing was run");
	end_run(run, "fingerprint_mismatch", EX_DATAERR);
}

static void
give_up_waiting(Run *run)
{
	say("the command is being run elsewhere");
	end_run(run, "in_flight", EX_TEMPFAIL);
}

/*
 * A result somebody waited for: a later claim may have put another there.
 */
static void
take_result(Run *run, const IdemkitRecord *record)
{
	if (strcmp(idemkit_record_fingerprint(record), run->options->fingerprint) != 0 ||
		idemkit_record_fingerprint_version(record) != run->options->fingerprint_version)
		refuse_fingerprint(run);
	else
		replay(run, record);
}

/* How a wait ended, kept by its callback. */
typedef struct Ending
{
	bool				 ended;
	IdemkitOutcome		 outcome;
	const IdemkitRecord *record;
	bool				 has_failure;
	Failure				 failure;
} Ending;

static void
keep_ending(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
			const IdemkitError *error)
{
	Ending *ending = arg;

	ending->ended = true;
	ending->outcome = outcome;
	ending->record = idemkit_record_ref(record);
	ending->has_failure = idemkit_error_status(error) != IDEMKIT_OK;
	if (ending->has_failure)
		note_error(&ending->failure, error);
}

/*
 * One wait, of at most a slice. Signals end the process: there is nothing to
 * undo.
 */
static void
wait_once(Run *run, IdemkitWaiter *waiter, double seconds, Ending *ending)
{
	IdemkitError *error = idemkit_error_create();
	IdemkitStatus status =
		idemkit_waiter_submit(waiter, run->options->key, seconds, keep_ending, ending, NULL, error);

	if (status != IDEMKIT_OK)
	{
		ending->ended = true;
		ending->outcome = IDEMKIT_OUTCOME_ERROR;
		ending->has_failure = true;
		note_error(&ending->failure, error);
	}
	idemkit_error_free(error);
	while (!ending->ended)
	{
		int			  events = idemkit_waiter_events(waiter);
		struct pollfd fds[] = {
			{idemkit_waiter_socket(waiter), 0, 0},
			{signals_fd(), POLLIN, 0},
		};
		int signo;

		fds[0].events = (short) (((events & IDEMKIT_EVENT_READ) != 0 ? POLLIN : 0) |
								 ((events & IDEMKIT_EVENT_WRITE) != 0 ? POLLOUT : 0));
		(void) poll(fds, 2, idemkit_waiter_timeout_ms(waiter));
		signo = take_ending_signal();
		if (signo != 0)
			die(run, signo);
		(void) idemkit_waiter_process(waiter);
	}
}

static IdemkitWaiter *
create_waiter(const Options *options)
{
	IdemkitError		 *error = idemkit_error_create();
	IdemkitWaiterOptions *settings = idemkit_waiter_options_create();
	IdemkitWaiter		 *waiter = NULL;

	if (error == NULL || settings == NULL ||
		idemkit_waiter_options_set_records(settings, options->table) != IDEMKIT_OK)
		say("out of memory");
	else if (idemkit_waiter_create(options->conninfo, settings, &waiter, error) != IDEMKIT_OK)
		say_error("cannot wait", error);
	idemkit_waiter_options_free(settings);
	idemkit_error_free(error);
	return waiter;
}

/*
 * Wait for the run in flight until the deadline. True where the key is to be
 * claimed again; else the report says how it ended.
 */
static bool
wait_for_run(Run *run, double deadline)
{
	IdemkitWaiter *waiter;
	Ending		   ending;

	/* one connection is enough, and the waiter has its own */
	worker_disconnect(run->worker);
	waiter = create_waiter(run->options);
	if (waiter == NULL)
	{
		end_run(run, "failed", EX_OSERR);
		return false;
	}
	do
	{
		double left = fmax(deadline - clock_now(), 0);

		ending = (Ending){.ended = false};
		wait_once(run, waiter, fmin(left, WAIT_SLICE), &ending);
		if (ending.outcome == IDEMKIT_OUTCOME_TIMEOUT)
		{
			idemkit_record_free(ending.record);
			ending.record = NULL;
		}
	} while (ending.outcome == IDEMKIT_OUTCOME_TIMEOUT && !ending.has_failure &&
			 clock_now() < deadline);
	idemkit_waiter_destroy(waiter);

	if (ending.outcome == IDEMKIT_OUTCOME_COMPLETED)
		take_result(run, ending.record);
	else if (ending.has_failure)
		end_run(run, "failed", say_failure("cannot wait for the run in flight", &ending.failure));
	else if (ending.outcome == IDEMKIT_OUTCOME_TIMEOUT)
		give_up_waiting(run);
	idemkit_record_free(ending.record);
	return ending.outcome == IDEMKIT_OUTCOME_ABSENT || ending.outcome == IDEMKIT_OUTCOME_LAPSED;
}

/*
 * A claim that was not won. True where it is to be tried again.
 */
static bool
follow_verdict(Run *run, const IdemkitClaim *claim, double deadline)
{
	const IdemkitRecord *record = idemkit_claim_record(claim);
	const char			*holder = getenv(TOKEN_VARIABLE);

	if (!idemkit_claim_fingerprint_matches(claim))
		refuse_fingerprint(run);
	else if (idemkit_claim_verdict(claim) == IDEMKIT_ALREADY_COMPLETED)
		replay(run, record);
	else if (holder != NULL && strcmp(holder, idemkit_record_claim_token(record)) == 0)
	{
		say("the run that started this one holds the key: it would wait for itself");
		end_run(run, "in_flight", EX_TEMPFAIL);
	}
	else if (clock_now() >= deadline)
		give_up_waiting(run);
	else
		return wait_for_run(run, deadline);
	return false;
}

/*
 * The claim could not be asked for. True where it is to be tried again.
 */
static bool
follow_failure(Run *run, const Answer *answer, double deadline)
{
	if (strcmp(answer->failure.sqlstate, "55P03") == 0)
	{
		/* the transaction that holds the row is a run in flight, too */
		if (clock_now() < deadline)
			return true;
		give_up_waiting(run);
		return false;
	}
	end_run(run, "failed", say_failure("cannot claim the key", &answer->failure));
	if (answer->unsure)
		say("the key may have been claimed; it is free again when the lease ends");
	return false;
}

/*
 * Claim, wait, claim again, until there is something to do or to tell.
 */
static void
claim_and_run(Run *run)
{
	double deadline = clock_now() + run->options->wait;
	bool   again = true;

	while (again)
	{
		Job	   job = {.kind = JOB_CLAIM};
		Answer answer;
		bool   answered;
		int	   signo;

		job.lock_wait = fmin(fmax(deadline - clock_now(), LOCK_WAIT_MIN), LOCK_WAIT_MAX);
		signo = ask(run, &job, job.lock_wait + CLAIM_PATIENCE, &answer, &answered);
		if (signo != 0)
		{
			if (answered && answer.claim != NULL)
				undo_claim(run, answer.claim);
			die(run, signo);
		}
		if (answer.failed)
			again = follow_failure(run, &answer, deadline);
		else if (idemkit_claim_our_token(answer.claim) == NULL)
			again = follow_verdict(run, answer.claim, deadline);
		else
		{
			supervise(run, answer.claim, answer.asked);
			again = false;
		}
		/* a worker that was left in the midst of a renewal still has the token */
		if (!worker_busy(run->worker))
			idemkit_claim_free(answer.claim);
	}
}

int
verb_run(const Options *options)
{
	Run run = {
		.options = options,
		.report = {.command_status = -1, .output_bytes = -1},
	};
	int status = report_open(&run);

	if (status != EX_OK)
		return status;
	run.own_group = !in_foreground();
	status = signals_start(run.own_group);
	if (status == EX_OK)
	{
		run.worker = worker_create(options);
		if (run.worker == NULL)
			status = EX_OSERR;
	}
	if (status != EX_OK)
		end_run(&run, "failed", status);
	else
		claim_and_run(&run);
	status = report_close(&run);
	if (!worker_destroy(run.worker))
		_exit(status); /* the worker still looks for the database */
	return status;
}
