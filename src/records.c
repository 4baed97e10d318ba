/*
 * records.c
 *		Which table a call means, and what this backend knows about it.
 *
 * A records table is known by its OID.  Its qualified name (for the text of
 * statements), the fact that its layout was checked and its saved plans are
 * kept until the backend ends.  Invalidation messages for the table, or for
 * any schema, clear the "checked" flag; the next call then looks at the
 * catalogue again, so a table may be renamed, moved, altered or dropped at
 * any time.
 *
 * Plans made for an old name cannot be freed on the spot, since a trigger
 * may have got us here while one of them is running; they are retired and
 * freed when the transaction ends.
 */
#include "idemkit.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "storage/lmgr.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

/* Every records table this backend has used, by OID. */
static HTAB *tables = NULL;

/*
 * The extension's own table, or InvalidOid when it, and the installed version with
 * it, must be looked up.
 */
static Oid own_table = InvalidOid;

/* Plans to be freed at the end of the transaction, or NIL. */
static List *retired_plans = NIL;

/*
 * Relation cache callback: something about a relation (all of them when
 * relid is InvalidOid) has changed.
 */
static void
forget_relation(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS scan;
	IdemkitTable   *table;

	if (relid == InvalidOid || relid == own_table)
		own_table = InvalidOid;
	if (relid != InvalidOid)
	{
		table = hash_search(tables, &relid, HASH_FIND, NULL);
		if (table != NULL)
			table->checked = false;
		return;
	}
	hash_seq_init(&scan, tables);
	while ((table = hash_seq_search(&scan)) != NULL)
		table->checked = false;
}

/*
 * System cache callback: a schema was renamed or dropped, so that any
 * qualified name may be wrong.
 */
static void
forget_names(Datum arg, int cacheid, uint32 hashvalue)
{
	forget_relation(arg, InvalidOid);
}

/*
 * System cache callback: a function was made, changed or dropped, as an update of
 * the extension does, which touches its table only now and then.
 */
static void
forget_version(Datum arg, int cacheid, uint32 hashvalue)
{
	own_table = InvalidOid;
}

/*
 * Transaction callback: frees what was retired while it ran.
 */
static void
free_retired_plans(XactEvent event, void *arg)
{
	ListCell *cell;

	if (retired_plans == NIL ||
		!(event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE))
		return;
	foreach(cell, retired_plans)
		SPI_freeplan((SPIPlanPtr) lfirst(cell));
	list_free(retired_plans);
	retired_plans = NIL;
}

/*
 * Sets up the cache.  Called once, when the library is loaded.
 */
void
idemkit_watch_tables(void)
{
	HASHCTL control;

	memset(&control, 0, sizeof(control));
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(IdemkitTable);
	control.hcxt = TopMemoryContext;
	tables =
		hash_create("idemkit records tables", 8, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(forget_relation, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, forget_names, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, forget_version, (Datum) 0);
	RegisterXactCallback(free_retired_plans, NULL);
}

/*
 * Retires all plans of a table and forgets its name.
 */
static void
retire_plans(IdemkitTable *table)
{
	MemoryContext caller = MemoryContextSwitchTo(TopMemoryContext);

	for (int i = 0; i < IDEMKIT_STATEMENT_COUNT; i++)
	{
		if (table->plans[i] == NULL)
			continue;
		retired_plans = lappend(retired_plans, table->plans[i]);
		table->plans[i] = NULL;
	}
	MemoryContextSwitchTo(caller);
	if (table->name != NULL)
		pfree(table->name);
	table->name = NULL;
}

/*
 * Forgets tables that are gone.
 */
static void
forget_dropped_tables(void)
{
	HASH_SEQ_STATUS scan;
	IdemkitTable   *table;

	hash_seq_init(&scan, tables);
	while ((table = hash_seq_search(&scan)) != NULL)
	{
		if (table->checked || SearchSysCacheExists1(RELOID, ObjectIdGetDatum(table->relid)))
			continue;
		retire_plans(table);
		hash_search(tables, &table->relid, HASH_REMOVE, NULL);
	}
}

/*
 * Raises 42P01 for a table that is gone.
 */
void
idemkit_refuse_missing_table(Oid relid)
{
	ereport(ERROR, (errcode(IDEMKIT_ERRCODE_NO_TABLE),
					errmsg("records table with OID %u does not exist", relid)));
}

/*
 * Finds or makes the entry of a table, without looking at the table.
 */
static IdemkitTable *
find_entry(Oid relid)
{
	bool		  found;
	IdemkitTable *table = hash_search(tables, &relid, HASH_ENTER, &found);

	if (!found)
	{
		table->checked = false;
		table->name = NULL;
		memset(table->plans, 0, sizeof(table->plans));
	}
	return table;
}

/*
 * Looks at the catalogue: raises 42P01 if the table is gone, 55000 if it is
 * no records table; takes note of a new name.  Keeps a lock on the table until
 * the transaction ends, as the statements that follow do, so that the name
 * holds for them.
 */
IdemkitTable *
idemkit_check_table(Oid relid)
{
	Relation		 relation = try_relation_open(relid, AccessShareLock);
	IdemkitTable	*table;
	IdemkitFault	 fault;
	char			*name;
	bool			 more_unique;
	IdemkitPlacement placement;

	forget_dropped_tables();
	if (relation == NULL)
		idemkit_refuse_missing_table(relid);
	table = find_entry(relid);

	/* Set first: a message that arrives from here on must clear it again. */
	table->checked = true;
	fault = idemkit_layout_fault(relation);
	if (fault.what != NULL)
	{
		table->checked = false;
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_NOT_RECORDS),
						errmsg("\"%s\" is not a records table", RelationGetRelationName(relation)),
						errdetail_internal("%s", fault.what),
						errhint("Make or adopt a records table with idemkit_create_table().")));
	}

	placement = idemkit_placement(relid);
	more_unique = idemkit_keeps_more_unique(relation);
	name = idemkit_quoted_name(relation);
	if (table->name == NULL || strcmp(table->name, name) != 0 || table->placement != placement ||
		table->more_unique != more_unique)
	{
		retire_plans(table);
		table->name = MemoryContextStrdup(TopMemoryContext, name);
		table->placement = placement;
		table->more_unique = more_unique;
	}
	idemkit_prepare_direct(table, relation);
	relation_close(relation, NoLock);
	return table;
}

/*
 * Makes sure that the library and the installed SQL objects are of one
 * version, and finds the extension's own table.  Raises 55000 otherwise.
 */
static void
check_extension(void)
{
	char *version;
	Oid	  found = idemkit_find_extension(&version);

	if (strcmp(version, IDEMKIT_EXTENSION_VERSION) != 0)
		ereport(
			ERROR,
			(errcode(IDEMKIT_ERRCODE_WRONG_VERSION),
			 errmsg("library of idemkit %s does not fit the installed SQL objects of version %s",
					IDEMKIT_EXTENSION_VERSION, version),
			 errhint("Run: ALTER EXTENSION idemkit UPDATE TO '%s'; and connect again.  If the "
					 "installed version is newer, install the library of that version.",
					 IDEMKIT_EXTENSION_VERSION)));
	own_table = found;
}

/*
 * The OID of the table a call means: its argument "records", or the
 * extension's own table when that is null.  Raises 55000 for a library that
 * does not fit the installed version.
 */
Oid
idemkit_table_argument(FunctionCallInfo fcinfo, int argno)
{
	if (own_table == InvalidOid)
		check_extension();
	return PG_ARGISNULL(argno) ? own_table : PG_GETARG_OID(argno);
}

/*
 * The table a call means, locked until the transaction ends, so that nobody
 * drops or alters it under the statements that follow.  The result is valid
 * until the call returns.
 *
 * Raises 42P01 for a table that is gone, 55000 for one that is no records
 * table; and what idemkit_table_argument() raises.
 */
IdemkitTable *
idemkit_open_table(FunctionCallInfo fcinfo, int argno)
{
	Oid			  relid = idemkit_table_argument(fcinfo, argno);
	IdemkitTable *table;

	/* Locking brings the news of what others did to the table up to now. */
	LockRelationOid(relid, AccessShareLock);
	table = hash_search(tables, &relid, HASH_FIND, NULL);
	if (table != NULL && table->checked)
		return table;
	return idemkit_check_table(relid);
}
