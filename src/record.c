/*
 * record.c
 *		A stored row as a C struct, and as a row of a result.
 */
#include "idemkit.h"

#include "access/htup_details.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

/* PostgreSQL counts from 2000-01-01, everybody else from 1970-01-01. */
#define UNIX_EPOCH_USECS ((POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)

/*
 * Loads a row that has the columns of IDEMKIT_READ.  The values point into
 * it.
 */
void
idemkit_load_record(IdemkitRecord *record, const IdemkitResult *result, uint64 row)
{
	Assert(result->rowdesc->natts == IDEMKIT_READ_COLUMNS);
	heap_deform_tuple(result->rows[row], result->rowdesc, record->values, record->nulls);
	record->schema_version = DatumGetInt32(record->values[IDEMKIT_READ_COLUMNS - 1]);
}

/*
 * Reads the row of a key by a new snapshot.  False if there is none.
 */
bool
idemkit_read_record(IdemkitTable *table, const text *key, IdemkitRecord *record)
{
	Datum		  values[] = {PointerGetDatum(key)};
	IdemkitResult result;
	bool		  found;

	if (idemkit_look_up(table, key, record, &found))
		return found;
	result = idemkit_execute(table, IDEMKIT_READ, values, NULL);
	if (result.count == 0)
		return false;
	idemkit_load_record(record, &result, 0);
	return true;
}

/*
 * Has a time a fence?  One that is infinite or too late, which only a hand can
 * have written, has none.
 */
bool
idemkit_has_fence(TimestampTz claimed_at)
{
	return !TIMESTAMP_NOT_FINITE(claimed_at) && claimed_at <= PG_INT64_MAX - UNIX_EPOCH_USECS;
}

/*
 * Fills the two columns that are computed: remaining_seconds by a reading of
 * the clock, and fence.
 */
void
idemkit_set_clock(IdemkitRecord *record, TimestampTz clock)
{
	TimestampTz claimed_at = DatumGetTimestampTz(record->values[IDEMKIT_CLAIMED_AT]);
	TimestampTz lease_until = DatumGetTimestampTz(record->values[IDEMKIT_LEASE_UNTIL]);

	record->values[IDEMKIT_REMAINING_SECONDS] =
		Float8GetDatum(idemkit_seconds_until(lease_until, clock));
	record->nulls[IDEMKIT_REMAINING_SECONDS] = false;

	record->nulls[IDEMKIT_FENCE] = !idemkit_has_fence(claimed_at);
	record->values[IDEMKIT_FENCE] =
		record->nulls[IDEMKIT_FENCE] ? (Datum) 0 : Int64GetDatum(claimed_at + UNIX_EPOCH_USECS);
}

/*
 * Forms the row that a function returning a composite type returns.
 */
Datum
idemkit_form_result(FunctionCallInfo fcinfo, const Datum *values, const bool *nulls)
{
	Oid		  type = get_func_rettype(fcinfo->flinfo->fn_oid);
	TupleDesc tupdesc = lookup_rowtype_tupdesc(type, -1);
	HeapTuple tuple = heap_form_tuple(tupdesc, (Datum *) values, (bool *) nulls);
	Datum	  result = HeapTupleGetDatum(tuple);

	ReleaseTupleDesc(tupdesc);
	return result;
}

/*
 * Prepares the result of a function that returns a set.  Raises 0A000 where
 * the caller cannot take one.
 */
void
idemkit_begin_rows(FunctionCallInfo fcinfo, IdemkitRows *rows)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext  previous;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		(rsinfo->allowedModes & SFRM_Materialize) == 0 || rsinfo->expectedDesc == NULL)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("set-valued function called in context that cannot accept a set")));

	previous = MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	rows->tupdesc = CreateTupleDescCopy(rsinfo->expectedDesc);
	rows->store = tuplestore_begin_heap((rsinfo->allowedModes & SFRM_Materialize_Random) != 0,
										false, work_mem);
	MemoryContextSwitchTo(previous);

	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult = rows->store;
	rsinfo->setDesc = rows->tupdesc;
}

/*
 * Adds a row, which is copied.
 */
void
idemkit_put_row(IdemkitRows *rows, const Datum *values, const bool *nulls)
{
	tuplestore_putvalues(rows->store, rows->tupdesc, (Datum *) values, (bool *) nulls);
}
