/*
 * supervise.c - "idemkit run" from the claim that was won to its settlement
 *
 * Three things are attended to in one loop: the command (its output, its end, the
 * signals for it), the lease (renewed at a third of it, lost when a renewal says
 * so or when it ran out by our clock) and the worker.
 */
#include "run.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Seconds between attempts to reach the database: the first, and at most. */
#define PAUSE_MIN 0.1
#define PAUSE_MAX 1.0

/* Seconds a server may take to store or release, at least. */
#define SETTLE_PATIENCE 30.0

typedef struct Supervisor
{
	Run			  *run;
	const Options *options;
	const char	  *token;

	double leased_until; /* by our clock, at the latest */
	double renew_at;
	double pause;	   /* before the next attempt */
	double patience;   /* for the statement in progress */
	bool   in_trouble; /* the last renewal failed, and it was said */
	bool   lost;
	bool   settled; /* by the command itself, with its token */
	bool   unsure;	/* the answer to a statement that settles was lost */

	Child  child;
	bool   ended;
	int	   status;		  /* of the command, once it has ended */
	double output_until;  /* then: when to stop waiting for more output */
	double kill_at;		  /* when lost: SIGKILL */
	int	   ending_signal; /* the last signal that asked to end, or 0 */

	Capture capture;
	bool	answered; /* the worker's answer came; see answer */
	Answer	answer;
} Supervisor;

static void
lose(Supervisor *s, const char *why)
{
	if (s->lost)
		return;
	s->lost = true;
	s->renew_at = INFINITY;
	s->kill_at = clock_now() + s->options->grace;
	if (s->child.pid == 0 || s->ended)
		say("%s", why);
	else
		say("%s: stopping the command", why);
	child_signal(&s->child, SIGTERM);
	child_signal(&s->child, SIGCONT); /* a stopped one would not hear of it */
}

/*
 * One signal for us: pass it on, or see what it tells.
 */
static void
handle_signal(Supervisor *s, int signo, bool from_terminal)
{
	switch (signo)
	{
		case SIGCHLD:
			break; /* child_ended() is asked anyway */
		case SIGTSTP:
			child_signal(&s->child, SIGTSTP);
			raise(SIGSTOP);
			break;
		case SIGCONT:
			/* while all was stopped, nobody renewed the lease */
			if (clock_now() >= s->leased_until)
				lose(s, "the lease ran out");
			else
				child_signal(&s->child, SIGCONT);
			break;
		default:
			s->ending_signal = signo;
			/* in our own group the terminal has sent it to the command, too */
			if (s->child.own_group || !from_terminal)
				child_signal(&s->child, signo);
			break;
	}
}

/*
 * Wait until something happens or the time has come, and attend to output,
 * signals and the worker. with_child: there still is a command.
 */
static void
pump(Supervisor *s, double until, bool with_child)
{
	enum
	{
		SIGNALS,
		WORKER,
		FROM,
		TO,
		N
	};
	Capture		 *capture = &s->capture;
	struct pollfd fds[N] = {
		[SIGNALS] = {signals_fd(), POLLIN, 0},
		[WORKER] = {worker_fd(s->run->worker), POLLIN, 0},
		[FROM] = {capture_can_read(capture) ? capture->from : -1, POLLIN, 0},
		[TO] = {capture_can_write(capture) ? STDOUT_FILENO : -1, POLLOUT, 0},
	};
	bool from_terminal;
	int	 signo;

	if (poll(fds, N, clock_timeout(clock_now(), until)) > 0)
	{
		if (fds[TO].revents != 0)
			capture_write(capture);
		if (fds[FROM].revents != 0)
			capture_read(capture);
		if (fds[WORKER].revents != 0)
			s->answered = worker_take(s->run->worker, &s->answer);
	}
	while ((signo = signals_take(&from_terminal)) != 0)
	{
		if (with_child)
			handle_signal(s, signo, from_terminal);
		else if (signals_ends(signo))
			s->ending_signal = signo;
	}
}

static void
submit(Supervisor *s, const Job *job, double patience)
{
	s->answered = false;
	s->patience = patience;
	worker_submit(s->run->worker, job);
}

static void
submit_renewal(Supervisor *s)
{
	Job job = {.kind = JOB_RENEW, .token = s->token};

	submit(s, &job, fmax(s->options->lease / 3, 1));
}

/*
 * What a renewal has brought.
 */
static void
take_renewal(Supervisor *s)
{
	const Answer *answer = &s->answer;

	s->answered = false;
	if (answer->failed)
	{
		if (!s->in_trouble && !s->lost)
			say_failure("cannot renew the lease, trying again until it ends", &answer->failure);
		s->in_trouble = true;
		s->renew_at = clock_now() + s->pause;
		s->pause = fmin(2 * s->pause, PAUSE_MAX);
		return;
	}
	if (answer->settled)
	{
		s->settled = true;
		s->renew_at = INFINITY;
		s->leased_until = INFINITY;
		return;
	}
	if (!answer->done)
	{
		lose(s, "the lease is lost, the claim is not held any more");
		return;
	}
	if (s->in_trouble && !s->lost)
		say("the lease is renewed again");
	s->in_trouble = false;
	s->pause = PAUSE_MIN;
	s->leased_until = answer->asked + s->options->lease;
	s->renew_at = answer->asked + s->options->lease / 3;
}

/*
 * Break off a statement that the server does not answer.
 */
static void
limit_statement(Supervisor *s, double now)
{
	if (worker_busy(s->run->worker) && now >= worker_asked(s->run->worker) + s->patience)
		worker_interrupt(s->run->worker);
}

static void
attend_lease(Supervisor *s, double now)
{
	if (s->answered)
		take_renewal(s);
	if (!s->lost && now >= s->leased_until)
		lose(s, "the lease ran out");
	if (!s->lost && now >= s->renew_at && !worker_busy(s->run->worker))
		submit_renewal(s);
	limit_statement(s, now);
	if (s->lost && now >= s->kill_at)
	{
		child_signal(&s->child, SIGKILL);
		s->kill_at = INFINITY;
	}
}

/*
 * See whether the command has ended. Its output may go on where it left other
 * processes behind that write there.
 */
static void
attend_child(Supervisor *s, double now)
{
	if (s->ended || !child_ended(&s->child, &s->status))
		return;
	s->ended = true;
	s->output_until = now + s->options->grace;
}

/*
 * Until the command has ended and its output with it, or the lease is lost and
 * the command gone.
 */
static void
attend_command(Supervisor *s)
{
	for (;;)
	{
		double now = clock_now();
		double until;

		attend_child(s, now);
		if (s->ended && (s->capture.from < 0 || s->lost))
			break;
		if (now >= s->output_until)
		{
			say("the command has ended, but its output has not; what follows is left out");
			break;
		}
		attend_lease(s, now);
		until = fmin(fmin(s->leased_until, s->kill_at), s->output_until);
		if (s->lost)
			until = s->kill_at;
		else if (!worker_busy(s->run->worker))
			until = fmin(until, s->renew_at);
		pump(s, until, true);
	}
	if (s->lost)
		child_signal(&s->child, SIGKILL); /* what it left behind */
	capture_end(&s->capture);
	child_reap(&s->child);
}

/*
 * Wait for the worker's answer, while output is passed on.
 */
static void
await_answer(Supervisor *s)
{
	while (worker_busy(s->run->worker))
	{
		limit_statement(s, clock_now());
		pump(s, INFINITY, false);
	}
}

/*
 * May the same statement succeed a moment later? A connection that was lost, a
 * server that restarts or has no room, a deadlock.
 */
static bool
is_passing(const Failure *failure)
{
	return failure->status == EX_UNAVAILABLE || failure->status == EX_TEMPFAIL;
}

/*
 * Have a job done that settles the claim: until the lease is over, and once at
 * least. False: it failed, s->answer says why.
 */
static bool
settle(Supervisor *s, Job *job)
{
	double pause = PAUSE_MIN;

	for (;;)
	{
		double now = clock_now();

		submit(s, job, fmax(s->leased_until - now, SETTLE_PATIENCE));
		await_answer(s);
		if (!s->answer.failed)
			return true;
		s->unsure |= s->answer.unsure;
		now = clock_now();
		if (!is_passing(&s->answer.failure) || now + pause >= s->leased_until)
			return false;
		for (double until = now + pause; clock_now() < until;)
			pump(s, until, false);
		pause = fmin(2 * pause, PAUSE_MAX);
	}
}

/*
 * Release the key for the next run. The lease is over soon where that fails.
 */
static void
release(Supervisor *s, const char *outcome)
{
	Job job = {.kind = JOB_RELEASE, .token = s->token};

	s->run->report.outcome = outcome;
	if (settle(s, &job))
		s->settled |= s->answer.settled;
	else
	{
		(void) say_failure("cannot release the key, it is free when the lease ends",
						   &s->answer.failure);
		s->run->report.outcome = "not_released";
	}
}

/*
 * The result's headers: where it comes from. free() them.
 */
static char *
make_headers(const Capture *capture, bool with_output)
{
	char   host[256] = "";
	char  *text = NULL;
	size_t length;
	FILE  *to = open_memstream(&text, &length);
	Json   json;

	if (to == NULL)
		return NULL;
	(void) gethostname(host, sizeof(host) - 1);
	for (char *c = host; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~')
			*c = '?'; /* not UTF-8, perhaps */
	json_begin(&json, to);
	json_text(&json, "idemkit.command", "run");
	json_text(&json, "idemkit.host", host);
	json_int(&json, "idemkit.output_bytes", capture->total);
	json_bool(&json, "idemkit.output_stored", with_output);
	json_end(&json);
	if (fclose(to) != 0)
	{
		free(text);
		return NULL;
	}
	return text;
}

/*
 * Store the result, with or without the output.
 */
static bool
store_result(Supervisor *s, bool with_output)
{
	Job job = {
		.kind = JOB_COMPLETE,
		.token = s->token,
		.status = s->status,
	};
	char *headers = make_headers(&s->capture, with_output);
	bool  settled;

	job.headers = headers;
	if (with_output)
	{
		job.body = s->capture.stored;
		job.length = (size_t) s->capture.total;
	}
	settled = settle(s, &job);
	free(headers);
	/* a result that is there already is ours where an answer was lost */
	if (settled && s->answer.settled && s->unsure)
		s->answer.done = true;
	s->run->report.output_stored = settled && s->answer.done && with_output;
	return settled;
}

/*
 * Complete the claim. Output that the server does not want is left out, as is
 * what --max-output does not want.
 */
static void
complete(Supervisor *s)
{
	Report *report = &s->run->report;
	bool	with_output = !s->capture.too_long;
	bool	settled = store_result(s, with_output);

	if (!settled && with_output && strcmp(s->answer.failure.sqlstate, "54000") == 0)
	{
		with_output = false;
		settled = store_result(s, with_output);
	}
	if (!settled)
	{
		report->outcome = "not_stored";
		report->exit_status = say_failure("the command has ended, but its result cannot be stored",
										  &s->answer.failure);
	}
	else if (s->answer.settled && !s->answer.done)
		s->settled = true;
	else if (!s->answer.done)
		lose(s, "the lease was lost, the result is not stored");
	else
	{
		report->outcome = "executed";
		if (!with_output)
			say("the command's output, %lld bytes, is too long and not stored",
				(long long) s->capture.total);
	}
}

/*
 * Pass on what is left of the output. Nobody waits for us any more, so only a
 * signal ends it.
 */
static void
flush_output(Supervisor *s)
{
	Capture *capture = &s->capture;

	s->ending_signal = 0;
	while (capture_can_write(capture) && s->ending_signal == 0)
		pump(s, INFINITY, false);
	if (capture->write_errno != 0)
		say("cannot write to standard output: %s", strerror(capture->write_errno));
	if (capture->write_errno != 0 || capture_can_write(capture))
		s->run->report.exit_status = EX_IOERR;
}

/*
 * The command has ended, or was stopped.
 */
static void
finish(Supervisor *s)
{
	Report *report = &s->run->report;

	report->command_status = s->status;
	report->output_bytes = s->capture.total;
	report->exit_status = s->status;

	/* a renewal in progress has the worker; what it brings still counts */
	if (!s->lost)
		await_answer(s);
	if (!s->lost && s->answered)
		take_renewal(s);
	if (!s->lost && !s->settled)
	{
		if (s->status == 0 || s->options->cache_failures)
			complete(s);
		else
			release(s, "failed_and_released");
	}
	if (s->settled)
		report->outcome = "completed_by_command";
	if (s->lost)
	{
		report->outcome = "lease_lost";
		report->exit_status = EX_TEMPFAIL;
	}
	flush_output(s);
}

/*
 * The command could not be started: say why, and let others try.
 */
static void
refuse_command(Supervisor *s, int error)
{
	Report *report = &s->run->report;

	say("cannot run \"%s\": %s", s->options->command[0], strerror(error));
	release(s, "not_run");
	report->exit_status = error == ENOENT ? EX_NOT_FOUND
						  : error == ENOMEM || error == EAGAIN || error == EMFILE || error == ENFILE
							  ? EX_OSERR
							  : EX_CANNOT_EXECUTE;
}

/*
 * Make sure that enough of the lease is left to start something: the claim may
 * have waited long for somebody's transaction. False: the claim is lost, or a
 * signal has come; then it was settled.
 */
static bool
prepare(Supervisor *s)
{
	if (clock_now() >= s->renew_at)
	{
		submit_renewal(s);
		await_answer(s);
		take_renewal(s);
	}
	pump(s, 0, false);
	if (s->ending_signal != 0)
	{
		release(s, "interrupted");
		s->run->report.exit_status = EX_SIGNAL + s->ending_signal;
		return false;
	}
	if (!s->lost && clock_now() < s->leased_until)
		return true;
	s->run->report.outcome = "lease_lost";
	s->run->report.exit_status = EX_TEMPFAIL;
	return false;
}

void
supervise(Run *run, const IdemkitClaim *claim, double asked)
{
	static Supervisor	 supervisor; /* too large for comfort on a stack */
	Supervisor			*s = &supervisor;
	const IdemkitRecord *record = idemkit_claim_record(claim);
	char			   **environment;
	int					 error;

	s->run = run;
	s->options = run->options;
	s->token = idemkit_claim_our_token(claim);
	s->leased_until = asked + s->options->lease;
	s->renew_at = asked + s->options->lease / 3;
	s->pause = PAUSE_MIN;
	s->capture.from = -1;
	s->kill_at = INFINITY;
	s->output_until = INFINITY;
	run->report.attempts = idemkit_record_attempts(record);
	run->report.fence = idemkit_record_fence(record);

	if (!prepare(s))
		return;
	environment = environment_create(claim, s->options);
	error = environment == NULL
				? ENOMEM
				: child_start(&s->child, s->options->command, environment, run->own_group);
	environment_free(environment);
	if (error != 0)
	{
		refuse_command(s, error);
		return;
	}
	if (capture_start(&s->capture, s->child.output, s->options->max_output) != EX_OK)
		lose(s, "there is no memory for the output");
	attend_command(s);
	finish(s);
	capture_free(&s->capture);
}
