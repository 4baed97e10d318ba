/*
 * admin.c - vacuum, init, verify, stats: one statement each
 */
#include "command.h"

#include <math.h>
#include <string.h>

/* Room for a number as text. */
#define NUMBER_ROOM 64

/*
 * Print the one row that a statement returns.
 */
static void
print_query(const Options *options, PGconn *conn, const char *what, const char *statement,
			int nparams, const char *const *params, int *status)
{
	PGresult *result = query(conn, what, statement, nparams, params, status);

	if (result != NULL)
		print_row(options, result);
	PQclear(result);
}

/*
 * The same on a connection of its own; the exit status.
 */
static int
answer_by_query(const Options *options, const char *what, const char *statement, int nparams,
				const char *const *params)
{
	int		status = EX_OK;
	PGconn *conn = open_connection(options, &status);

	if (conn == NULL)
		return status;
	print_query(options, conn, what, statement, nparams, params, &status);
	PQfinish(conn);
	return status;
}

int
verb_vacuum(const Options *options)
{
	char		age[NUMBER_ROOM];
	char		grace[NUMBER_ROOM];
	char		rows[NUMBER_ROOM];
	const char *params[] = {
		isnan(options->expires_after) ? NULL : age,
		grace,
		options->max_rows < 0 ? NULL : rows,
		options->table,
	};

	snprintf(age, sizeof(age), "%.6f", options->expires_after);
	snprintf(grace, sizeof(grace), "%.6f", options->lease_grace);
	snprintf(rows, sizeof(rows), "%lld", (long long) options->max_rows);
	return answer_by_query(options, "cannot vacuum",
						   "SELECT idemkit_vacuum($1::float8, $2::float8, $3::bigint,"
						   " $4::regclass) AS removed",
						   4, params);
}

/*
 * "already exists, skipping" is what init is there for; warnings are not.
 */
static void
report_notice(void *arg, const PGresult *notice)
{
	const char *severity = PQresultErrorField(notice, PG_DIAG_SEVERITY_NONLOCALIZED);

	(void) arg;
	if (severity == NULL || strcmp(severity, "WARNING") == 0)
		say("%s", PQresultErrorField(notice, PG_DIAG_MESSAGE_PRIMARY));
}

/*
 * CREATE EXTENSION IF NOT EXISTS, which is not safe against itself: the loser of
 * two that run at once gets a unique violation, and finds the extension made when
 * it tries again.
 */
static bool
create_extension(PGconn *conn, int *status)
{
	static const char statement[] = "CREATE EXTENSION IF NOT EXISTS idemkit";
	PGresult		 *result = PQexec(conn, statement);
	const char		 *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (sqlstate != NULL && (strcmp(sqlstate, "23505") == 0 || strcmp(sqlstate, "42710") == 0))
	{
		PQclear(result);
		result = PQexec(conn, statement);
	}
	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		*status = say_query_failure("cannot create the extension", conn, result);
	PQclear(result);
	return *status == EX_OK;
}

int
verb_init(const Options *options)
{
	const char *params[] = {options->table, options->unlogged ? "true" : "false"};
	int			status = EX_OK;
	PGconn	   *conn;

	if (options->unlogged && options->table == NULL)
	{
		say("--unlogged needs --table: the extension's own table is always logged");
		return EX_USAGE;
	}
	conn = open_connection(options, &status);
	if (conn == NULL)
		return status;
	PQsetNoticeReceiver(conn, report_notice, NULL);
	if (create_extension(conn, &status))
	{
		if (options->table != NULL)
			print_query(options, conn, "cannot create the table",
						"SELECT idemkit_create_table($1::text, $2::boolean)::text AS records", 2,
						params, &status);
		else
			print_query(options, conn, "cannot find the extension's table",
						"SELECT c.oid::pg_catalog.regclass::text AS records"
						" FROM pg_catalog.pg_class c, pg_catalog.pg_extension e"
						" WHERE c.relname = 'idemkit_records'"
						" AND c.relnamespace = e.extnamespace AND e.extname = 'idemkit'",
						0, NULL, &status);
	}
	PQfinish(conn);
	return status;
}

int
verb_verify(const Options *options)
{
	const char *params[] = {options->table};
	int			status = EX_OK;
	PGconn	   *conn = open_connection(options, &status);
	PGresult   *result;

	if (conn == NULL)
		return status;
	result =
		query(conn, "verify", "SELECT idemkit_verify_schema($1::regclass)", 1, params, &status);
	if (options->json && (result != NULL || status == EX_CONFIG))
		print_answer(options, "complete", result != NULL);
	PQclear(result);
	PQfinish(conn);
	return status;
}

int
verb_stats(const Options *options)
{
	const char *params[] = {options->table};

	return answer_by_query(options, "cannot read the statistics",
						   "SELECT * FROM idemkit_stats($1::regclass)", 1, params);
}
