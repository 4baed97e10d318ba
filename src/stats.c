/*
 * stats.c
 *		idemkit_stats: how a records table is doing.
 *
 * The rows are counted in one pass.  Of a table of more than SAMPLE_PAGES
 * pages only about so many are read, chosen by TABLESAMPLE SYSTEM, and the
 * counts are multiplied up, so that the cost has a bound; sampled_fraction
 * says so.
 */
#include "idemkit.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_class.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(idemkit_stats);

/* 128 MB in pages of 8 kB */
#define SAMPLE_PAGES 16384

/*
 * Columns of idemkit_stats: those that IDEMKIT_COUNT_RECORDS returns, of which
 * the first four are counts, and the fraction they were counted in.
 */
#define COUNTS			4
#define COUNTED_COLUMNS 14

/*
 * The fraction of a table's pages to read.
 */
static double
sample_fraction(Oid relid)
{
	Relation	table = relation_open(relid, AccessShareLock);
	BlockNumber pages =
		table->rd_rel->relkind == RELKIND_RELATION ? RelationGetNumberOfBlocks(table) : 0;

	relation_close(table, NoLock);
	return pages > SAMPLE_PAGES ? (double) SAMPLE_PAGES / pages : 1.0;
}

/*
 * Fills the columns of idemkit_stats for a table whose rows are here.
 */
static void
count_records(IdemkitTable *table, Datum *values, bool *nulls)
{
	double fraction = sample_fraction(table->relid);
	Datum  parameters[] = {
		 TimestampTzGetDatum(idemkit_clock()),
		 Float4GetDatum((float4) (100 * fraction)),
		 ObjectIdGetDatum(table->relid),
	 };
	IdemkitResult result = idemkit_execute(table, IDEMKIT_COUNT_RECORDS, parameters, NULL);

	StaticAssertStmt(COUNTED_COLUMNS + 1 == IDEMKIT_STATS_COLUMNS, "columns of idemkit_stats");
	Assert(result.rowdesc->natts == COUNTED_COLUMNS);
	heap_deform_tuple(result.rows[0], result.rowdesc, values, nulls);
	for (int i = 0; i < COUNTS; i++)
		values[i] = Int64GetDatum((int64) (DatumGetInt64(values[i]) / fraction + 0.5));
	values[COUNTED_COLUMNS] = Float8GetDatum(fraction);
	nulls[COUNTED_COLUMNS] = false;
}

/*
 * idemkit_stats(records) RETURNS idemkit_stats
 *
 * Raises 42P01 and 55000 for a table that is none, and for a distributed one
 * 38000 if a shard cannot be asked, 0A000 if its rows are replicated.
 */
Datum
idemkit_stats(PG_FUNCTION_ARGS)
{
	IdemkitTable *table = idemkit_open_table(fcinfo, 0);
	Datum		  values[IDEMKIT_STATS_COLUMNS];
	bool		  nulls[IDEMKIT_STATS_COLUMNS];

	if (table->placement == IDEMKIT_HERE)
		count_records(table, values, nulls);
	else
		idemkit_stats_of_shards(fcinfo, table, values, nulls);
	PG_RETURN_DATUM(idemkit_form_result(fcinfo, values, nulls));
}
