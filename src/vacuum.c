/*
 * vacuum.c
 *		idemkit_vacuum: removing rows that are over.
 *
 * Nothing depends on it: expiry is judged when a key is claimed.
 */
#include "idemkit.h"

PG_FUNCTION_INFO_V1(idemkit_vacuum);

/* Argument numbers */
enum
{
	ARG_EXPIRES_AFTER,
	ARG_GRACE,
	ARG_MAX_ROWS,
	ARG_RECORDS
};

/*
 * Raises 22023 for a negative number of rows.
 */
static void
check_max_rows(FunctionCallInfo fcinfo)
{
	if (!PG_ARGISNULL(ARG_MAX_ROWS) && PG_GETARG_INT64(ARG_MAX_ROWS) < 0)
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT), errmsg("max_rows must not be negative")));
}

/*
 * idemkit_vacuum(expires_after_seconds, lease_grace_seconds, max_rows,
 *				  records) RETURNS bigint
 *
 * Removes completed rows past their retention and claims whose lease ran out
 * more than the grace ago, and returns how many.  With expires_after_seconds
 * also completed rows older than that, live or not.  Rows that others have
 * locked are passed over.  Raises 22004, 22023.
 */
Datum
idemkit_vacuum(PG_FUNCTION_ARGS)
{
	bool		by_age = !PG_ARGISNULL(ARG_EXPIRES_AFTER);
	int64		age = by_age
		? idemkit_duration_argument(fcinfo, ARG_EXPIRES_AFTER, "expires_after_seconds")
		: 0;
	int64		grace = idemkit_duration_argument(fcinfo, ARG_GRACE, "lease_grace_seconds");
	IdemkitTable *table;
	TimestampTz clock;
	uint64		removed;

	check_max_rows(fcinfo);

	table = idemkit_open_table(fcinfo, ARG_RECORDS);
	clock = idemkit_clock();
	{
		Datum		values[] = {
			TimestampTzGetDatum(clock),
			TimestampTzGetDatum(clock - grace),
			PG_GETARG_DATUM(ARG_MAX_ROWS),
			TimestampTzGetDatum(clock - age),
		};
		char		nulls[] = {' ', ' ', PG_ARGISNULL(ARG_MAX_ROWS) ? 'n' : ' ', ' '};

		removed = idemkit_execute(table,
								  by_age ? IDEMKIT_VACUUM_BY_AGE : IDEMKIT_VACUUM,
								  values, nulls)
			.count;
	}
	PG_RETURN_INT64((int64) removed);
}
