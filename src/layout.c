/*
 * layout.c
 *		What makes a table a records table, and the commands that make one.
 *
 * The layout is written down here once.  The functions compare a table with
 * the columns that the statements name; more columns, and any order of them,
 * are fine.  The commands name types without their schema: they are meant to
 * be run with search_path set to pg_catalog (see tables.c).
 */
#include "idemkit.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

typedef struct LayoutColumn
{
	const char *name;
	Oid			type;
	bool		notnull;
	const char *definition;
} LayoutColumn;

static const LayoutColumn layout[] = {
	{"effective_key", TEXTOID, true, "text COLLATE \"C\" PRIMARY KEY"},
	{"state", TEXTOID, true, "text NOT NULL CHECK (state IN ('CLAIMED', 'COMPLETED'))"},
	{"fingerprint", TEXTOID, true, "text NOT NULL"},
	{"fingerprint_version", INT4OID, true, "integer NOT NULL"},
	{"claim_token", TEXTOID, true, "text NOT NULL"},
	{"claimed_at", TIMESTAMPTZOID, true, "timestamptz NOT NULL"},
	{"lease_until", TIMESTAMPTZOID, true, "timestamptz NOT NULL"},
	{"completed_at", TIMESTAMPTZOID, false, "timestamptz"},
	{"response_status", INT4OID, false, "integer"},
	{"response_headers", JSONBOID, false, "jsonb"},
	{"response_body", BYTEAOID, false, "bytea"},
	{"schema_version", INT4OID, true, "integer NOT NULL DEFAULT 1"},
	{"awaited", BOOLOID, true, "boolean NOT NULL DEFAULT false"},
	{"attempts", INT4OID, true, "integer NOT NULL DEFAULT 1"},
};

#define ALL_COLUMNS lengthof(layout)

/* The Python package's table has the columns before this one. */
#define FIRST_ADDED_COLUMN 12

/*
 * Rows that come and go leave dead ones at a steady rate, whatever the size of
 * the table, so autovacuum is to come after a number of them and not after a
 * fifth of the table.  No fillfactor: every completion changes lease_until,
 * which is indexed, so room for HOT updates would stay empty.  Measured:
 * docs/operations.md has the numbers and the command.
 */
#define STORAGE_PARAMETERS \
	"autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000"

/*
 * CREATE TABLE of a records table.  "table" is qualified and quoted, here and
 * below.
 */
char *
idemkit_create_table_command(const char *table, bool unlogged)
{
	StringInfoData command;

	initStringInfo(&command);
	appendStringInfo(&command, "CREATE %sTABLE %s (", unlogged ? "UNLOGGED " : "", table);
	for (int i = 0; i < ALL_COLUMNS; i++)
		appendStringInfo(&command, "%s%s %s", i > 0 ? ", " : "", layout[i].name,
						 layout[i].definition);
	appendStringInfoString(&command, ") WITH (" STORAGE_PARAMETERS ")");
	return command.data;
}

/*
 * ALTER TABLE that adds the columns which the Python package's table lacks.
 * Their defaults are constants, so no row is rewritten.
 */
char *
idemkit_add_columns_command(const char *table)
{
	StringInfoData command;

	initStringInfo(&command);
	appendStringInfo(&command, "ALTER TABLE %s", table);
	for (int i = FIRST_ADDED_COLUMN; i < ALL_COLUMNS; i++)
		appendStringInfo(&command, "%s ADD COLUMN IF NOT EXISTS %s %s",
						 i > FIRST_ADDED_COLUMN ? "," : "", layout[i].name, layout[i].definition);
	return command.data;
}

/*
 * CREATE INDEX of the one index that every expiry scan uses as a range.
 */
char *
idemkit_create_index_command(const char *table, const char *name)
{
	return psprintf("CREATE INDEX %s ON %s (lease_until)",
					quote_identifier(psprintf("%s_lease_until_idx", name)), table);
}

/*
 * ALTER TABLE that sets the storage parameters.
 */
char *
idemkit_set_parameters_command(const char *table)
{
	return psprintf("ALTER TABLE %s SET (" STORAGE_PARAMETERS ")", table);
}

/*
 * ALTER TABLE that makes the key's order that of bytes.  Builds the primary
 * key's index again and leaves the rows alone.
 */
char *
idemkit_set_collation_command(const char *table)
{
	return psprintf("ALTER TABLE %s ALTER COLUMN effective_key TYPE text COLLATE \"C\"", table);
}

/*
 * The table's name, qualified and quoted.
 */
char *
idemkit_quoted_name(Relation table)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(table)),
									  RelationGetRelationName(table));
}

/*
 * A fault.
 */
static IdemkitFault
fault(char *what, char *mend)
{
	IdemkitFault result = {what, mend};

	return result;
}

/*
 * The column of that name, or NULL.
 */
static Form_pg_attribute
find_column(Relation table, const char *name)
{
	TupleDesc tupdesc = RelationGetDescr(table);

	for (int i = 0; i < tupdesc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(tupdesc, i);

		if (!column->attisdropped && strcmp(NameStr(column->attname), name) == 0)
			return column;
	}
	return NULL;
}

/*
 * What is wrong with a column.
 */
static IdemkitFault
column_fault(Relation table, const LayoutColumn *wanted)
{
	Form_pg_attribute column = find_column(table, wanted->name);
	char			 *name = idemkit_quoted_name(table);

	if (column == NULL)
		return fault(
			psprintf("Column \"%s\" is missing.", wanted->name),
			psprintf("ALTER TABLE %s ADD COLUMN %s %s", name, wanted->name, wanted->definition));
	if (column->atttypid != wanted->type)
		return fault(psprintf("Column \"%s\" has type %s instead of %s.", wanted->name,
							  format_type_be(column->atttypid), format_type_be(wanted->type)),
					 psprintf("ALTER TABLE %s ALTER COLUMN %s TYPE %s", name, wanted->name,
							  format_type_be(wanted->type)));
	if (column->attgenerated != '\0')
		return fault(
			psprintf("Column \"%s\" is generated.", wanted->name),
			psprintf("ALTER TABLE %s ALTER COLUMN %s DROP EXPRESSION", name, wanted->name));
	if (wanted->notnull && !column->attnotnull)
		return fault(psprintf("Column \"%s\" is not marked NOT NULL.", wanted->name),
					 psprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", name, wanted->name));
	return fault(NULL, NULL);
}

/*
 * The number of a column that the table has.
 */
AttrNumber
idemkit_column_number(Relation table, const char *name)
{
	return find_column(table, name)->attnum;
}

/*
 * An index on just this column, complete (no predicate), valid and, if asked
 * for, unique at once; or InvalidOid.
 */
static Oid
find_index_on(Relation table, const char *column_name, bool unique)
{
	AttrNumber column = idemkit_column_number(table, column_name);
	List	  *indexes = RelationGetIndexList(table);
	ListCell  *cell;
	Oid		   found = InvalidOid;

	foreach(cell, indexes)
	{
		HeapTuple	  tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(lfirst_oid(cell)));
		Form_pg_index index;

		if (!HeapTupleIsValid(tuple))
			continue;
		index = (Form_pg_index) GETSTRUCT(tuple);
		if (index->indnkeyatts == 1 && index->indkey.values[0] == column && index->indisvalid &&
			heap_attisnull(tuple, Anum_pg_index_indpred, NULL) &&
			(!unique || (index->indisunique && index->indimmediate)))
			found = lfirst_oid(cell);
		ReleaseSysCache(tuple);
	}
	list_free(indexes);
	return found;
}

/*
 * The index that keeps keys apart, or InvalidOid.
 */
Oid
idemkit_key_index(Relation table)
{
	return find_index_on(table, "effective_key", true);
}

/*
 * Does an index or a constraint keep more than keys apart, or not at once?
 */
bool
idemkit_keeps_more_unique(Relation table)
{
	AttrNumber key = idemkit_column_number(table, "effective_key");
	List	  *indexes = RelationGetIndexList(table);
	ListCell  *cell;
	bool	   result = false;

	foreach(cell, indexes)
	{
		Relation	  index = index_open(lfirst_oid(cell), AccessShareLock);
		Form_pg_index form = index->rd_index;

		if (form->indisexclusion ||
			(form->indisunique &&
			 !(form->indimmediate && form->indnkeyatts == 1 && form->indkey.values[0] == key)))
			result = true;
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return result;
}

/*
 * Is this an index of the table that leaves rows out?
 */
bool
idemkit_is_partial_index(Relation table, Oid index)
{
	HeapTuple tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	bool	  result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = ((Form_pg_index) GETSTRUCT(tuple))->indrelid == RelationGetRelid(table) &&
			 !heap_attisnull(tuple, Anum_pg_index_indpred, NULL);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Does the key's collation order bytes, whatever the operating system does?
 */
bool
idemkit_has_c_collation(Relation table)
{
	return find_column(table, "effective_key")->attcollation == C_COLLATION_OID;
}

/*
 * The index that expiry scans need, or InvalidOid.
 */
Oid
idemkit_expiry_index(Relation table)
{
	return find_index_on(table, "lease_until", false);
}

/*
 * Is the column one that a new claim leaves to its default?
 */
static bool
is_left_out_of_claims(const char *name)
{
	return strcmp(name, "completed_at") == 0 || strncmp(name, "response_", 9) == 0;
}

/*
 * Are the columns those of the layout and no others, all of them the INSERT's
 * to fill or to leave empty?
 */
static bool
has_plain_columns(Relation table)
{
	TupleDesc tupdesc = RelationGetDescr(table);
	int		  columns = 0;

	for (int i = 0; i < tupdesc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(tupdesc, i);

		if (column->attisdropped)
			continue;
		columns++;
		if (column->attidentity != '\0' || column->attgenerated != '\0')
			return false;
		if ((column->atthasdef || column->attnotnull) &&
			is_left_out_of_claims(NameStr(column->attname)))
			return false;
	}
	return columns == ALL_COLUMNS;
}

/*
 * Is this CHECK constraint the layout's own?  (The "=" in its definition may be
 * somebody's operator of that name.)
 */
static bool
is_own_check(Relation table, const ConstrCheck *check)
{
	static const char own[] = "CHECK ((state = ANY (ARRAY['CLAIMED'::text, 'COMPLETED'::text])))";
	Oid	  constraint = get_relation_constraint_oid(RelationGetRelid(table), check->ccname, false);
	Datum definition = DirectFunctionCall1(pg_get_constraintdef, ObjectIdGetDatum(constraint));
	Node *condition = stringToNode(check->ccbin);

	return strncmp(TextDatumGetCString(definition), own, strlen(own)) == 0 &&
		   IsA(condition, ScalarArrayOpExpr) &&
		   ((ScalarArrayOpExpr *) condition)->opno == TextEqualOperator;
}

/*
 * Is there no CHECK constraint but the layout's own?
 */
static bool
has_plain_checks(Relation table)
{
	const TupleConstr *constraints = RelationGetDescr(table)->constr;

	for (int i = 0; i < constraints->num_check; i++)
		if (!is_own_check(table, &constraints->check[i]))
			return false;
	return true;
}

/*
 * Are all indexes ordinary ones on columns, and none unique but that of the
 * key?
 */
static bool
has_plain_indexes(Relation table)
{
	Oid		  key_index = idemkit_key_index(table);
	List	 *indexes = RelationGetIndexList(table);
	ListCell *cell;
	bool	  result = true;

	foreach(cell, indexes)
	{
		Relation	  index = index_open(lfirst_oid(cell), AccessShareLock);
		Form_pg_index form = index->rd_index;

		result = result && index->rd_rel->relam == BTREE_AM_OID && form->indisready &&
				 !form->indisexclusion && (!form->indisunique || form->indexrelid == key_index) &&
				 RelationGetIndexExpressions(index) == NIL &&
				 RelationGetIndexPredicate(index) == NIL;
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return result;
}

/*
 * Is this an ordinary table of the layout with nothing beside it that an INSERT
 * has to do or to ask: triggers, rules, policies, defaults, checks, other
 * indexes than plain ones?
 */
bool
idemkit_is_plain(Relation table)
{
	return table->rd_rel->relkind == RELKIND_RELATION &&
		   table->rd_rel->relam == HEAP_TABLE_AM_OID && !table->rd_rel->relispartition &&
		   !table->rd_rel->relhastriggers && !table->rd_rel->relhasrules &&
		   !table->rd_rel->relrowsecurity && has_plain_columns(table) && has_plain_checks(table) &&
		   has_plain_indexes(table);
}

/*
 * What keeps a table from being used, looking at its first "columns" columns.
 */
static IdemkitFault
find_fault(Relation table, int columns)
{
	char kind = table->rd_rel->relkind;

	if (kind != RELKIND_RELATION && kind != RELKIND_PARTITIONED_TABLE)
		return fault(pstrdup("It is not a table."), NULL);
	for (int i = 0; i < columns; i++)
	{
		IdemkitFault found = column_fault(table, &layout[i]);

		if (found.what != NULL)
			return found;
	}
	if (!get_collation_isdeterministic(find_column(table, "effective_key")->attcollation))
		return fault(
			pstrdup("The collation of column \"effective_key\" makes different keys equal."),
			idemkit_set_collation_command(idemkit_quoted_name(table)));
	if (idemkit_key_index(table) == InvalidOid)
		return fault(
			pstrdup("Column \"effective_key\" is not the primary key."),
			psprintf("ALTER TABLE %s ADD PRIMARY KEY (effective_key)", idemkit_quoted_name(table)));
	return fault(NULL, NULL);
}

/*
 * What keeps the verbs from working on a table.
 */
IdemkitFault
idemkit_layout_fault(Relation table)
{
	return find_fault(table, ALL_COLUMNS);
}

/*
 * What keeps a table from being adopted: columns it should have already.
 */
IdemkitFault
idemkit_adoption_fault(Relation table)
{
	return find_fault(table, FIRST_ADDED_COLUMN);
}

/*
 * What a records table lacks, also where the verbs work without it.
 */
IdemkitFault
idemkit_schema_fault(Relation table)
{
	IdemkitFault found = idemkit_layout_fault(table);
	char		*name = idemkit_quoted_name(table);

	if (found.what != NULL)
		return found;
	if (!idemkit_has_c_collation(table))
		return fault(pstrdup("The collation of column \"effective_key\" is not \"C\"."),
					 idemkit_set_collation_command(name));
	if (idemkit_expiry_index(table) == InvalidOid)
		return fault(pstrdup("There is no index on column \"lease_until\"."),
					 idemkit_create_index_command(name, RelationGetRelationName(table)));
	return fault(NULL, NULL);
}
