/*
 * distributed.c
 *		Records tables whose rows Citus keeps on other servers.
 *
 * Such a table is an empty shell on every server.  Its rows are in shards,
 * each a records table of its own on one of the servers.  The verbs on keys
 * run on the shell as on any table: Citus sends their statements to the shards
 * of the keys.  What goes over a whole table, removing what has expired and
 * counting, is instead called for every shard on the shard's server: only
 * there can rows that others have locked be passed over, and sizes be seen.
 * Each of these calls is a transaction of its own.
 */
#include "idemkit.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_namespace.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

/* Citus's list of its tables, with how each is kept. */
#define CITUS_TABLES		 "pg_dist_partition"
#define ONE_SERVER_PER_SHARD 's'

/* Columns of IDEMKIT_CALL_ON_SHARDS */
enum
{
	SUCCESS = 1,
	RESULT
};

/* How a column of idemkit_stats is made of those of the shards */
typedef enum Combination
{
	SUM,
	EARLIEST,
	LARGEST_INT,
	LARGEST_FLOAT,
	SMALLEST_FLOAT
} Combination;

/* In the order of the columns */
static const Combination combinations[IDEMKIT_STATS_COLUMNS] = {
	SUM,		 SUM, SUM, SUM, EARLIEST, EARLIEST,		 EARLIEST,		 EARLIEST,
	LARGEST_INT, SUM, SUM, SUM, SUM,	  LARGEST_FLOAT, SMALLEST_FLOAT,
};

/*
 * Where a table keeps its rows.
 */
IdemkitPlacement
idemkit_placement(Oid relid)
{
	IdemkitPlacement placement = IDEMKIT_HERE;
	Oid				 catalogue = get_relname_relid(CITUS_TABLES, PG_CATALOG_NAMESPACE);
	Relation		 tables;
	ScanKeyData		 scankey;
	SysScanDesc		 scan;
	HeapTuple		 row;

	if (catalogue == InvalidOid)
		return IDEMKIT_HERE;
	tables = table_open(catalogue, AccessShareLock);
	ScanKeyInit(&scankey, idemkit_column_number(tables, "logicalrelid"), BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(tables, InvalidOid, false, NULL, 1, &scankey);
	row = systable_getnext(scan);
	if (row != NULL)
	{
		bool isnull;
		char kept = DatumGetChar(heap_getattr(row, idemkit_column_number(tables, "repmodel"),
											  RelationGetDescr(tables), &isnull));

		placement = kept == ONE_SERVER_PER_SHARD ? IDEMKIT_SHARDED : IDEMKIT_REPLICATED;
	}
	systable_endscan(scan);
	table_close(tables, AccessShareLock);
	return placement;
}

/*
 * Raises 38000 if a call failed on some of the shards.
 */
static void
check_failures(const IdemkitTable *table, const IdemkitResult *result)
{
	int	  failures = 0;
	char *message = NULL;

	for (uint64 i = 0; i < result->count; i++)
	{
		if (DatumGetBool(idemkit_result_value(result, i, SUCCESS)))
			continue;
		failures++;
		message = TextDatumGetCString(idemkit_result_value(result, i, RESULT));
	}
	if (failures > 0)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_SHARD_FAILED),
						errmsg("call failed on %d of %d shards of %s", failures,
							   (int) result->count, table->name),
						errdetail_internal("%s", message),
						errhint("What it did on the other shards is done.")));
}

/*
 * Calls a function of the extension for every shard of a table and returns the
 * results as text.  "arguments" are those before the last, each with a comma
 * behind it; nothing in them may need quoting.  Raises 0A000 for a table of
 * which several servers have the same rows, since they would not keep the same
 * of them, and 38000 if a call fails.
 */
static IdemkitResult
call_on_shards(FunctionCallInfo fcinfo, IdemkitTable *table, const char *function,
			   const char *arguments)
{
	char		 *schema = get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid));
	char		 *call = psprintf("%s(%s", quote_qualified_identifier(schema, function), arguments);
	Datum		  parameters[] = {ObjectIdGetDatum(table->relid), CStringGetTextDatum(call)};
	IdemkitResult result;

	if (table->placement == IDEMKIT_REPLICATED)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_REPLICATED),
						errmsg("%s has the same rows on several servers", table->name),
						errhint("Distribute it by \"effective_key\", with one placement for each "
								"shard.")));
	result = idemkit_execute(table, IDEMKIT_CALL_ON_SHARDS, parameters, NULL);
	check_failures(table, &result);
	return result;
}

/*
 * Removes expired rows from every shard of a table, at most max_rows from
 * each, and returns how many.  Raises what call_on_shards() raises.
 */
int64
idemkit_remove_from_shards(FunctionCallInfo fcinfo, IdemkitTable *table,
						   const IdemkitRemoval *removal)
{
	const char *age =
		removal->by_age ? psprintf("%.6f", (double) removal->age / USECS_PER_SEC) : "NULL";
	const char *rows = removal->limited ? psprintf(INT64_FORMAT, removal->max_rows) : "NULL";
	char	   *arguments =
		psprintf("%s, %.6f, %s, ", age, (double) removal->grace / USECS_PER_SEC, rows);
	IdemkitResult result = call_on_shards(fcinfo, table, "idemkit_vacuum", arguments);
	int64		  removed = 0;

	for (uint64 i = 0; i < result.count; i++)
	{
		char *count = TextDatumGetCString(idemkit_result_value(&result, i, RESULT));

		removed += DatumGetInt64(DirectFunctionCall1(int8in, CStringGetDatum(count)));
	}
	return removed;
}

/*
 * A column of idemkit_stats over two shards.
 */
static Datum
combine(Combination combination, Datum a, Datum b)
{
	switch (combination)
	{
		case SUM:
			return Int64GetDatum(DatumGetInt64(a) + DatumGetInt64(b));
		case EARLIEST:
			return TimestampTzGetDatum(Min(DatumGetTimestampTz(a), DatumGetTimestampTz(b)));
		case LARGEST_INT:
			return Int32GetDatum(Max(DatumGetInt32(a), DatumGetInt32(b)));
		case LARGEST_FLOAT:
			return Float8GetDatum(Max(DatumGetFloat8(a), DatumGetFloat8(b)));
		case SMALLEST_FLOAT:
			return Float8GetDatum(Min(DatumGetFloat8(a), DatumGetFloat8(b)));
	}
	return (Datum) 0;
}

/*
 * The columns of idemkit_stats over all shards of a table.  Raises what
 * call_on_shards() raises.
 */
void
idemkit_stats_of_shards(FunctionCallInfo fcinfo, IdemkitTable *table, Datum *values, bool *nulls)
{
	IdemkitResult result = call_on_shards(fcinfo, table, "idemkit_stats", "");
	TupleDesc	  rowdesc;
	Oid			  type;

	if (get_call_result_type(fcinfo, &type, &rowdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "idemkit_stats must return a row");
	Assert(rowdesc->natts == IDEMKIT_STATS_COLUMNS);
	memset(nulls, true, IDEMKIT_STATS_COLUMNS * sizeof(bool));
	for (uint64 i = 0; i < result.count; i++)
	{
		char		 *counted = TextDatumGetCString(idemkit_result_value(&result, i, RESULT));
		Datum		  row = OidInputFunctionCall(F_RECORD_IN, counted, type, -1);
		HeapTupleData tuple = {0};
		Datum		  shard_values[IDEMKIT_STATS_COLUMNS];
		bool		  shard_nulls[IDEMKIT_STATS_COLUMNS];

		tuple.t_data = DatumGetHeapTupleHeader(row);
		tuple.t_len = HeapTupleHeaderGetDatumLength(tuple.t_data);
		heap_deform_tuple(&tuple, rowdesc, shard_values, shard_nulls);
		for (int column = 0; column < IDEMKIT_STATS_COLUMNS; column++)
		{
			if (shard_nulls[column])
				continue;
			values[column] =
				nulls[column] ? shard_values[column]
							  : combine(combinations[column], values[column], shard_values[column]);
			nulls[column] = false;
		}
	}
}
