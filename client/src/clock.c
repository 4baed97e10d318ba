/*
 * clock.c - this machine's monotonic clock, and chance
 *
 * The monotonic clock measures how long something has been waited for. When a
 * lease ends is never compared with it: the server says what remains of a lease,
 * and that much is added to the moment its answer came.
 */
#define _DEFAULT_SOURCE /* getentropy */

#include <math.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define TEN_YEARS (10 * 366 * 86400.0)

int64_t
idemkit_clock(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

bool
idemkit_seconds_valid(double seconds, double least)
{
	return seconds >= least && seconds <= TEN_YEARS;
}

int64_t
idemkit_seconds_to_us(double seconds)
{
	/* rounded up: a duration above zero stays one */
	return (int64_t) ceil(seconds * 1000000.0);
}

bool
idemkit_random_bytes(void *bytes, unsigned length)
{
	return getentropy(bytes, length) == 0;
}

uint64_t
idemkit_random_next(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * UINT64_C(0x2545F4914F6CDD1D);
}
