/*
 * clock.c
 *		The database's clock, the only one that decides anything.
 *
 * It is clock_timestamp() and not now(), because a long transaction must see
 * leases run out.  A statement takes a reading as a parameter (a volatile
 * function in it could not be pushed to a Citus worker), so a reading is
 * older than the row it is written to by as long as the statement waited for
 * a lock.  idemkit_waited() is how a verb notices and writes it again.
 */
#include "idemkit.h"

#include <math.h>

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/float.h"

#include "compat.h"

/* A reading this old is never noticed in a lease or a retention. */
#define MAX_STALENESS_USECS 10000

/*
 * The database's clock.
 */
TimestampTz
idemkit_clock(void)
{
	return GetCurrentTimestamp();
}

/*
 * Has a reading become too old to start a duration with?  True, with a new
 * reading, when more than 10 ms or more than 1 % of the duration passed, or
 * the clock was set back by as much: a duration started then would end later
 * than it is to by the clock that everybody reads now.
 */
bool
idemkit_waited(TimestampTz clock, int64 duration, TimestampTz *later)
{
	int64 tolerance = MAX_STALENESS_USECS;

	if (duration > 0)
		tolerance = Min(tolerance, duration / 100);
	*later = idemkit_clock();
	return *later - clock > tolerance || clock - *later > tolerance;
}

/*
 * Sleeps for some microseconds, rounded up to the millisecond.  Raises what
 * an interrupt asks for.
 */
void
idemkit_sleep(int64 usecs)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) ((usecs + 999) / 1000), PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Seconds from clock to end, not below 0.
 */
double
idemkit_seconds_until(TimestampTz end, TimestampTz clock)
{
	if (TIMESTAMP_IS_NOEND(end))
		return get_float8_infinity();
	if (end <= clock)
		return 0;
	return (double) (end - clock) / USECS_PER_SEC;
}
