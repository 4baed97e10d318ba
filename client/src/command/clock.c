/*
 * clock.c - this machine's clock, for measuring how long ago something was
 *
 * It decides nothing about a lease but that our own is over: which it is at the
 * latest when as much time has passed here as the lease lasts, counted from
 * before it was asked for.
 */
#include "run.h"

#include <time.h>

#ifdef CLOCK_BOOTTIME
#define CLOCK CLOCK_BOOTTIME
#else
#define CLOCK CLOCK_MONOTONIC
#endif

double
clock_now(void)
{
	struct timespec now;

	/* it cannot fail: the clock is one the system has */
	(void) clock_gettime(CLOCK, &now);
	return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

/*
 * poll() does not count the time a machine sleeps. It is therefore never asked
 * to wait longer than a second, after which the clock is looked at again.
 */
int
clock_timeout(double now, double then)
{
	double seconds = then - now;

	if (seconds <= 0)
		return 0;
	if (seconds >= 1)
		return 1000;
	return (int) (seconds * 1000) + 1;
}
