/*
 * say.c - messages, and which exit status an error becomes
 *
 * Messages never hold a claim token or a response body: neither the library's
 * nor the server's do, and none is made here.
 */
#include "command.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

/*
 * One write for the whole message, so that those of several processes on one
 * terminal or log do not mix. A message too long is cut.
 */
void
say(const char *format, ...)
{
	char	text[4096] = "idemkit: ";
	size_t	length = strlen(text);
	size_t	room = sizeof(text) - length - 1;
	va_list arguments;
	int		n;

	va_start(arguments, format);
	/* where clang-tidy checks several files at once it loses sight of va_start() */
	/* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
	n = vsnprintf(text + length, room, format, arguments);
	va_end(arguments);
	if (n < 0)
		return;
	length += (size_t) n < room ? (size_t) n : room - 1;
	while (length > 0 && text[length - 1] == '\n')
		length--;
	text[length++] = '\n';
	/* there is nobody to tell that standard error does not work */
	if (write(STDERR_FILENO, text, length) < 0)
		return;
}

static bool
has_prefix(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/*
 * The exit status for an error the server raised. See the manual for what each
 * status promises.
 */
static int
sqlstate_status(const char *sqlstate)
{
	static const struct
	{
		const char *prefix; /* of the SQLSTATE; the first that fits counts */
		int			status;
	} table[] = {
		{"42501", EX_NOPERM},	   /* insufficient privilege */
		{"28", EX_NOPERM},		   /* invalid authorization */
		{"42883", EX_CONFIG},	   /* no such function: extension missing */
		{"42704", EX_CONFIG},	   /* no such object */
		{"42P01", EX_CONFIG},	   /* no such table */
		{"3D", EX_CONFIG},		   /* no such database */
		{"3F", EX_CONFIG},		   /* no such schema */
		{"0A000", EX_CONFIG},	   /* extension not available */
		{"58P01", EX_CONFIG},	   /* its file is missing */
		{"55000", EX_CONFIG},	   /* not a records table, versions differ */
		{"22", EX_DATAERR},		   /* an argument the server refuses */
		{"42602", EX_DATAERR},	   /* a name */
		{"54000", EX_DATAERR},	   /* response too large */
		{"IK001", EX_FALSE},	   /* the claim is lost */
		{"08", EX_UNAVAILABLE},	   /* connection */
		{"57P", EX_UNAVAILABLE},   /* shutting down, starting up */
		{"53", EX_UNAVAILABLE},	   /* out of connections, memory, disk */
		{"25006", EX_UNAVAILABLE}, /* read-only: a standby */
		{"55P03", EX_TEMPFAIL},	   /* lock_timeout */
		{"57014", EX_TEMPFAIL},	   /* statement_timeout, cancelled */
		{"40", EX_TEMPFAIL},	   /* serialization, deadlock */
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (has_prefix(sqlstate, table[i].prefix))
			return table[i].status;
	return EX_SOFTWARE;
}

static int
error_status(const IdemkitError *error)
{
	switch (idemkit_error_status(error))
	{
		case IDEMKIT_OK:
			return EX_OK;
		case IDEMKIT_ERROR_MEMORY:
		case IDEMKIT_ERROR_SYSTEM:
			return EX_OSERR;
		case IDEMKIT_ERROR_ARGUMENT:
			return EX_DATAERR;
		case IDEMKIT_ERROR_CONNECTION:
			return EX_UNAVAILABLE;
		case IDEMKIT_ERROR_SERVER:
			return sqlstate_status(idemkit_error_sqlstate(error));
		case IDEMKIT_ERROR_CLAIM_LOST:
			return EX_FALSE;
		case IDEMKIT_ERROR_PROTOCOL:
			return EX_PROTOCOL;
		default:
			return EX_SOFTWARE;
	}
}

/*
 * Fill a failure from texts that may be NULL or empty. Where the functions are
 * not found, the server's hint does not lead to the cause.
 */
static void
note(Failure *failure, int status, const char *sqlstate, const char *message, const char *detail,
	 const char *hint)
{
	bool no_extension = sqlstate != NULL && strcmp(sqlstate, "42883") == 0;

	if (no_extension)
		hint = "the extension idemkit is not in this database, or its schema is not on the "
			   "search_path: see \"idemkit init --help\"";
	failure->status = status;
	snprintf(failure->sqlstate, sizeof(failure->sqlstate), "%s", sqlstate != NULL ? sqlstate : "");
	snprintf(failure->text, sizeof(failure->text), "%s%s%s%s%s", message != NULL ? message : "",
			 detail != NULL && detail[0] != '\0' ? "\ndetail: " : "", detail != NULL ? detail : "",
			 hint != NULL && hint[0] != '\0' ? "\nhint: " : "", hint != NULL ? hint : "");
}

void
note_error(Failure *failure, const IdemkitError *error)
{
	note(failure, error_status(error), idemkit_error_sqlstate(error), idemkit_error_message(error),
		 idemkit_error_detail(error), idemkit_error_hint(error));
}

void
note_result(Failure *failure, const PGconn *conn, const PGresult *result)
{
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (conn == NULL)
		note(failure, EX_OSERR, NULL, "out of memory", NULL, NULL);
	else if (sqlstate == NULL)
		note(failure, PQstatus(conn) == CONNECTION_OK ? EX_SOFTWARE : EX_UNAVAILABLE, NULL,
			 PQerrorMessage(conn), NULL, NULL);
	else
		note(failure, sqlstate_status(sqlstate), sqlstate,
			 PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY),
			 PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL),
			 PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
}

/*
 * A message each for the lines of a text.
 */
int
say_failure(const char *what, const Failure *failure)
{
	const char *line = failure->text;

	do
	{
		int length = (int) strcspn(line, "\n");

		if (line == failure->text)
			say("%s: %.*s", what, length, line);
		else if (length > 0)
			say("%.*s", length, line);
		line += length;
		line += *line != '\0';
	} while (*line != '\0');
	return failure->status;
}

int
say_error(const char *what, const IdemkitError *error)
{
	Failure failure;

	note_error(&failure, error);
	return say_failure(what, &failure);
}

int
say_query_failure(const char *what, const PGconn *conn, const PGresult *result)
{
	Failure failure;

	note_result(&failure, conn, result);
	return say_failure(what, &failure);
}

int
finish_output(int status)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return status;
	say("cannot write to standard output");
	return EX_IOERR;
}
