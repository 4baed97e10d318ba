/*
 * signals.c - the signals of "idemkit run"
 *
 * A handler only writes the signal's number into a pipe; the main loop reads it
 * there. Handlers do not restart system calls, so that a write to a standard
 * output that nobody reads can be interrupted.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* What is passed on to the command. */
static const int passed[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

/* Those beside: SIGALRM interrupts a write, see capture.c. */
static const int others[] = {SIGCHLD, SIGPIPE, SIGALRM};

/* With with_stops. */
static const int stops[] = {SIGTSTP, SIGCONT};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define FROM_TERMINAL 0x80 /* added to a number in the pipe */

static int signal_pipe[2];

/* Dispositions and mask as they were when the process began. */
static struct sigaction saved[LENGTH(passed) + LENGTH(others) + LENGTH(stops)];
static int				saved_signals[LENGTH(saved)];
static size_t			n_saved;
static sigset_t			saved_mask;

static void
catch_signal(int signo, siginfo_t *info, void *context)
{
	int			  saved_errno = errno;
	unsigned char byte = (unsigned char) signo;

	(void) context;
	/* the kernel's, where neither kill() nor sigqueue() nor the like sent it */
	if (info->si_code != SI_USER && info->si_code != SI_QUEUE && info->si_code != SI_TKILL)
		byte |= FROM_TERMINAL;
	if (signo != SIGALRM)
	{
		ssize_t n = write(signal_pipe[1], &byte, 1);

		/* the pipe is full: there are thousands to be read already */
		(void) n;
	}
	errno = saved_errno;
}

/*
 * Set a disposition, and keep what it was. keep_ignored: a signal that is
 * ignored stays so, as nohup wants it.
 */
static void
set_handler(int signo, bool keep_ignored)
{
	struct sigaction  action = {.sa_sigaction = catch_signal, .sa_flags = SA_SIGINFO};
	struct sigaction *before = &saved[n_saved];

	sigfillset(&action.sa_mask);
	if (signo == SIGPIPE)
		action = (struct sigaction){.sa_handler = SIG_IGN};
	sigaction(signo, NULL, before);
	if (keep_ignored && (before->sa_flags & SA_SIGINFO) == 0 && before->sa_handler == SIG_IGN)
		return;
	sigaction(signo, &action, NULL);
	saved_signals[n_saved++] = signo;
}

int
signals_start(bool with_stops)
{
	sigset_t ours;

	if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
	{
		say("cannot make a pipe: %s", strerror(errno));
		return EX_OSERR;
	}
	for (size_t i = 0; i < LENGTH(passed); i++)
		set_handler(passed[i], true);
	for (size_t i = 0; i < LENGTH(others); i++)
		set_handler(others[i], false);
	for (size_t i = 0; i < LENGTH(stops) && with_stops; i++)
		set_handler(stops[i], true);

	/* whoever started us may have blocked what must be heard */
	sigemptyset(&ours);
	for (size_t i = 0; i < n_saved; i++)
		sigaddset(&ours, saved_signals[i]);
	sigprocmask(SIG_UNBLOCK, &ours, &saved_mask);
	return EX_OK;
}

int
signals_fd(void)
{
	return signal_pipe[0];
}

int
signals_take(bool *from_terminal)
{
	unsigned char byte;

	if (read(signal_pipe[0], &byte, 1) != 1)
		return 0;
	*from_terminal = (byte & FROM_TERMINAL) != 0;
	return byte & ~FROM_TERMINAL;
}

bool
signals_ends(int signo)
{
	for (size_t i = 0; i < LENGTH(passed); i++)
		if (passed[i] == signo)
			return true;
	return false;
}

void
signals_block(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
}

void
signals_unblock(const sigset_t *before)
{
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

void
signals_restore(void)
{
	for (size_t i = 0; i < n_saved; i++)
		sigaction(saved_signals[i], &saved[i], NULL);
	sigprocmask(SIG_SETMASK, &saved_mask, NULL);
}

void
signals_die(int signo)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t		 one;

	sigemptyset(&one);
	sigaddset(&one, signo);
	sigaction(signo, &action, NULL);
	raise(signo);
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	_exit(EX_SIGNAL + signo);
}
