/*
 * arguments.c
 *		Reading what a caller passed.
 *
 * The functions are not STRICT: a null where none is allowed is an error
 * (22004), not a silent NULL result that a caller might take for "false".
 */
#include "idemkit.h"

#include <math.h>

/*
 * Raises 22004 if the argument is null.
 */
static void
refuse_null(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_NULL_ARGUMENT), errmsg("%s must not be null", name)));
}

/*
 * A text argument.  Raises 22004 for null.
 */
text *
idemkit_text_argument(FunctionCallInfo fcinfo, int argno, const char *name)
{
	refuse_null(fcinfo, argno, name);
	return PG_GETARG_TEXT_PP(argno);
}

/*
 * The argument effective_key.  Raises 22004 for null, 22023 for a key that is
 * empty or too long.
 */
text *
idemkit_key_argument(FunctionCallInfo fcinfo, int argno)
{
	text *key = idemkit_text_argument(fcinfo, argno, "effective_key");

	idemkit_check_key(key);
	return key;
}

/*
 * An integer argument.  Raises 22004 for null.
 */
int32
idemkit_int_argument(FunctionCallInfo fcinfo, int argno, const char *name)
{
	refuse_null(fcinfo, argno, name);
	return PG_GETARG_INT32(argno);
}

/*
 * A boolean argument.  Raises 22004 for null.
 */
bool
idemkit_bool_argument(FunctionCallInfo fcinfo, int argno, const char *name)
{
	refuse_null(fcinfo, argno, name);
	return PG_GETARG_BOOL(argno);
}

/*
 * A duration in seconds, returned in microseconds, rounded to the nearest.
 * Raises 22004 for null, 22023 unless it is a number from 0 to ten years.
 */
int64
idemkit_duration_argument(FunctionCallInfo fcinfo, int argno, const char *name)
{
	double seconds;

	refuse_null(fcinfo, argno, name);
	seconds = PG_GETARG_FLOAT8(argno);
	/* Written so that a NaN fails it. */
	if (!(seconds >= 0 && seconds <= IDEMKIT_MAX_DURATION_SECONDS))
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT),
						errmsg("%s must be a number of seconds from 0 to %.0f", name,
							   IDEMKIT_MAX_DURATION_SECONDS)));
	return (int64) rint(seconds * USECS_PER_SEC);
}

/*
 * The argument lease_ttl_seconds: a duration of at least one microsecond.
 */
int64
idemkit_lease_argument(FunctionCallInfo fcinfo, int argno)
{
	int64 lease = idemkit_duration_argument(fcinfo, argno, "lease_ttl_seconds");

	if (lease == 0)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT),
						errmsg("lease_ttl_seconds must be greater than 0"),
						errdetail("Durations are kept to the microsecond.")));
	return lease;
}
