/*
 * lookup.c
 *		Reading one row by its key, without the executor.
 *
 * Looking is what every call does first and what a duplicate does only, so it
 * is worth a path of its own: setting up and taking down an executor costs
 * several times what the index search does (bench/README.md has the numbers).
 * The path is the one the server uses on its catalogues: find the key in the
 * primary key's index, by a snapshot, and copy the row.
 *
 * It is taken only where it means the same as the statement IDEMKIT_READ: a
 * table of its own (no partitions, children or row-level security), read by a
 * role with SELECT on all of it, with nobody hooked into permission checks, and
 * present on this server (an unlogged table is not on a standby).
 * Where Citus is loaded a table may be the shell of one whose rows are
 * elsewhere, so there it is never taken.
 */
#include "idemkit.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_opfamily.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/*
 * Columns of a row as IDEMKIT_READ returns them, by name.
 */
static const char *const read_columns[IDEMKIT_READ_COLUMNS] = {
	[IDEMKIT_EFFECTIVE_KEY] = "effective_key",
	[IDEMKIT_STATE] = "state",
	[IDEMKIT_FINGERPRINT] = "fingerprint",
	[IDEMKIT_FINGERPRINT_VERSION] = "fingerprint_version",
	[IDEMKIT_CLAIM_TOKEN] = "claim_token",
	[IDEMKIT_CLAIMED_AT] = "claimed_at",
	[IDEMKIT_LEASE_UNTIL] = "lease_until",
	[IDEMKIT_COMPLETED_AT] = "completed_at",
	[IDEMKIT_RESPONSE_STATUS] = "response_status",
	[IDEMKIT_RESPONSE_HEADERS] = "response_headers",
	[IDEMKIT_RESPONSE_BODY] = "response_body",
	[IDEMKIT_ATTEMPTS] = "attempts",
	[IDEMKIT_READ_COLUMNS - 1] = "schema_version",
};

/*
 * Is the index one that can be searched for a text by its bytes?
 */
static bool
is_key_index(Oid index_oid, Oid collation)
{
	Relation index = index_open(index_oid, AccessShareLock);
	bool	 result = index->rd_rel->relam == BTREE_AM_OID &&
				  index->rd_opfamily[0] == TEXT_BTREE_FAM_OID &&
				  index->rd_indcollation[0] == collation;

	index_close(index, AccessShareLock);
	return result;
}

/*
 * Decides whether a table may be read this way and notes where its columns
 * are.  Called when the table's entry is checked.
 */
void
idemkit_prepare_lookup(IdemkitTable *table, Relation relation)
{
	Oid index = idemkit_key_index(relation);

	table->key_index = InvalidOid;
	for (int i = 0; i < IDEMKIT_READ_COLUMNS; i++)
		table->columns[i] = idemkit_column_number(relation, read_columns[i]);
	if (relation->rd_rel->relkind != RELKIND_RELATION || relation->rd_rel->relhassubclass ||
		relation->rd_rel->relrowsecurity || RELATION_IS_OTHER_TEMP(relation) ||
		GetConfigOption("citus.shard_count", true, false) != NULL)
		return;
	table->key_collation =
		TupleDescAttr(RelationGetDescr(relation), table->columns[IDEMKIT_EFFECTIVE_KEY] - 1)
			->attcollation;
	if (is_key_index(index, table->key_collation))
		table->key_index = index;
}

/*
 * May the current role read the whole table, as far as the server's own
 * rules go?
 */
static bool
may_read(const IdemkitTable *table)
{
	return ExecutorCheckPerms_hook == NULL &&
		   pg_class_aclcheck(table->relid, GetUserId(), ACL_SELECT) == ACLCHECK_OK;
}

/*
 * Loads a record from a copy of a row, whose columns may be in any order.
 */
static void
load_columns(const IdemkitTable *table, Relation relation, HeapTuple row, IdemkitRecord *record)
{
	TupleDesc rowdesc = RelationGetDescr(relation);
	Datum	 *values = palloc(rowdesc->natts * sizeof(Datum));
	bool	 *nulls = palloc(rowdesc->natts * sizeof(bool));

	heap_deform_tuple(row, rowdesc, values, nulls);
	for (int i = 0; i < IDEMKIT_READ_COLUMNS; i++)
	{
		record->values[i] = values[table->columns[i] - 1];
		record->nulls[i] = nulls[table->columns[i] - 1];
	}
	record->schema_version = DatumGetInt32(record->values[IDEMKIT_READ_COLUMNS - 1]);
	pfree(values);
	pfree(nulls);
}

/*
 * Searches the index by a new snapshot and returns a copy of the row, or
 * NULL.
 */
static HeapTuple
search_index(const IdemkitTable *table, Relation relation, const text *key)
{
	ScanKeyData scankey;
	SysScanDesc scan;
	HeapTuple	row;

	ScanKeyEntryInitialize(&scankey, 0, table->columns[IDEMKIT_EFFECTIVE_KEY],
						   BTEqualStrategyNumber, InvalidOid, table->key_collation, F_TEXTEQ,
						   PointerGetDatum(key));
	/* What this transaction has changed so far must show. */
	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());
	scan = systable_beginscan(relation, table->key_index, true, GetActiveSnapshot(), 1, &scankey);
	row = systable_getnext(scan);
	if (row != NULL)
		row = heap_copytuple(row);
	systable_endscan(scan);
	PopActiveSnapshot();
	return row;
}

/*
 * Looks a key up.  False if this table cannot be read this way now; otherwise
 * "found" tells whether there is a row, which is then in "record".  Its values
 * are allocated in the current memory context.
 */
bool
idemkit_look_up(const IdemkitTable *table, const text *key, IdemkitRecord *record, bool *found)
{
	Relation  relation;
	HeapTuple row;

	if (table->key_index == InvalidOid || !may_read(table))
		return false;

	/* Locking may bring the news that what we know of the table is old. */
	relation = table_open(table->relid, AccessShareLock);
	if (!table->checked ||
		(relation->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED && RecoveryInProgress()))
	{
		table_close(relation, NoLock);
		return false;
	}
	row = search_index(table, relation, key);
	*found = row != NULL;
	if (*found)
		load_columns(table, relation, row, record);
	table_close(relation, NoLock);
	return true;
}
