/*
 * tables.c
 *		idemkit_create_table and idemkit_verify_schema: making, adopting and
 *		checking records tables.
 *
 * The layout is written down here once: the extension's script makes its own
 * table by calling idemkit_create_table().  Definitions run with search_path
 * set to pg_catalog, so that no type, operator or collation of another schema
 * can slip in.
 */
#include "idemkit.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(idemkit_create_table);
PG_FUNCTION_INFO_V1(idemkit_verify_schema);

/*
 * The argument table_name as the name of a table: folded to lower case as
 * SQL does.  Raises 22004 for null, 42602 for what is no plain identifier or
 * too long for the names derived from it.
 */
static char *
table_name_argument(FunctionCallInfo fcinfo)
{
	text *given = idemkit_text_argument(fcinfo, 0, "table_name");
	char *name = text_to_cstring(given);
	Size  length = strlen(name);

	if (length < 1 || length > IDEMKIT_MAX_TABLE_NAME_BYTES || (name[0] >= '0' && name[0] <= '9') ||
		strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789") != length)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_BAD_NAME),
						errmsg("\"%s\" cannot be the name of a records table",
							   pnstrdup(name, NAMEDATALEN)),
						errdetail("A name has 1 to %d letters, digits and underscores and does not "
								  "begin with a digit.",
								  IDEMKIT_MAX_TABLE_NAME_BYTES)));
	for (char *c = name; *c != '\0'; c++)
		*c = pg_tolower((unsigned char) *c);
	return name;
}

/*
 * The current schema.  Raises 3F000 if search_path names none that exists.
 */
static Oid
schema_to_create_in(void)
{
	List *path = fetch_search_path(false);
	Oid	  schema = path == NIL ? InvalidOid : linitial_oid(path);

	if (schema == InvalidOid)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_NO_SCHEMA),
						errmsg("no schema has been selected to create in")));
	list_free(path);
	return schema;
}

/*
 * Makes the table and its index.
 */
static void
create_table(const char *schema, const char *name, bool unlogged)
{
	const char *table = quote_qualified_identifier(schema, name);

	idemkit_execute_definition(idemkit_create_table_command(table, unlogged));
	idemkit_execute_definition(idemkit_create_index_command(table, name));
}

/*
 * DROP INDEX of an index that the Python package makes, or NULL: one of that
 * name, on this table, with a predicate.
 */
static char *
drop_package_index_command(Relation table, const char *suffix)
{
	char *name = psprintf("%s_%s", RelationGetRelationName(table), suffix);
	Oid	  index = get_relname_relid(name, RelationGetNamespace(table));

	if (index == InvalidOid || !idemkit_is_partial_index(table, index))
		return NULL;
	return psprintf("DROP INDEX %s", quote_qualified_identifier(
										 get_namespace_name(RelationGetNamespace(table)), name));
}

/*
 * The commands that add to a table what it lacks of a records table, in
 * order; none rewrites a row.  Raises 55000 for a table that is something
 * else.
 */
static List *
adoption_commands(Relation table)
{
	IdemkitFault fault = idemkit_adoption_fault(table);
	char		*name = idemkit_quoted_name(table);
	List		*commands;

	if (fault.what != NULL)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_NOT_RECORDS),
						errmsg("table \"%s\" exists and cannot be adopted as a records table",
							   RelationGetRelationName(table)),
						errdetail_internal("%s", fault.what)));

	commands = list_make3(idemkit_add_columns_command(name),
						  drop_package_index_command(table, "lease_until_idx"),
						  drop_package_index_command(table, "completed_at_idx"));
	if (!idemkit_has_c_collation(table))
		commands = lappend(commands, idemkit_set_collation_command(name));
	if (idemkit_expiry_index(table) == InvalidOid)
		commands =
			lappend(commands, idemkit_create_index_command(name, RelationGetRelationName(table)));
	if (table->rd_options == NULL && table->rd_rel->relkind == RELKIND_RELATION)
		commands = lappend(commands, idemkit_set_parameters_command(name));
	return commands;
}

/*
 * Is the table a complete records table already?  Keeps no lock on it: who waits
 * for its turn with one is in the way of who has the turn, and needs to alter it.
 */
static bool
is_complete(Oid relid)
{
	Relation table = try_relation_open(relid, AccessShareLock);
	bool	 complete;

	if (table == NULL)
		return false;
	complete = idemkit_schema_fault(table).what == NULL;
	relation_close(table, AccessShareLock);
	return complete;
}

/*
 * Adopts an existing table.  Raises 42P01 if it has gone meanwhile.
 */
static void
adopt_table(Oid relid)
{
	Relation  table = try_relation_open(relid, AccessExclusiveLock);
	List	 *commands;
	ListCell *cell;

	if (table == NULL)
		idemkit_refuse_missing_table(relid);
	commands = adoption_commands(table);
	relation_close(table, NoLock);
	foreach(cell, commands)
	{
		if (lfirst(cell) != NULL)
			idemkit_execute_definition(lfirst(cell));
	}
}

/*
 * Makes or adopts the table of that name, with search_path pinned, and
 * returns it.
 */
static Oid
make_table(Oid schema, const char *name, bool unlogged)
{
	int nestlevel = NewGUCNestLevel();
	Oid relid;

	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	relid = get_relname_relid(name, schema);
	if (relid == InvalidOid)
	{
		create_table(get_namespace_name(schema), name, unlogged);
		relid = get_relname_relid(name, schema);
	}
	else if (!is_complete(relid))
		adopt_table(relid);
	AtEOXact_GUC(true, nestlevel);
	return relid;
}

/*
 * idemkit_create_table(table_name, unlogged) RETURNS regclass
 *
 * Makes a records table in the current schema, or adopts the table of that
 * name.  Raises 22004, 42602 for the name, 3F000 without a current schema,
 * 55000 for a table that cannot be adopted; and what the definitions raise.
 */
Datum
idemkit_create_table(PG_FUNCTION_ARGS)
{
	char *name = table_name_argument(fcinfo);
	bool  unlogged = idemkit_bool_argument(fcinfo, 1, "unlogged");
	Oid	  schema = schema_to_create_in();
	Oid	  relid = get_relname_relid(name, schema);

	/*
	 * While the extension's script runs as a superuser it must not take over
	 * a table that somebody else may have put there.
	 */
	if (relid != InvalidOid && creating_extension)
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_TABLE_EXISTS), errmsg("table \"%s\" exists already", name),
				 errhint("Create the extension in another schema, then adopt this table with "
						 "idemkit_create_table() and pass it as \"records\".")));

	/* Called at every start of a program, this blocks nobody. */
	if (relid != InvalidOid && is_complete(relid))
		PG_RETURN_OID(relid);

	/* Programs that start at the same time take turns. */
	PreventCommandIfReadOnly("idemkit_create_table()");
	LockDatabaseObject(NamespaceRelationId, schema, 0, ShareUpdateExclusiveLock);
	AcceptInvalidationMessages();
	PG_RETURN_OID(make_table(schema, name, unlogged));
}

/*
 * idemkit_verify_schema(records) RETURNS void
 *
 * Raises 55000 with what is wrong with a records table and the statement that
 * mends it; 42P01 if the table is gone.
 */
Datum
idemkit_verify_schema(PG_FUNCTION_ARGS)
{
	Oid			 relid;
	Relation	 table;
	IdemkitFault fault;

	relid = idemkit_table_argument(fcinfo, 0);
	table = try_relation_open(relid, AccessShareLock);
	if (table == NULL)
		idemkit_refuse_missing_table(relid);
	fault = idemkit_schema_fault(table);
	if (fault.what != NULL)
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_NOT_RECORDS),
				 errmsg("\"%s\" is not a complete records table", RelationGetRelationName(table)),
				 errdetail_internal("%s", fault.what),
				 fault.mend == NULL ? errhint("Make a records table with idemkit_create_table().")
									: errhint("Run: %s;", fault.mend)));
	relation_close(table, NoLock);
	PG_RETURN_VOID();
}
