/*
 * child.c - starting the command, signalling it, and seeing it end
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

bool
in_foreground(void)
{
	int	 terminal = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
	bool foreground;

	if (terminal < 0)
		return false;
	foreground = tcgetpgrp(terminal) == getpgrp();
	close(terminal);
	return foreground;
}

/*
 * What happens in the child. The process has another thread, so only what is safe
 * in a signal handler may be called here.
 *
 * When idemkit is killed the way that cannot be caught nobody renews the lease any
 * more, and nobody would stop the command when another run takes over: the kernel
 * then kills it.
 */
static void
become_command(char *const *command, char **environment, bool own_group, pid_t parent, int output,
			   int errors)
{
	int		error;
	ssize_t n;

	if (own_group)
		setpgid(0, 0);
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	if (getppid() != parent)
		_exit(EX_CANNOT_EXECUTE);
	if (dup2(output, STDOUT_FILENO) >= 0)
	{
		signals_restore();
		environ = environment;
		execvp(command[0], command);
	}
	error = errno;
	do
		n = write(errors, &error, sizeof(error));
	while (n < 0 && errno == EINTR);
	_exit(EX_CANNOT_EXECUTE);
}

/*
 * What the child says about its exec: nothing means that it succeeded.
 */
static int
exec_error(int errors)
{
	int		error = 0;
	ssize_t n;

	do
		n = read(errors, &error, sizeof(error));
	while (n < 0 && errno == EINTR);
	return n == sizeof(error) ? error : 0;
}

/*
 * execvp() says "permission denied" also where the command is in no directory of
 * PATH and one of these cannot be read: tell that from a file that is there.
 */
static int
sort_out_error(const char *command, int error)
{
	const char *path = getenv("PATH");

	if (error != EACCES || strchr(command, '/') != NULL || path == NULL)
		return error;
	while (*path != '\0')
	{
		int	 length = (int) strcspn(path, ":");
		char file[PATH_MAX];

		if (snprintf(file, sizeof(file), "%.*s%s%s", length, path, length > 0 ? "/" : "", command) <
				(int) sizeof(file) &&
			access(file, F_OK) == 0)
			return error;
		path += length;
		path += *path == ':';
	}
	return ENOENT;
}

int
child_start(Child *child, char *const *command, char **environment, bool own_group)
{
	int		 output[2];
	int		 errors[2];
	int		 error = 0;
	pid_t	 parent = getpid();
	sigset_t before;

	if (pipe2(output, O_CLOEXEC) != 0)
		return errno;
	if (pipe2(errors, O_CLOEXEC) != 0)
	{
		error = errno;
		close(output[0]);
		close(output[1]);
		return error;
	}
	signals_block(&before);
	child->pid = fork();
	if (child->pid == 0)
		become_command(command, environment, own_group, parent, output[1], errors[1]);
	if (child->pid < 0)
	{
		error = errno;
		child->pid = 0;
	}
	else if (own_group)
		setpgid(child->pid, child->pid); /* whoever of the two comes first */
	signals_unblock(&before);
	close(output[1]);
	close(errors[1]);
	if (error == 0)
	{
		error = sort_out_error(command[0], exec_error(errors[0]));
		if (error != 0)
			child_reap(child);
	}
	close(errors[0]);
	if (error != 0)
	{
		close(output[0]);
		return error;
	}
	/* our end only: the command's is another open file */
	fcntl(output[0], F_SETFL, O_NONBLOCK);
	child->own_group = own_group;
	child->output = output[0];
	return 0;
}

void
child_signal(const Child *child, int signo)
{
	if (child->pid > 0) /* 0 would be everybody in our own group */
		kill(child->own_group ? -child->pid : child->pid, signo);
}

bool
child_ended(const Child *child, int *status)
{
	siginfo_t info = {.si_pid = 0};

	if (waitid(P_PID, (id_t) child->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
		info.si_pid == 0)
		return false;
	*status = info.si_code == CLD_EXITED ? info.si_status : EX_SIGNAL + info.si_status;
	return true;
}

void
child_reap(Child *child)
{
	while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR)
		;
	child->pid = 0;
}
