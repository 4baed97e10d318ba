/*
 * direct.c
 *		Looking a key up, inserting its claim, and removing expired rows, without
 *		the executor.
 *
 * Looking is what every call does first and what a duplicate does only, and
 * setting up an executor for it costs several times what the index search
 * does.  Inserting is what every new key begins with; half of what the
 * executor does for it is to prepare the CHECK constraint that the claim keeps
 * anyhow.  Removing is what is done to every row once, and the one way in SQL
 * to pass over rows that others have locked is to lock each row first, which
 * writes it twice.  bench/README.md has the numbers.
 *
 * So each has a path of its own, the one the server uses on its catalogues:
 * search an index by a snapshot, and copy or delete what it finds; add a row
 * and its index entries.  It is taken only where it means the same as the
 * statements IDEMKIT_READ, IDEMKIT_INSERT_CLAIM and IDEMKIT_VACUUM: on a table
 * of its own (no partitions, children, row-level security, rules or triggers in
 * the way), by a role with the privilege on all of it, with nobody hooked into
 * permission checks, and present on this server (an unlogged table is not on a
 * standby).  A table distributed by Citus is only the shell of one whose rows
 * are elsewhere; its shards, as vacuum gets them, are tables of their own.
 */
#include "idemkit.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"

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
 * The index if it can be searched by the server's own operators for the type,
 * upwards, else InvalidOid.
 */
static Oid
searchable(Oid index_oid, Oid type, Oid collation)
{
	Oid		 family = get_opclass_family(GetDefaultOpClass(type, BTREE_AM_OID));
	Relation index;
	bool	 result;

	if (index_oid == InvalidOid)
		return InvalidOid;
	index = index_open(index_oid, AccessShareLock);
	result = index->rd_rel->relam == BTREE_AM_OID && index->rd_opfamily[0] == family &&
			 index->rd_indcollation[0] == collation && index->rd_indoption[0] == 0;
	index_close(index, AccessShareLock);
	return result ? index_oid : InvalidOid;
}

/*
 * Decides whether a table may be read, added to and removed from this way, and
 * notes where its columns are.  Called when the table's entry is checked.
 */
void
idemkit_prepare_direct(IdemkitTable *table, Relation relation)
{
	table->key_index = InvalidOid;
	table->expiry_index = InvalidOid;
	table->plain = false;
	for (int i = 0; i < IDEMKIT_READ_COLUMNS; i++)
		table->columns[i] = idemkit_column_number(relation, read_columns[i]);
	table->awaited_column = idemkit_column_number(relation, "awaited");
	if (relation->rd_rel->relkind != RELKIND_RELATION || relation->rd_rel->relhassubclass ||
		relation->rd_rel->relrowsecurity || RELATION_IS_OTHER_TEMP(relation) ||
		table->placement != IDEMKIT_HERE)
		return;

	table->key_collation =
		TupleDescAttr(RelationGetDescr(relation), table->columns[IDEMKIT_EFFECTIVE_KEY] - 1)
			->attcollation;
	table->key_index = searchable(idemkit_key_index(relation), TEXTOID, table->key_collation);
	table->plain = table->key_index != InvalidOid && idemkit_is_plain(relation);
	if (!relation->rd_rel->relhastriggers && !relation->rd_rel->relhasrules)
		table->expiry_index =
			searchable(idemkit_expiry_index(relation), TIMESTAMPTZOID, InvalidOid);
}

/*
 * Has the current role this privilege on the whole table, as far as the
 * server's own rules go?
 */
static bool
may(const IdemkitTable *table, AclMode privileges)
{
	return ExecutorCheckPerms_hook == NULL &&
		   pg_class_aclmask(table->relid, GetUserId(), privileges, ACLMASK_ALL) == privileges;
}

/*
 * Opens a table, or returns NULL if this path must not be taken after all.
 */
static Relation
open_direct(const IdemkitTable *table, LOCKMODE lockmode)
{
	Relation relation = table_open(table->relid, lockmode);

	/* Locking may have brought the news that what we know of it is old. */
	if (table->checked &&
		(relation->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED || !RecoveryInProgress()))
		return relation;
	table_close(relation, NoLock);
	return NULL;
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

	if (table->key_index == InvalidOid || !may(table, ACL_SELECT))
		return false;
	relation = open_direct(table, AccessShareLock);
	if (relation == NULL)
		return false;

	row = search_index(table, relation, key);
	*found = row != NULL;
	if (*found)
		load_columns(table, relation, row, record);
	table_close(relation, NoLock);
	return true;
}

/*
 * Sets a column of a row that is being made.
 */
static void
set_column(TupleTableSlot *slot, AttrNumber column, Datum value)
{
	slot->tts_values[column - 1] = value;
	slot->tts_isnull[column - 1] = false;
}

/*
 * Makes the row of a new claim.
 */
static TupleTableSlot *
form_claim(const IdemkitTable *table, Relation relation, const IdemkitRecord *record)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(relation), &TTSOpsVirtual);

	memset(slot->tts_isnull, true, RelationGetDescr(relation)->natts * sizeof(bool));
	for (int i = 0; i <= IDEMKIT_ATTEMPTS; i++)
		if (!record->nulls[i])
			set_column(slot, table->columns[i], record->values[i]);
	set_column(slot, table->columns[IDEMKIT_READ_COLUMNS - 1],
			   Int32GetDatum(IDEMKIT_SCHEMA_VERSION));
	set_column(slot, table->awaited_column, BoolGetDatum(false));
	return ExecStoreVirtualTuple(slot);
}

/*
 * Adds the entry of a row to one index, unless nothing is to be added to it yet,
 * as to one made CONCURRENTLY since the table was locked.  False if the index is
 * unique and there may be another row, committed or not, of the same key.
 */
static bool
add_index_entry(Relation relation, Oid index_oid, TupleTableSlot *slot, IndexUniqueCheck check)
{
	Relation   index = index_open(index_oid, RowExclusiveLock);
	IndexInfo *info = BuildIndexInfo(index);
	Datum	   values[INDEX_MAX_KEYS];
	bool	   nulls[INDEX_MAX_KEYS];
	bool	   unique = true;

	if (info->ii_ReadyForInserts)
	{
		FormIndexDatum(info, slot, NULL, values, nulls);
		unique = index_insert(index, values, nulls, &slot->tts_tid, relation, check, false, info);
	}
	index_close(index, NoLock);
	return unique;
}

/*
 * Adds the entries of a row to all indexes, that of the key first.  False if
 * there may be another row of the key.
 */
static bool
add_index_entries(const IdemkitTable *table, Relation relation, TupleTableSlot *slot)
{
	List	 *indexes;
	ListCell *cell;

	if (!add_index_entry(relation, table->key_index, slot, UNIQUE_CHECK_PARTIAL))
		return false;
	indexes = RelationGetIndexList(relation);
	foreach(cell, indexes)
		if (lfirst_oid(cell) != table->key_index)
			add_index_entry(relation, lfirst_oid(cell), slot, UNIQUE_CHECK_NO);
	list_free(indexes);
	return true;
}

/*
 * Inserts the row of a new claim.  False if that cannot be done this way now,
 * or if there may be another row of the key: who inserts by the statement
 * waits for its transaction.
 *
 * As INSERT ... ON CONFLICT does, it inserts speculatively: should the index
 * of the key turn out to have another entry, the row is taken back, and whoever
 * ran into it meanwhile has waited for that and not for the transaction.
 */
bool
idemkit_insert_directly(const IdemkitTable *table, const IdemkitRecord *record)
{
	Relation		relation;
	TupleTableSlot *slot;
	TransactionId	xid;
	uint32			token;
	bool			unique;

	if (!table->plain || XactReadOnly || !may(table, ACL_SELECT | ACL_INSERT))
		return false;
	relation = open_direct(table, RowExclusiveLock);
	if (relation == NULL)
		return false;

	slot = form_claim(table, relation, record);
	xid = GetCurrentTransactionId();
	token = SpeculativeInsertionLockAcquire(xid);
	table_tuple_insert_speculative(relation, slot, GetCurrentCommandId(true), 0, NULL, token);
	unique = add_index_entries(table, relation, slot);
	table_tuple_complete_speculative(relation, slot, token, unique);
	SpeculativeInsertionLockRelease(xid);

	ExecDropSingleTupleTableSlot(slot);
	table_close(relation, NoLock);
	CommandCounterIncrement();
	return unique;
}

/*
 * Is a row, whose lease_until is before the clock, to be removed?
 */
static bool
is_expired(const IdemkitTable *table, Relation relation, HeapTuple row, TimestampTz claims_before,
		   TimestampTz *lease_until)
{
	TupleDesc	  rowdesc = RelationGetDescr(relation);
	IdemkitRecord record = {0};
	bool		  isnull;

	record.values[IDEMKIT_STATE] =
		heap_getattr(row, table->columns[IDEMKIT_STATE], rowdesc, &isnull);
	*lease_until = DatumGetTimestampTz(
		heap_getattr(row, table->columns[IDEMKIT_LEASE_UNTIL], rowdesc, &isnull));
	return idemkit_is_completed(&record) ||
		   (idemkit_is_claimed(&record) && *lease_until < claims_before);
}

/*
 * Locks a row to delete it.  False if somebody else has locked or changed it.
 */
static bool
lock_row(Relation relation, HeapTuple row, CommandId command)
{
	TupleTableSlot *slot = table_slot_create(relation, NULL);
	TM_FailureData	failure;
	TM_Result result = table_tuple_lock(relation, &row->t_self, GetActiveSnapshot(), slot, command,
										LockTupleExclusive, LockWaitSkip, 0, &failure);

	ExecDropSingleTupleTableSlot(slot);
	return result == TM_Ok;
}

/*
 * Deletes a row.  False if somebody else has locked or changed it.
 *
 * Deleting without waiting is refused for a lock that this transaction holds
 * itself, too; which of both it is shows when the row is locked first.
 */
static bool
delete_row(Relation relation, HeapTuple row, CommandId command)
{
	TM_FailureData failure;
	TM_Result result = table_tuple_delete(relation, &row->t_self, command, 0, GetActiveSnapshot(),
										  InvalidSnapshot, false, &failure);

	if (result == TM_BeingModified && lock_row(relation, row, command))
		result = table_tuple_delete(relation, &row->t_self, command, 0, GetActiveSnapshot(),
									InvalidSnapshot, true, &failure);
	return result == TM_Ok;
}

/*
 * Removes expired rows in the order of lease_until, as IDEMKIT_VACUUM does.
 * Stops after max_rows.  Moves "begin" to the last row removed.
 */
static int64
remove_by_index(const IdemkitTable *table, Relation relation, IdemkitRemoval *removal)
{
	Relation	index = index_open(table->expiry_index, AccessShareLock);
	CommandId	command = GetCurrentCommandId(true);
	ScanKeyData range[2];
	SysScanDesc scan;
	HeapTuple	row;
	int64		removed = 0;

	ScanKeyInit(&range[0], table->columns[IDEMKIT_LEASE_UNTIL], BTGreaterEqualStrategyNumber,
				F_TIMESTAMPTZ_GE, TimestampTzGetDatum(removal->begin));
	ScanKeyInit(&range[1], table->columns[IDEMKIT_LEASE_UNTIL], BTLessStrategyNumber,
				F_TIMESTAMPTZ_LT, TimestampTzGetDatum(removal->clock));
	scan = systable_beginscan_ordered(relation, index, GetActiveSnapshot(), 2, range);
	while ((!removal->limited || removed < removal->max_rows) &&
		   (row = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		TimestampTz lease_until;

		CHECK_FOR_INTERRUPTS();
		if (!is_expired(table, relation, row, removal->clock - removal->grace, &lease_until) ||
			!delete_row(relation, row, command))
			continue;
		removal->begin = lease_until;
		removed++;
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	return removed;
}

/*
 * Removes expired rows.  False if this cannot be done this way now; otherwise
 * "removed" is their number.
 */
bool
idemkit_remove_directly(const IdemkitTable *table, IdemkitRemoval *removal, int64 *removed)
{
	Relation relation;

	/* A transaction with a fixed snapshot must raise 40001, as a DELETE does. */
	if (table->expiry_index == InvalidOid || removal->by_age || XactReadOnly ||
		IsolationUsesXactSnapshot() || !may(table, ACL_SELECT | ACL_DELETE))
		return false;
	relation = open_direct(table, RowExclusiveLock);
	if (relation == NULL)
		return false;

	CheckCmdReplicaIdentity(relation, CMD_DELETE);
	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());
	*removed = remove_by_index(table, relation, removal);
	PopActiveSnapshot();
	table_close(relation, NoLock);
	return true;
}
