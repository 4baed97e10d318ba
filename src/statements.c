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
 * - Sets of keys are passed in key order and visited in it: with the pinned
 *	 settings below the only way to read the table by key is its index, so
 *	 rows are locked in that order and two batches cannot deadlock.
 *
 * Plans are prepared once per backend and table.  They are generic plans made
 * with "pinned" planner settings: a plan made while the table is small must
 * still be an index scan when it has grown, long before the statistics say so.
 */
#include "idemkit.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/resowner.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "compat.h"

#define MAX_ARGUMENTS  10
#define SCHEMA_VERSION CppAsString2(IDEMKIT_SCHEMA_VERSION)

typedef struct StatementText
{
	const char *text; /* %s stands for the records table, %t for the conflict target */
	int			nargs;
	Oid			argtypes[MAX_ARGUMENTS];
} StatementText;

#define EQUALS	   "OPERATOR(pg_catalog.=)"
#define BEFORE	   "OPERATOR(pg_catalog.<)"
#define NOT_BEFORE "OPERATOR(pg_catalog.>=)"

/*
 * Conditions beside the key.  They are function calls and not operators, so
 * that the index on lease_until cannot be taken for a way to find the row.
 */
#define LEASE_AS_SEEN(value)  "pg_catalog.timestamptz_eq(r.lease_until, " value ")"
#define LEASE_NOT_OVER(clock) "pg_catalog.timestamptz_ge(r.lease_until, " clock ")"

/* The row is the claim of that token.  $1 is the key, $2 the token. */
#define OWNED_CLAIM \
	"r.effective_key " EQUALS " $1 AND r.claim_token " EQUALS " $2 AND r.state " EQUALS " 'CLAIMED'"

/* The same for a set of keys and tokens. */
#define OWNED_CLAIM_OF(set)                            \
	"r.effective_key " EQUALS " " set ".effective_key" \
	" AND r.claim_token " EQUALS " " set ".claim_token AND r.state " EQUALS " 'CLAIMED'"

/* $1 is the clock. */
#define CLAIMED	  "r.state " EQUALS " 'CLAIMED'"
#define COMPLETED "r.state " EQUALS " 'COMPLETED'"
#define OVER	  "r.lease_until " BEFORE " $1"

/* The columns idemkit_load_record() expects. */
#define RECORD_COLUMNS                                                                     \
	"r.effective_key, r.state, r.fingerprint, r.fingerprint_version, r.claim_token,"       \
	" r.claimed_at, r.lease_until, r.completed_at, r.response_status, r.response_headers," \
	" r.response_body, r.attempts, r.schema_version"

/* What a claim writes into a new row, and into one that it takes over. */
#define NEW_CLAIM_COLUMNS                                                               \
	"(effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at," \
	" lease_until, schema_version, awaited, attempts)"
#define NEW_CLAIM(key, fingerprint, version, token, claimed_at, lease_until)                 \
	key ", 'CLAIMED', " fingerprint ", " version ", " token ", " claimed_at ", " lease_until \
		", " SCHEMA_VERSION ", false, 1"
#define TAKEN_OVER(fingerprint, version, token, claimed_at, lease_until, attempts)       \
	"state = 'CLAIMED', fingerprint = " fingerprint ", fingerprint_version = " version   \
	", claim_token = " token ", claimed_at = " claimed_at ", lease_until = " lease_until \
	", completed_at = NULL, response_status = NULL, response_headers = NULL,"            \
	" response_body = NULL, schema_version = " SCHEMA_VERSION                            \
	", awaited = false, attempts = " attempts

/* What a completion writes; $3 is the clock, $4 the end of the retention. */
#define COMPLETED_WITH(status, headers, body)                                             \
	"state = 'COMPLETED', completed_at = $3, lease_until = $4, response_status = " status \
	", response_headers = " headers ", response_body = " body

/*
 * Removal in two steps: lock what is expired by the index on lease_until,
 * passing over rows that others hold, then delete what was locked.  Locking
 * checks the condition again on the newest version of a row.
 */
#define VACUUM(condition)                                                                \
	"WITH expired AS MATERIALIZED (SELECT r.effective_key FROM %s AS r WHERE " condition \
	" AND r.lease_until " NOT_BEFORE " $4"                                               \
	" ORDER BY r.lease_until LIMIT $3 FOR UPDATE OF r SKIP LOCKED),"                     \
	" removed AS (DELETE FROM %s AS r USING expired AS e"                                \
	" WHERE r.effective_key " EQUALS " e.effective_key RETURNING r.lease_until)"         \
	" SELECT pg_catalog.count(*),"                                                       \
	" COALESCE(pg_catalog.max(d.lease_until), '-infinity') FROM removed AS d"

/* $1 is the clock, $2 the clock less the grace of lapsed claims. */
#define EXPIRED                                                       \
	"r.lease_until " BEFORE " $1 AND (r.state " EQUALS " 'COMPLETED'" \
	" OR (r.state " EQUALS " 'CLAIMED' AND r.lease_until " BEFORE " $2))"

/* One statement reads as one block. */
/* clang-format off */
static const StatementText statements[] = {
	/* key -> the row */
	[IDEMKIT_READ] = {"SELECT " RECORD_COLUMNS " FROM %s AS r WHERE r.effective_key " EQUALS " $1",
					  1,
					  {TEXTOID}},

	/*
	 * key, fingerprint, version, token, claimed_at, lease_until -> key.
	 *
	 * RETURNING makes row-level security refuse a row that would not show.
	 */
	[IDEMKIT_INSERT_CLAIM] =
		{"INSERT INTO %s AS r " NEW_CLAIM_COLUMNS
		 " VALUES (" NEW_CLAIM("$1", "$2", "$3", "$4", "$5", "$6") ")"
		 " ON CONFLICT %tDO NOTHING RETURNING r.effective_key",
		 6,
		 {TEXTOID, TEXTOID, INT4OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}},

	/* as above, then attempts; token, state and lease_until as they were seen */
	[IDEMKIT_TAKE_OVER] =
		{"UPDATE %s AS r SET " TAKEN_OVER("$2", "$3", "$4", "$5", "$6", "$7")
		 " WHERE r.effective_key " EQUALS " $1 AND r.claim_token " EQUALS " $8"
		 " AND r.state " EQUALS " $9 AND " LEASE_AS_SEEN("$10"),
		 10,
		 {TEXTOID, TEXTOID, INT4OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, TEXTOID,
		  TEXTOID, TIMESTAMPTZOID}},

	/* key, token, claimed_at, lease_until */
	[IDEMKIT_RESTAMP_CLAIM] =
		{"UPDATE %s AS r SET claimed_at = $3, lease_until = $4 WHERE " OWNED_CLAIM,
		 4,
		 {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}},

	/* key, token, completed_at, lease_until, status, headers, body -> awaited */
	[IDEMKIT_COMPLETE] =
		{"UPDATE %s AS r SET " COMPLETED_WITH("$5", "$6", "$7")
		 " WHERE " OWNED_CLAIM " RETURNING r.awaited",
		 7,
		 {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, JSONBOID, BYTEAOID}},

	/* key, token, completed_at, lease_until */
	[IDEMKIT_RESTAMP_RESULT] = {"UPDATE %s AS r SET completed_at = $3, lease_until = $4"
								" WHERE r.effective_key " EQUALS " $1 AND r.claim_token " EQUALS
								" $2"
								" AND r.state " EQUALS " 'COMPLETED'",
								4,
								{TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}},

	/* key, token -> awaited */
	[IDEMKIT_RELEASE] = {"DELETE FROM %s AS r WHERE " OWNED_CLAIM " RETURNING r.awaited",
						 2,
						 {TEXTOID, TEXTOID}},

	/* key, token, lease_until, a token nobody has -> awaited */
	[IDEMKIT_RELEASE_KEEPING] =
		{"UPDATE %s AS r SET lease_until = $3, claim_token = $4 WHERE " OWNED_CLAIM
		 " RETURNING r.awaited",
		 4,
		 {TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID}},

	/* key, token, lease_until */
	[IDEMKIT_RENEW] = {"UPDATE %s AS r SET lease_until = $3 WHERE " OWNED_CLAIM,
					   3,
					   {TEXTOID, TEXTOID, TIMESTAMPTZOID}},

	/* key, token -> lease_until */
	[IDEMKIT_GUARD] = {"SELECT r.lease_until FROM %s AS r WHERE " OWNED_CLAIM
					   " FOR NO KEY UPDATE OF r",
					   2,
					   {TEXTOID, TEXTOID}},

	/*
	 * clock, clock less grace, limit or null, lease_until to begin with ->
	 * number of rows, latest lease_until among them
	 */
	[IDEMKIT_VACUUM] = {VACUUM(EXPIRED),
						4,
						{TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID}},

	/* as above, then the oldest completed_at to keep */
	[IDEMKIT_VACUUM_BY_AGE] = {VACUUM("(" EXPIRED " OR (r.state " EQUALS
									  " 'COMPLETED' AND r.completed_at " BEFORE " $5))"),
							   5,
							   {TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID,
								TIMESTAMPTZOID}},

	/* keys in order, clock */
	[IDEMKIT_MARK_AWAITED] =
		{"UPDATE %s AS r SET awaited = true FROM pg_catalog.unnest($1) AS k(effective_key)"
		 " WHERE r.effective_key " EQUALS " k.effective_key AND r.state " EQUALS " 'CLAIMED'"
		 " AND " LEASE_NOT_OVER("$2") " AND NOT r.awaited",
		 2,
		 {TEXTARRAYOID, TIMESTAMPTZOID}},

	/* keys in order -> the rows */
	[IDEMKIT_READ_MANY] = {"SELECT " RECORD_COLUMNS
						   " FROM pg_catalog.unnest($1) AS k(effective_key)"
						   " JOIN %s AS r ON r.effective_key " EQUALS " k.effective_key",
						   1,
						   {TEXTARRAYOID}},

	/* keys in order, fingerprints, version, tokens, claimed_at, lease_until -> keys */
	[IDEMKIT_INSERT_CLAIMS] =
		{"INSERT INTO %s AS r " NEW_CLAIM_COLUMNS
		 " SELECT " NEW_CLAIM("k.effective_key", "k.fingerprint", "$3", "k.claim_token", "$5", "$6")
		 " FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($4))"
		 " AS k(effective_key, fingerprint, claim_token)"
		 " ON CONFLICT %tDO NOTHING RETURNING r.effective_key",
		 6,
		 {TEXTARRAYOID, TEXTARRAYOID, INT4OID, TEXTARRAYOID, TIMESTAMPTZOID, TIMESTAMPTZOID}},

	/*
	 * keys in order, fingerprints, version, tokens, claimed_at, lease_until,
	 * attempts; tokens, states and lease_until as they were seen -> keys
	 */
	[IDEMKIT_TAKE_OVER_MANY] =
		{"UPDATE %s AS r SET "
		 TAKEN_OVER("k.fingerprint", "$3", "k.claim_token", "k.claimed_at", "$6", "k.attempts")
		 " FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($4),"
		 " pg_catalog.unnest($5), pg_catalog.unnest($7), pg_catalog.unnest($8),"
		 " pg_catalog.unnest($9), pg_catalog.unnest($10))"
		 " AS k(effective_key, fingerprint, claim_token, claimed_at, attempts, seen_token,"
		 " seen_state, seen_lease_until)"
		 " WHERE r.effective_key " EQUALS " k.effective_key AND r.claim_token " EQUALS
		 " k.seen_token"
		 " AND r.state " EQUALS
		 " k.seen_state AND " LEASE_AS_SEEN("k.seen_lease_until") " RETURNING r.effective_key",
		 10,
		 {TEXTARRAYOID, TEXTARRAYOID, INT4OID, TEXTARRAYOID, TIMESTAMPTZARRAYOID, TIMESTAMPTZOID,
		  INT4ARRAYOID, TEXTARRAYOID, TEXTARRAYOID, TIMESTAMPTZARRAYOID}},

	/* keys in order, tokens, claimed_at, lease_until */
	[IDEMKIT_RESTAMP_CLAIMS] =
		{"UPDATE %s AS r SET claimed_at = k.claimed_at, lease_until = $4"
		 " FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3))"
		 " AS k(effective_key, claim_token, claimed_at)"
		 " WHERE " OWNED_CLAIM_OF("k"),
		 4,
		 {TEXTARRAYOID, TEXTARRAYOID, TIMESTAMPTZARRAYOID, TIMESTAMPTZOID}},

	/*
	 * keys in order, tokens, completed_at, lease_until, statuses, headers,
	 * bodies, positions -> position, awaited
	 */
	[IDEMKIT_COMPLETE_MANY] =
		{"UPDATE %s AS r SET "
		 COMPLETED_WITH("k.response_status", "k.response_headers", "k.response_body")
		 " FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($5),"
		 " pg_catalog.unnest($6), pg_catalog.unnest($7), pg_catalog.unnest($8))"
		 " AS k(effective_key, claim_token, response_status, response_headers, response_body,"
		 " \"position\")"
		 " WHERE " OWNED_CLAIM_OF("k") " RETURNING k.\"position\", r.awaited",
		 8,
		 {TEXTARRAYOID, TEXTARRAYOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4ARRAYOID, JSONBARRAYOID,
		  BYTEAARRAYOID, INT4ARRAYOID}},

	/* keys in order, tokens, completed_at, lease_until */
	[IDEMKIT_RESTAMP_RESULTS] = {"UPDATE %s AS r SET completed_at = $3, lease_until = $4"
								 " FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2))"
								 " AS k(effective_key, claim_token)"
								 " WHERE r.effective_key " EQUALS " k.effective_key"
								 " AND r.claim_token " EQUALS " k.claim_token AND r.state " EQUALS
								 " 'COMPLETED'",
								 4,
								 {TEXTARRAYOID, TEXTARRAYOID, TIMESTAMPTZOID, TIMESTAMPTZOID}},

	/* clock, percentage of the pages to read, table -> columns of idemkit_stats */
	[IDEMKIT_COUNT_RECORDS] =
		{"SELECT pg_catalog.count(*) FILTER (WHERE " CLAIMED " AND NOT " OVER "),"
		 " pg_catalog.count(*) FILTER (WHERE " CLAIMED " AND " OVER "),"
		 " pg_catalog.count(*) FILTER (WHERE " COMPLETED " AND NOT " OVER "),"
		 " pg_catalog.count(*) FILTER (WHERE " COMPLETED " AND " OVER "),"
		 " pg_catalog.min(r.claimed_at) FILTER (WHERE " CLAIMED " AND NOT " OVER "),"
		 " pg_catalog.min(r.lease_until) FILTER (WHERE " CLAIMED " AND " OVER "),"
		 " pg_catalog.min(r.completed_at) FILTER (WHERE " COMPLETED " AND NOT " OVER "),"
		 " pg_catalog.min(r.lease_until) FILTER (WHERE " COMPLETED " AND " OVER "),"
		 " pg_catalog.max(r.attempts),"
		 " pg_catalog.pg_relation_size($3), pg_catalog.pg_indexes_size($3),"
		 " COALESCE((SELECT pg_catalog.pg_total_relation_size(c.reltoastrelid)"
		 " FROM pg_catalog.pg_class AS c WHERE c.oid " EQUALS " $3"
		 " AND c.reltoastrelid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid), 0),"
		 " pg_catalog.pg_stat_get_dead_tuples($3), pg_catalog.pg_notification_queue_usage()"
		 " FROM %s AS r TABLESAMPLE pg_catalog.system($2)",
		 3,
		 {TIMESTAMPTZOID, FLOAT4OID, REGCLASSOID}},

	/*
	 * table, call up to its last argument, which is the shard -> whether it
	 * succeeded, result or message
	 */
	[IDEMKIT_CALL_ON_SHARDS] =
		{"SELECT s.success, s.result FROM pg_catalog.run_command_on_shards($1, pg_catalog.concat("
		 "'SELECT ', pg_catalog.replace($2, '%', '%%'), '%L)')) AS s",
		 2,
		 {REGCLASSOID, TEXTOID}},
};
/* clang-format on */

/*
 * Planner settings under which every plan is made.  JIT would be taken for
 * worthwhile where a disabled path is the only one and so carries its penalty.
 */
static const char *const pinned_settings[][2] = {
	{"enable_indexscan", "on"},
	{"enable_nestloop", "on"},
	{"enable_seqscan", "off"},
	{"enable_bitmapscan", "off"},
	{"enable_hashjoin", "off"},
	{"enable_mergejoin", "off"},
	{"jit", "off"},
};

/*
 * Sets the pinned settings until AtEOXact_GUC() is given what this returns.
 */
static int
pin_settings(void)
{
	int nestlevel = NewGUCNestLevel();

	for (int i = 0; i < lengthof(pinned_settings); i++)
		(void) set_config_option(pinned_settings[i][0], pinned_settings[i][1], PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return nestlevel;
}

/*
 * Makes the generic plan of a prepared statement under the pinned settings.
 */
static void
make_pinned_plan(SPIPlanPtr plan)
{
	int			nestlevel = pin_settings();
	CachedPlan *generic;

	generic = SPI_plan_get_cached_plan(plan);
	if (generic == NULL)
		elog(ERROR, "could not make a plan for a statement on a records table");
	ReleaseCachedPlan(generic, CurrentResourceOwner);
	AtEOXact_GUC(true, nestlevel);
}

/*
 * Locks every table that a plan touches, partitions and children too, as its
 * execution would; so what has changed them is heard of now, and nothing can
 * change them between needs_planning() and the execution.
 */
static void
lock_tables(const CachedPlan *plan)
{
	ListCell *statement;

	foreach(statement, plan->stmt_list)
	{
		ListCell *cell;

		foreach(cell, lfirst_node(PlannedStmt, statement)->rtable)
		{
			const RangeTblEntry *entry = lfirst_node(RangeTblEntry, cell);

			if (entry->rtekind == RTE_RELATION)
				LockRelationOid(entry->relid, entry->rellockmode);
		}
	}
}

/*
 * Will the server make the plan anew at its next execution?  Besides a change
 * of the catalogue, another search_path makes it, and where row-level security
 * matters another role.  A change of a partition or child invalidates the plan
 * alone, not the statement.  The answer holds until the transaction ends, since
 * the tables are locked.
 */
static bool
needs_planning(SPIPlanPtr plan)
{
	CachedPlanSource *source = linitial(SPI_plan_get_plan_sources(plan));
	const CachedPlan *generic = source->gplan;

	if (generic != NULL)
		lock_tables(generic);
	if (!SPI_plan_is_valid(plan) || !SearchPathMatchesCurrentEnvironment(source->search_path))
		return true;
	if (generic == NULL || !generic->is_valid ||
		(TransactionIdIsValid(generic->saved_xmin) &&
		 !TransactionIdEquals(generic->saved_xmin, TransactionXmin)) ||
		(generic->dependsOnRole && generic->planRoleId != GetUserId()))
		return true;
	return source->dependsOnRLS &&
		   (source->rewriteRoleId != GetUserId() || source->rewriteRowSecurity != row_security);
}

/*
 * Is a plan of this statement good for one execution only?  Citus finds the
 * shards of a set of keys by their values, so it can plan for them no sooner.
 */
static bool
is_planned_anew(const IdemkitTable *table, IdemkitStatement statement)
{
	return table->placement != IDEMKIT_HERE && statement >= IDEMKIT_MARK_AWAITED &&
		   statement <= IDEMKIT_RESTAMP_RESULTS;
}

/*
 * What a claim names as the reason to insert nothing: any conflict, where keys
 * alone are unique.  The key, where a conflict over something else is to be
 * raised; but then the server overlooks the second index that REINDEX
 * CONCURRENTLY makes, and which of the two it names is decided too early.
 */
static const char *
conflict_target(const IdemkitTable *table)
{
	return table->more_unique ? "(effective_key) " : "";
}

/*
 * Puts a value for every mark in a text.
 */
static char *
replace_marks(const char *rest, const char *mark, const char *value)
{
	StringInfoData text;
	const char	  *found;

	initStringInfo(&text);
	while ((found = strstr(rest, mark)) != NULL)
	{
		appendBinaryStringInfo(&text, rest, found - rest);
		appendStringInfoString(&text, value);
		rest = found + strlen(mark);
	}
	appendStringInfoString(&text, rest);
	return text.data;
}

/*
 * The text of a statement for a table, whose name comes last since it may hold
 * anything.
 */
static char *
statement_text(const StatementText *statement, const IdemkitTable *table)
{
	char *text = replace_marks(statement->text, "%t", conflict_target(table));

	return replace_marks(text, "%s", table->name);
}

/*
 * Prepares a statement for a table and keeps it with the table.
 */
static SPIPlanPtr
prepare_statement(IdemkitTable *table, IdemkitStatement statement)
{
	const StatementText *wanted = &statements[statement];
	char				*text = statement_text(wanted, table);
	bool				 anew = is_planned_anew(table, statement);
	SPIPlanPtr			 plan;

	/*
	 * Of an INSERT of a set Citus counts the rows it was given and not those
	 * it made, which SPI does not accept of one that returns rows.
	 */
	if (anew && statement == IDEMKIT_INSERT_CLAIMS)
		text = psprintf("WITH new AS (%s) SELECT n.effective_key FROM new AS n", text);
	plan = SPI_prepare_cursor(text, wanted->nargs, (Oid *) wanted->argtypes,
							  anew ? CURSOR_OPT_CUSTOM_PLAN : CURSOR_OPT_GENERIC_PLAN);
	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\": %s", text, SPI_result_code_string(SPI_result));
	if (SPI_keepplan(plan) != 0)
		elog(ERROR, "could not keep the plan of \"%s\"", text);
	if (!anew)
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
 * Runs a saved plan, also for a session that has asked for another kind.  For
 * a distributed table Citus plans for the shard when the statement first gets
 * to it, and keeps that plan too: so the settings are pinned here again.
 */
static void
execute_plan(const IdemkitTable *table, SPIPlanPtr plan, const Datum *values, const char *nulls)
{
	bool pinned = table->placement != IDEMKIT_HERE;
	bool forced = plan_cache_mode != PLAN_CACHE_MODE_AUTO;
	int	 nestlevel = pinned ? pin_settings() : forced ? NewGUCNestLevel() : 0;
	int	 code;

	if (forced)
		(void) set_config_option("plan_cache_mode", "auto", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	code = SPI_execute_plan(plan, (Datum *) values, nulls, false, 0);
	if (code < 0)
		elog(ERROR, "could not run a statement on a records table: %s",
			 SPI_result_code_string(code));
	if (nestlevel > 0)
		AtEOXact_GUC(true, nestlevel);
}

/*
 * Error context callback: the server quotes the row that a constraint refuses,
 * as the detail of its error.  A claim token or a response is nobody's to read
 * in a log, so the detail is replaced.
 */
static void
conceal_row(void *arg)
{
	switch (geterrcode())
	{
		case ERRCODE_NOT_NULL_VIOLATION:
		case ERRCODE_CHECK_VIOLATION:
		case ERRCODE_WITH_CHECK_OPTION_VIOLATION:
			errdetail("The row is not shown, since it may hold a claim token or a response.");
			break;
		default:
			break;
	}
}

/*
 * Runs a statement with a new snapshot.  "nulls" is as for SPI_execute_plan(),
 * or NULL.  Raises what the statement raises.
 */
IdemkitResult
idemkit_execute(IdemkitTable *table, IdemkitStatement statement, const Datum *values,
				const char *nulls)
{
	MemoryContext		 caller = CurrentMemoryContext;
	ErrorContextCallback conceal = {.previous = error_context_stack, .callback = conceal_row};
	SPIPlanPtr			 plan;
	IdemkitResult		 result;

	/* A statement before this one may have run code that changed the table. */
	if (!table->checked)
		table = idemkit_check_table(table->relid);

	SPI_connect();
	plan = table->plans[statement];
	if (plan == NULL)
		plan = prepare_statement(table, statement);
	else if (!is_planned_anew(table, statement) && needs_planning(plan))
		make_pinned_plan(plan);
	error_context_stack = &conceal;
	execute_plan(table, plan, values, nulls);
	error_context_stack = conceal.previous;
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
	bool isnull;

	if (row >= result->count || result->rows == NULL)
		elog(ERROR, "a statement did not return the row it must");
	return heap_getattr(result->rows[row], column, result->rowdesc, &isnull);
}

/*
 * Runs a data definition command.  Whatever varies in it must be quoted.
 */
void
idemkit_execute_definition(const char *command)
{
	int code;

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
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_NO_TABLE),
						errmsg("extension idemkit does not own exactly one table"),
						errhint("Its own records table belongs to it: put it back with ALTER "
								"EXTENSION idemkit ADD TABLE, or pass another as \"records\".")));
	result = copy_result(caller);
	SPI_finish();
	*version = TextDatumGetCString(idemkit_result_value(&result, 0, 2));
	return DatumGetObjectId(idemkit_result_value(&result, 0, 1));
}

/*
 * Starts a procedure that commits batch by batch.  Raises 25001 if the call
 * does not allow that.
 */
void
idemkit_begin_batches(FunctionCallInfo fcinfo)
{
	CallContext *context = (CallContext *) fcinfo->context;

	if (context == NULL || !IsA(context, CallContext) || context->atomic)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_IN_TRANSACTION),
						errmsg("idemkit_sweep cannot run inside a transaction block"),
						errhint("It commits after every batch: CALL it on its own.  "
								"idemkit_vacuum() removes records inside a transaction.")));
	SPI_connect_ext(SPI_OPT_NONATOMIC);
}

/*
 * Commits what was done so far and starts another transaction.
 */
void
idemkit_commit_batch(void)
{
	SPI_commit();
	SPI_start_transaction();
}

/*
 * Ends what idemkit_begin_batches() started.
 */
void
idemkit_end_batches(void)
{
	SPI_finish();
}
