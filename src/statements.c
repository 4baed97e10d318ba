/*
 * statements.c
 *		Every SQL statement of the verbs, and the plans saved for them.
 *
 * Rules that all statements keep:
 *
 * - Objects and operators are named with their schema, so that no search_path
 *	 can redirect them; the table's name is quoted, everything else that
 *	 varies is a parameter.
 * - A statement works on one key, or on a set of keys, and takes the clock as
 *	 a parameter; so it can be run by the Citus worker that holds the keys.
 * - A statement that changes a stored row names the row as it was seen or the
 *	 token that owns it, and is repeated or given up when it finds none.
 *
 * Plans are prepared once per backend and table.  They are generic plans made
 * with "pinned" planner settings: a plan made while the table is small must
 * still be an index scan when it has grown, long before the statistics say so.
 */
#include "idemkit.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/resowner.h"

#define MAX_ARGUMENTS 10

typedef struct StatementText
{
	const char *text;			/* %s stands for the records table */
	int			nargs;
	Oid			argtypes[MAX_ARGUMENTS];
} StatementText;

#define EQUALS "OPERATOR(pg_catalog.=)"
#define BEFORE "OPERATOR(pg_catalog.<)"

/* The row is the claim of that token.  $1 is the key, $2 the token. */
#define OWNED_CLAIM \
	"r.effective_key " EQUALS " $1 AND r.claim_token " EQUALS " $2 AND r.state " EQUALS " 'CLAIMED'"

/* The columns idemkit_load_record() expects. */
#define RECORD_COLUMNS \
	"r.effective_key, r.state, r.fingerprint, r.fingerprint_version, r.claim_token," \
	" r.claimed_at, r.lease_until, r.completed_at, r.response_status, r.response_headers," \
	" r.response_body, r.attempts, r.schema_version"

/*
 * Removal in two steps: lock what is expired by the index on lease_until,
 * passing over rows that others hold, then delete what was locked.  Locking
 * checks the condition again on the newest version of a row.
 */
#define VACUUM(condition) \
	"WITH expired AS MATERIALIZED (SELECT r.effective_key FROM %s AS r WHERE " condition \
	" ORDER BY r.lease_until LIMIT $3 FOR UPDATE OF r SKIP LOCKED)" \
	" DELETE FROM %s AS r USING expired AS e WHERE r.effective_key " EQUALS " e.effective_key"

/* $1 is the clock, $2 the clock less the grace of lapsed claims. */
#define EXPIRED \
	"r.lease_until " BEFORE " $1 AND (r.state " EQUALS " 'COMPLETED'" \
	" OR (r.state " EQUALS " 'CLAIMED' AND r.lease_until " BEFORE " $2))"

static const StatementText statements[] = {
	/* key -> the row */
	[IDEMKIT_READ] = {
		"SELECT " RECORD_COLUMNS " FROM %s AS r WHERE r.effective_key " EQUALS " $1",
		1, {TEXTOID}
	},

	/* key, fingerprint, version, token, claimed_at, lease_until */
	[IDEMKIT_INSERT_CLAIM] = {
		"INSERT INTO %s AS r (effective_key, state, fingerprint, fingerprint_version, claim_token,"
		" claimed_at, lease_until, schema_version, awaited, attempts)"
		" VALUES ($1, 'CLAIMED', $2, $3, $4, $5, $6, 1, false, 1)"
		" ON CONFLICT (effective_key) DO NOTHING",
		6, {TEXTOID, TEXTOID, INT4OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	},

	/* as above, then attempts; token, state and lease_until as they were seen */
	[IDEMKIT_TAKE_OVER] = {
		"UPDATE %s AS r SET state = 'CLAIMED', fingerprint = $2, fingerprint_version = $3,"
		" claim_token = $4, claimed_at = $5, lease_until = $6, completed_at = NULL,"
		" response_status = NULL, response_headers = NULL, response_body = NULL,"
		" schema_version = 1, awaited = false, attempts = $7"
		" WHERE r.effective_key " EQUALS " $1 AND r.claim_token " EQUALS " $8"
		" AND r.state " EQUALS " $9 AND r.lease_until " EQUALS " $10",
		10, {TEXTOID, TEXTOID, INT4OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID,
			TEXTOID, TEXTOID, TIMESTAMPTZOID}
	},

	/* key, token, claimed_at, lease_until */
	[IDEMKIT_RESTAMP_CLAIM] = {
		"UPDATE %s AS r SET claimed_at = $3, lease_until = $4 WHERE " OWNED_CLAIM,
		4, {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	},

	/* key, token, completed_at, lease_until, status, headers, body -> awaited */
	[IDEMKIT_COMPLETE] = {
		"UPDATE %s AS r SET state = 'COMPLETED', completed_at = $3, lease_until = $4,"
		" response_status = $5, response_headers = $6, response_body = $7"
		" WHERE " OWNED_CLAIM " RETURNING r.awaited",
		7, {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, JSONBOID, BYTEAOID}
	},

	/* key, token, completed_at, lease_until */
	[IDEMKIT_RESTAMP_RESULT] = {
		"UPDATE %s AS r SET completed_at = $3, lease_until = $4"
		" WHERE r.effective_key " EQUALS " $1 AND r.claim_token " EQUALS " $2"
		" AND r.state " EQUALS " 'COMPLETED'",
		4, {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	},

	/* key, token -> awaited */
	[IDEMKIT_RELEASE] = {
		"DELETE FROM %s AS r WHERE " OWNED_CLAIM " RETURNING r.awaited",
		2, {TEXTOID, TEXTOID}
	},

	/* key, token, lease_until, a token nobody has -> awaited */
	[IDEMKIT_RELEASE_KEEPING] = {
		"UPDATE %s AS r SET lease_until = $3, claim_token = $4 WHERE " OWNED_CLAIM
		" RETURNING r.awaited",
		4, {TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID}
	},

	/* key, token, lease_until */
	[IDEMKIT_RENEW] = {
		"UPDATE %s AS r SET lease_until = $3 WHERE " OWNED_CLAIM,
		3, {TEXTOID, TEXTOID, TIMESTAMPTZOID}
	},

	/* key, token -> lease_until */
	[IDEMKIT_GUARD] = {
		"SELECT r.lease_until FROM %s AS r WHERE " OWNED_CLAIM " FOR NO KEY UPDATE OF r",
		2, {TEXTOID, TEXTOID}
	},

	/* clock, clock less grace, limit or null */
	[IDEMKIT_VACUUM] = {
		VACUUM(EXPIRED),
		3, {TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID}
	},

	/* as above, then the oldest completed_at to keep */
	[IDEMKIT_VACUUM_BY_AGE] = {
		VACUUM("(" EXPIRED " OR (r.state " EQUALS " 'COMPLETED' AND r.completed_at " BEFORE " $4))"),
		4, {TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID}
	},
};

/*
 * Planner settings under which every plan is made.  JIT would be taken for
 * worthwhile where a disabled path is the only one and so carries its penalty.
 */
static const char *const pinned_settings[][2] = {
	{"enable_seqscan", "off"},
	{"enable_bitmapscan", "off"},
	{"enable_hashjoin", "off"},
	{"enable_mergejoin", "off"},
	{"jit", "off"},
};

/*
 * Makes the generic plan of a prepared statement under the pinned settings.
 */
static void
make_pinned_plan(SPIPlanPtr plan)
{
	int			nestlevel = NewGUCNestLevel();
	CachedPlan *generic;

	for (int i = 0; i < lengthof(pinned_settings); i++)
		(void) set_config_option(pinned_settings[i][0], pinned_settings[i][1],
								 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	generic = SPI_plan_get_cached_plan(plan);
	if (generic == NULL)
		elog(ERROR, "could not make a plan for a statement on a records table");
	ReleaseCachedPlan(generic, CurrentResourceOwner);
	AtEOXact_GUC(true, nestlevel);
}

/*
 * Puts the table's name for every %s of a statement.
 */
static char *
statement_text(const StatementText *statement, const char *table_name)
{
	StringInfoData text;
	const char *rest = statement->text;
	const char *mark;

	initStringInfo(&text);
	while ((mark = strstr(rest, "%s")) != NULL)
	{
		appendBinaryStringInfo(&text, rest, mark - rest);
		appendStringInfoString(&text, table_name);
		rest = mark + 2;
	}
	appendStringInfoString(&text, rest);
	return text.data;
}

/*
 * Prepares a statement for a table and keeps it with the table.
 */
static SPIPlanPtr
prepare_statement(IdemkitTable *table, IdemkitStatement statement)
{
	const StatementText *wanted = &statements[statement];
	char	   *text = statement_text(wanted, table->name);
	SPIPlanPtr	plan = SPI_prepare_cursor(text, wanted->nargs, (Oid *) wanted->argtypes,
										  CURSOR_OPT_GENERIC_PLAN);

	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\": %s", text, SPI_result_code_string(SPI_result));
	if (SPI_keepplan(plan) != 0)
		elog(ERROR, "could not keep the plan of \"%s\"", text);
	make_pinned_plan(plan);
	table->plans[statement] = plan;
	pfree(text);
	return plan;
}

/*
 * Copies the rows of the statement that just ran into the caller's memory
 * context.  Must be called before SPI_finish().
 */
static IdemkitResult
copy_result(MemoryContext caller)
{
	IdemkitResult result = {SPI_processed, NULL, NULL};
	MemoryContext previous;

	if (SPI_tuptable == NULL || SPI_processed == 0)
		return result;
	previous = MemoryContextSwitchTo(caller);
	result.rowdesc = CreateTupleDescCopy(SPI_tuptable->tupdesc);
	result.rows = palloc_extended(result.count * sizeof(HeapTuple), MCXT_ALLOC_HUGE);
	for (uint64 i = 0; i < result.count; i++)
		result.rows[i] = heap_copytuple(SPI_tuptable->vals[i]);
	MemoryContextSwitchTo(previous);
	return result;
}

/*
 * Runs a statement with a new snapshot.  "nulls" is as for SPI_execute_plan(),
 * or NULL.  Raises what the statement raises.
 */
IdemkitResult
idemkit_execute(IdemkitTable *table, IdemkitStatement statement, const Datum *values,
				const char *nulls)
{
	MemoryContext caller = CurrentMemoryContext;
	SPIPlanPtr	plan;
	IdemkitResult result;
	int			code;

	SPI_connect();
	plan = table->plans[statement];
	if (plan == NULL)
		plan = prepare_statement(table, statement);
	else if (!SPI_plan_is_valid(plan))
		make_pinned_plan(plan);
	code = SPI_execute_plan(plan, (Datum *) values, nulls, false, 0);
	if (code < 0)
		elog(ERROR, "could not run statement %d on a records table: %s", statement,
			 SPI_result_code_string(code));
	result = copy_result(caller);
	SPI_finish();
	return result;
}

/*
 * A column, from 1, of a row that a statement returned; it is never null.
 */
Datum
idemkit_result_value(const IdemkitResult *result, uint64 row, int column)
{
	bool		isnull;

	return heap_getattr(result->rows[row], column, result->rowdesc, &isnull);
}

/*
 * Runs a data definition command.  Whatever varies in it must be quoted.
 */
void
idemkit_execute_definition(const char *command)
{
	int			code;

	SPI_connect();
	code = SPI_execute(command, false, 0);
	if (code < 0)
		elog(ERROR, "could not run \"%s\": %s", command, SPI_result_code_string(code));
	SPI_finish();
}

/*
 * The OID of the extension's own table, and the version that is installed.
 *
 * The table is found as the one the extension owns, not by its name, so that
 * both may be renamed and moved.
 */
Oid
idemkit_find_extension(char **version)
{
	static const char query[] =
		"SELECT d.objid, e.extversion FROM pg_catalog.pg_extension AS e"
		" JOIN pg_catalog.pg_depend AS d"
		" ON d.refclassid " EQUALS " 'pg_catalog.pg_extension'::pg_catalog.regclass"
		" AND d.refobjid " EQUALS " e.oid AND d.deptype " EQUALS " 'e'"
		" AND d.classid " EQUALS " 'pg_catalog.pg_class'::pg_catalog.regclass"
		" JOIN pg_catalog.pg_class AS c ON c.oid " EQUALS " d.objid"
		" AND c.relkind " EQUALS " ANY (ARRAY['r', 'p']::pg_catalog.\"char\"[])"
		" WHERE e.extname " EQUALS " 'idemkit'";
	MemoryContext caller = CurrentMemoryContext;
	IdemkitResult result;

	SPI_connect();
	if (SPI_execute(query, true, 2) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not find the table of extension idemkit");
	result = copy_result(caller);
	SPI_finish();
	*version = TextDatumGetCString(idemkit_result_value(&result, 0, 2));
	return DatumGetObjectId(idemkit_result_value(&result, 0, 1));
}
