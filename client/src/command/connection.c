/*
 * connection.c - connecting, and statements beside the library's
 */
#include "command.h"

#include <stdlib.h>
#include <string.h>

/* Seconds to connect to one host where nobody says otherwise. */
#define CONNECT_TIMEOUT "10"


/*
 * Append " keyword='value'" at *to and return the byte after; with to NULL only
 * count. value is quoted as connection strings want it.
 */
static size_t
add_setting(char *to, const char *keyword, const char *value)
{
	size_t n = 0;

#define PUT(c) (to != NULL ? (void) (to[n] = (c)) : (void) 0, n++)
	PUT(' ');
	for (const char *c = keyword; *c != '\0'; c++)
		PUT(*c);
	PUT('=');
	PUT('\'');
	for (const char *c = value; *c != '\0'; c++)
	{
		if (*c == '\'' || *c == '\\')
			PUT('\\');
		PUT(*c);
	}
	PUT('\'');
#undef PUT
	return n;
}

/*
 * One of several settings of a conninfo, or NULL where it is not given.
 */
static const char *
setting(const PQconninfoOption *settings, const char *keyword)
{
	for (const PQconninfoOption *s = settings; s != NULL && s->keyword != NULL; s++)
		if (strcmp(s->keyword, keyword) == 0)
			return s->val;
	return NULL;
}

/*
 * Write all settings given, then the defaults, at to, or count.
 */
static size_t
write_conninfo(char *to, const PQconninfoOption *settings, const char *dbname)
{
	size_t n = 0;

#define ADD(keyword, value) n += add_setting(to != NULL ? to + n : NULL, keyword, value)
	for (const PQconninfoOption *s = settings; s != NULL && s->keyword != NULL; s++)
		if (s->val != NULL)
			ADD(s->keyword, s->val);
	if (dbname != NULL)
		ADD("dbname", dbname);
	ADD("fallback_application_name", "idemkit");
	ADD("client_encoding", "UTF8");
	/* a service file may have one: what is said here would override it */
	if (setting(settings, "connect_timeout") == NULL && getenv("PGCONNECT_TIMEOUT") == NULL &&
		setting(settings, "service") == NULL && getenv("PGSERVICE") == NULL)
		ADD("connect_timeout", CONNECT_TIMEOUT);
#undef ADD
	return n;
}

/*
 * Everybody on the machine can read a command line: refuse secrets there.
 */
static int
refuse_password(const PQconninfoOption *settings)
{
	if (setting(settings, "password") == NULL && setting(settings, "sslpassword") == NULL)
		return EX_OK;
	say("--dbname: a password on a command line can be read by everybody on this machine");
	say("hint: use a password file (~/.pgpass), a service file, or the environment's PGPASSWORD");
	return EX_USAGE;
}

/*
 * As libpq tells them apart: a URI, a list of settings, else a database's name.
 */
static bool
is_conninfo(const char *text)
{
	return strchr(text, '=') != NULL || strncmp(text, "postgresql://", 13) == 0 ||
		   strncmp(text, "postgres://", 11) == 0;
}

int
make_conninfo(const char *dbname, char **conninfo)
{
	PQconninfoOption *settings = NULL;
	size_t			  length;

	if (dbname != NULL && is_conninfo(dbname))
	{
		char *message = NULL;

		settings = PQconninfoParse(dbname, &message);
		if (settings == NULL)
		{
			say("--dbname: %s", message != NULL ? message : "out of memory");
			PQfreemem(message);
			return EX_USAGE;
		}
		if (refuse_password(settings) != EX_OK)
		{
			PQconninfoFree(settings);
			return EX_USAGE;
		}
		dbname = NULL;
	}
	length = write_conninfo(NULL, settings, dbname);
	*conninfo = malloc(length + 1);
	if (*conninfo != NULL)
	{
		write_conninfo(*conninfo, settings, dbname);
		(*conninfo)[length] = '\0';
	}
	PQconninfoFree(settings);
	if (*conninfo != NULL)
		return EX_OK;
	say("out of memory");
	return EX_OSERR;
}

PGconn *
open_connection(const Options *options, int *status)
{
	PGconn *conn = PQconnectdb(options->conninfo);

	if (PQstatus(conn) == CONNECTION_OK)
		return conn;
	*status = say_query_failure("cannot connect", conn, NULL);
	PQfinish(conn);
	return NULL;
}

bool
connection_lost(const PGconn *conn, const PGresult *result)
{
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

	if (PQstatus(conn) != CONNECTION_OK)
		return true;
	return severity != NULL && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0);
}

PGresult *
query(PGconn *conn, const char *what, const char *statement, int nparams, const char *const *params,
	  int *status)
{
	PGresult *result = PQexecParams(conn, statement, nparams, NULL, params, NULL, NULL, 0);

	if (PQresultStatus(result) == PGRES_TUPLES_OK || PQresultStatus(result) == PGRES_COMMAND_OK)
		return result;
	*status = say_query_failure(what, conn, result);
	PQclear(result);
	return NULL;
}
