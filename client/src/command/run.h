/*
 * run.h - what the files of "idemkit run" share
 *
 * The main thread attends to signals, the command, its output and the clock, and
 * never waits for the network; a second thread, the worker, makes the calls to
 * the database, one at a time. A server that does not answer can so neither
 * delay a signal nor hide that the lease has run out.
 */
#ifndef IDEMKIT_RUN_H
#define IDEMKIT_RUN_H

#include "command.h"

#include <signal.h>
#include <sys/types.h>

/*
 * Seconds since some moment in the past, by a clock that cannot be set and goes
 * on while the machine sleeps, as the lease does.
 */
double clock_now(void);

/* Milliseconds for poll() from now until then, 0 to 1000. */
int clock_timeout(double now, double then);

/* ------------------------------------------------------------------------
 * worker.c
 * ------------------------------------------------------------------------
 */

typedef struct Worker Worker;

typedef enum JobKind
{
	JOB_CLAIM,
	JOB_RENEW,
	JOB_COMPLETE,
	JOB_RELEASE
} JobKind;

/* What it points to must last until the answer is taken. */
typedef struct Job
{
	JobKind		kind;
	double		lock_wait; /* JOB_CLAIM: seconds to wait for a locked row */
	const char *token;	   /* the others */
	int32_t		status;	   /* JOB_COMPLETE: the result */
	const char *headers;
	const void *body; /* NULL: none */
	size_t		length;
} Job;

typedef struct Answer
{
	bool		  failed;  /* failure says why, and nothing else is set but unsure */
	bool		  unsure;  /* it may have been executed all the same */
	bool		  done;	   /* what renew, complete and release returned */
	bool		  settled; /* not done, since the record has our claim's result already */
	double		  asked;   /* clock_now() just before the statement was sent */
	IdemkitClaim *claim;   /* JOB_CLAIM: the caller's to free */
	Failure		  failure;
} Answer;

/* NULL having said why. */
Worker *worker_create(const Options *options);

/* Have a job done; the worker must be idle. */
void worker_submit(Worker *worker, const Job *job);

/* A descriptor that is readable when there is an answer. */
int worker_fd(const Worker *worker);

/* The answer, if there is one; the worker is idle then. */
bool worker_take(Worker *worker, Answer *answer);

bool worker_busy(const Worker *worker);

/* When the statement in progress was sent; INFINITY where there is none. */
double worker_asked(Worker *worker);

/* Make the statement in progress fail, as a lost connection does. */
void worker_interrupt(Worker *worker);

/* Close the connection of an idle worker; the next job makes a new one. */
void worker_disconnect(Worker *worker);

/*
 * Free an idle worker. One that is busy cannot be freed, since nothing can end a
 * look-up of a name: false, and the process must be left by _exit().
 */
bool worker_destroy(Worker *worker);

/* ------------------------------------------------------------------------
 * signals.c
 * ------------------------------------------------------------------------
 */

/*
 * Catch the signals that a command is to get, and SIGCHLD. with_stops: also
 * SIGTSTP and SIGCONT. Those ignored already stay so. EX_OK, or said.
 */
int signals_start(bool with_stops);

/* A descriptor that is readable when a signal has been caught. */
int signals_fd(void);

/* The next signal caught, or 0; *from_terminal: the terminal sent it. */
int signals_take(bool *from_terminal);

/* Is it one of those that ask to end? */
bool signals_ends(int signo);

/* Block all signals, for the start of a thread or a fork; and as before again. */
void signals_block(sigset_t *before);
void signals_unblock(const sigset_t *before);

/* In a child after fork: everything as this process found it when it started. */
void signals_restore(void);

/* End this process by a signal. */
void signals_die(int signo) __attribute__((noreturn));

/* ------------------------------------------------------------------------
 * child.c
 * ------------------------------------------------------------------------
 */

typedef struct Child
{
	pid_t pid;		 /* 0: not started, or reaped */
	bool  own_group; /* it leads a process group of its own */
	int	  output;	 /* the reading end of its standard output */
} Child;

/*
 * Are we in the foreground of a terminal? Then the command stays in our process
 * group, so that the terminal's signals and its input reach it as they would
 * without us; else it gets a group of its own, so that signals reach everything
 * it starts.
 */
bool in_foreground(void);

/* environment.c: the command's, about its claim. NULL when out of memory. */
char **environment_create(const IdemkitClaim *claim, const Options *options);
void   environment_free(char **environment);

/* Start the command. 0, or the errno that kept it from starting. */
int child_start(Child *child, char *const *command, char **environment, bool own_group);

/* Send a signal to the command, if there is one, and to its group if that is its own. */
void child_signal(const Child *child, int signo);

/*
 * Has it ended? *status is the exit status then, as a shell has it. It is not
 * reaped: its number stays taken, so that a signal cannot reach somebody else.
 */
bool child_ended(const Child *child, int *status);

void child_reap(Child *child);

/* ------------------------------------------------------------------------
 * capture.c
 * ------------------------------------------------------------------------
 */

/* The command's output on its way, and the copy that is to be stored. */
typedef struct Capture
{
	int		from;		 /* -1: its end was reached */
	int		write_errno; /* why nothing is passed on any more; 0: it is */
	size_t	begin;		 /* pending[begin .. end - 1] is to be passed on */
	size_t	end;
	int64_t total;	  /* bytes read */
	int64_t limit;	  /* bytes to store at most */
	bool	too_long; /* more than that, or than memory: nothing is stored */
	char   *stored;	  /* never NULL unless too_long; total bytes */
	size_t	room;
	char	pending[65536];
} Capture;

/* Take over the descriptor. EX_OK, or said. */
int	 capture_start(Capture *capture, int from, int64_t limit);
bool capture_can_read(const Capture *capture);
bool capture_can_write(const Capture *capture);
void capture_read(Capture *capture);
void capture_write(Capture *capture);
void capture_end(Capture *capture); /* stop reading */
void capture_free(Capture *capture);

/* ------------------------------------------------------------------------
 * run.c, report.c, supervise.c
 * ------------------------------------------------------------------------
 */

/* What --report tells, and what the process ends with. */
typedef struct Report
{
	const char *outcome;		/* see the manual */
	int			exit_status;	/* of idemkit */
	int			command_status; /* -1: unknown */
	int64_t		output_bytes;	/* -1: unknown */
	bool		output_stored;
	int32_t		attempts; /* 0: unknown */
	int64_t		fence;	  /* 0: unknown */
} Report;

typedef struct Run
{
	const Options *options;
	Worker		  *worker;
	bool		   own_group;
	FILE		  *report_file; /* NULL: none wanted */
	Report		   report;
} Run;

/*
 * Run the command under a claim that was won, and settle the claim. asked: when
 * it was asked for. Fills the report.
 */
void supervise(Run *run, const IdemkitClaim *claim, double asked);

/* Open the file for --report. EX_OK, or said. */
int report_open(Run *run);
/* Write the report and return the exit status of idemkit. */
int report_close(Run *run);

#endif /* IDEMKIT_RUN_H */
