/*
 * vacuum.c
 *		idemkit_vacuum and idemkit_sweep: removing rows that are over.
 *
 * Nothing depends on either: expiry is judged when a key is claimed.  Rows
 * that others have locked are passed over, so a claim never waits for more
 * than the batch that is removing its row.
 */
#include "idemkit.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"

PG_FUNCTION_INFO_V1(idemkit_vacuum);
PG_FUNCTION_INFO_V1(idemkit_sweep);

/* Argument numbers */
enum
{
	VACUUM_EXPIRES_AFTER,
	VACUUM_GRACE,
	VACUUM_MAX_ROWS,
	VACUUM_RECORDS,
	SWEEP_BATCH_ROWS = 1, /* after the result, "removed" */
	SWEEP_GRACE,
	SWEEP_RECORDS
};

/*
 * Removes rows in the order of lease_until and returns how many.  Moves
 * "begin" to the last of them, so that a next batch does not have to pass
 * over the index entries of what is already gone.  Of a distributed table it
 * takes up to max_rows from every shard.
 */
static int64
remove_expired(FunctionCallInfo fcinfo, IdemkitTable *table, IdemkitRemoval *removal)
{
	Datum values[] = {
		TimestampTzGetDatum(removal->clock),
		TimestampTzGetDatum(removal->clock - removal->grace),
		Int64GetDatum(removal->max_rows),
		TimestampTzGetDatum(removal->begin),
		TimestampTzGetDatum(removal->clock - removal->age),
	};
	char		  nulls[] = {' ', ' ', removal->limited ? ' ' : 'n', ' ', ' '};
	int64		  removed;
	IdemkitResult result;

	if (table->placement != IDEMKIT_HERE)
		return idemkit_remove_from_shards(fcinfo, table, removal);
	if (idemkit_remove_directly(table, removal, &removed))
		return removed;
	result = idemkit_execute(table, removal->by_age ? IDEMKIT_VACUUM_BY_AGE : IDEMKIT_VACUUM,
							 values, nulls);
	removal->begin = DatumGetTimestampTz(idemkit_result_value(&result, 0, 2));
	return DatumGetInt64(idemkit_result_value(&result, 0, 1));
}

/*
 * idemkit_vacuum(expires_after_seconds, lease_grace_seconds, max_rows,
 *				  records) RETURNS bigint
 *
 * Removes completed rows past their retention and claims whose lease ran out
 * more than the grace ago, and returns how many.  With expires_after_seconds
 * also completed rows older than that, live or not.  Raises 22004, 22023.
 */
Datum
idemkit_vacuum(PG_FUNCTION_ARGS)
{
	IdemkitRemoval removal = {
		.by_age = !PG_ARGISNULL(VACUUM_EXPIRES_AFTER),
		.limited = !PG_ARGISNULL(VACUUM_MAX_ROWS),
		.begin = DT_NOBEGIN,
	};

	if (removal.by_age)
		removal.age =
			idemkit_duration_argument(fcinfo, VACUUM_EXPIRES_AFTER, "expires_after_seconds");
	removal.grace = idemkit_duration_argument(fcinfo, VACUUM_GRACE, "lease_grace_seconds");
	if (removal.limited)
		removal.max_rows = PG_GETARG_INT64(VACUUM_MAX_ROWS);
	if (removal.max_rows < 0)
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT), errmsg("max_rows must not be negative")));

	removal.clock = idemkit_clock();
	PG_RETURN_INT64(remove_expired(fcinfo, idemkit_open_table(fcinfo, VACUUM_RECORDS), &removal));
}

/*
 * Tells the caller, and whoever looks at pg_stat_activity, how far a sweep
 * is.
 */
static void
report_progress(int64 removed)
{
	char *progress =
		psprintf("CALL idemkit_sweep: %lld records removed so far", (long long) removed);

	pgstat_report_activity(STATE_RUNNING, progress);
	ereport(NOTICE, (errmsg("idemkit_sweep removed %lld records so far", (long long) removed)));
	pfree(progress);
}

/*
 * Forms the row that a procedure with one INOUT argument returns.
 */
static Datum
form_removed(FunctionCallInfo fcinfo, int64 removed)
{
	TupleDesc tupdesc;
	Datum	  values[] = {Int64GetDatum(removed)};
	bool	  nulls[] = {false};

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "idemkit_sweep must return a row");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls));
}

/*
 * CALL idemkit_sweep(INOUT removed, batch_rows, lease_grace_seconds, records)
 *
 * Removes what idemkit_vacuum() would, at most batch_rows at a time, committing
 * after each batch and giving way to others, until nothing is left of what had
 * expired when it began.  Raises 22004, 22023; 25001 inside a transaction block.
 */
Datum
idemkit_sweep(PG_FUNCTION_ARGS)
{
	int32		   batch_rows = idemkit_int_argument(fcinfo, SWEEP_BATCH_ROWS, "batch_rows");
	IdemkitRemoval removal = {
		.grace = idemkit_duration_argument(fcinfo, SWEEP_GRACE, "lease_grace_seconds"),
		.limited = true,
		.begin = DT_NOBEGIN,
	};
	IdemkitPace	  pace;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext batch;
	int64		  removed = 0;
	int64		  reported = 0;
	bool		  more;

	if (batch_rows < 1)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT),
						errmsg("batch_rows must be greater than 0")));
	removal.clock = idemkit_clock();

	idemkit_begin_batches(fcinfo);
	batch = AllocSetContextCreate(caller, "idemkit batch", ALLOCSET_DEFAULT_SIZES);
	idemkit_begin_pace(&pace, batch_rows);
	do
	{
		int64 count;

		MemoryContextReset(batch);
		MemoryContextSwitchTo(batch);
		CHECK_FOR_INTERRUPTS();
		removal.max_rows = pace.rows;
		count = remove_expired(fcinfo, idemkit_open_table(fcinfo, SWEEP_RECORDS), &removal);
		MemoryContextSwitchTo(caller);
		idemkit_commit_batch();

		removed += count;
		more = count >= pace.rows;
		if (removed - reported >= batch_rows || (!more && removed > reported))
		{
			report_progress(removed);
			reported = removed;
		}
		if (more)
			idemkit_give_way(&pace);
	} while (more);
	idemkit_end_batches();

	MemoryContextSwitchTo(caller);
	PG_RETURN_DATUM(form_removed(fcinfo, removed));
}
