/*
 * capture.c - the command's output: passed on, and kept to be stored
 *
 * When standard output does not take it as fast as the command writes, reading
 * stops, and so does the command, as if it wrote there itself. When standard
 * output breaks, the output is still read to its end: it is to be stored.
 */
#include "run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/*
 * After poll() this much can be written to a pipe without waiting, unless somebody
 * else fills it first.
 */
#define CHUNK ((size_t) 4096)

int
capture_start(Capture *capture, int from, int64_t limit)
{
	capture->from = from;
	capture->write_errno = 0;
	capture->begin = 0;
	capture->end = 0;
	capture->total = 0;
	capture->limit = limit;
	capture->too_long = false;
	capture->room = sizeof(capture->pending);
	capture->stored = malloc(capture->room);
	if (capture->stored != NULL)
		return EX_OK;
	say("out of memory");
	return EX_OSERR;
}

bool
capture_can_read(const Capture *capture)
{
	return capture->from >= 0 && capture->end < sizeof(capture->pending);
}

bool
capture_can_write(const Capture *capture)
{
	return capture->begin < capture->end;
}

/*
 * Keep what was read, as long as all of it can be kept.
 */
static void
store(Capture *capture, const char *data, size_t length)
{
	size_t used = (size_t) capture->total;

	capture->total += (int64_t) length;
	if (capture->too_long)
		return;
	if (capture->total <= capture->limit && used + length > capture->room)
	{
		size_t room = 2 * capture->room; /* more than length, as room >= pending */
		char  *larger = realloc(capture->stored, room);

		if (larger == NULL)
			capture->too_long = true;
		else
		{
			capture->stored = larger;
			capture->room = room;
		}
	}
	if (capture->total > capture->limit || capture->too_long)
	{
		capture->too_long = true;
		free(capture->stored);
		capture->stored = NULL;
		return;
	}
	memcpy(capture->stored + used, data, length);
}

void
capture_end(Capture *capture)
{
	if (capture->from >= 0)
		close(capture->from);
	capture->from = -1;
}

void
capture_read(Capture *capture)
{
	char   *to = capture->pending + capture->end;
	ssize_t n = read(capture->from, to, sizeof(capture->pending) - capture->end);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0)
	{
		capture_end(capture);
		return;
	}
	store(capture, to, (size_t) n);
	if (capture->write_errno == 0)
		capture->end += (size_t) n;
}

/*
 * Standard output may be shared with others and must not be made non-blocking,
 * so a write can wait although poll() said it would not. A timer then interrupts
 * it: the lease must be attended to.
 */
static ssize_t
write_briefly(const char *data, size_t length)
{
	struct itimerval timer = {{0, 200000}, {0, 200000}};
	struct itimerval off = {{0, 0}, {0, 0}};
	ssize_t			 n;
	int				 error;

	setitimer(ITIMER_REAL, &timer, NULL);
	n = write(STDOUT_FILENO, data, length);
	error = errno;
	setitimer(ITIMER_REAL, &off, NULL);
	errno = error;
	return n;
}

void
capture_write(Capture *capture)
{
	size_t	length = capture->end - capture->begin;
	ssize_t n = write_briefly(capture->pending + capture->begin, length < CHUNK ? length : CHUNK);

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n < 0)
	{
		capture->write_errno = errno;
		capture->begin = capture->end = 0;
		return;
	}
	capture->begin += (size_t) n;
	if (capture->begin == capture->end)
		capture->begin = capture->end = 0;
}

void
capture_free(Capture *capture)
{
	capture_end(capture);
	free(capture->stored);
	capture->stored = NULL;
}
