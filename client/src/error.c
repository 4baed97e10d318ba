/*
 * error.c - error objects
 *
 * An error object has room for its texts, so that recording an error needs no
 * memory that might be lacking just then.
 */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "error.h"

IdemkitError *
idemkit_error_create(void)
{
	IdemkitError *error = idemkit_mem_alloc(sizeof(*error));

	if (error != NULL)
		idemkit_error_clear(error);
	return error;
}

void
idemkit_error_free(IdemkitError *error)
{
	idemkit_mem_free(error);
}

IdemkitStatus
idemkit_error_status(const IdemkitError *error)
{
	return error != NULL ? error->status : IDEMKIT_OK;
}

const char *
idemkit_error_sqlstate(const IdemkitError *error)
{
	return error != NULL ? error->sqlstate : "";
}

const char *
idemkit_error_message(const IdemkitError *error)
{
	return error != NULL ? error->message : "";
}

const char *
idemkit_error_detail(const IdemkitError *error)
{
	return error != NULL ? error->detail : "";
}

const char *
idemkit_error_hint(const IdemkitError *error)
{
	return error != NULL ? error->hint : "";
}

void
idemkit_error_clear(IdemkitError *error)
{
	if (error == NULL)
		return;
	error->status = IDEMKIT_OK;
	error->sqlstate[0] = '\0';
	error->message[0] = '\0';
	error->detail[0] = '\0';
	error->hint[0] = '\0';
}

/*
 * Store a text, which may be NULL: without newlines at its end, newlines within
 * made spaces, and cut before a character that does not fit whole.
 */
static void
store_text(char *room, const char *text)
{
	size_t length = text != NULL ? strlen(text) : 0;

	if (length >= IDEMKIT_ERROR_TEXT_BYTES)
	{
		length = IDEMKIT_ERROR_TEXT_BYTES - 1;
		/* text[length] is left out; it must begin a character */
		while (length > 0 && ((unsigned char) text[length] & 0xC0) == 0x80)
			length--;
	}
	while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' '))
		length--;
	for (size_t i = 0; i < length; i++)
		room[i] = text[i] == '\n' ? ' ' : text[i];
	room[length] = '\0';
}

IdemkitStatus
idemkit_error_set(IdemkitError *error, IdemkitStatus status, const char *message)
{
	if (error != NULL)
	{
		idemkit_error_clear(error);
		error->status = status;
		store_text(error->message, message);
	}
	return status;
}

IdemkitStatus
idemkit_error_set_memory(IdemkitError *error)
{
	return idemkit_error_set(error, IDEMKIT_ERROR_MEMORY, "out of memory");
}

/*
 * The connection failed; libpq has the message.
 */
IdemkitStatus
idemkit_error_set_connection(IdemkitError *error, const PGconn *conn)
{
	const char *message = PQerrorMessage(conn);

	return idemkit_error_set(error, IDEMKIT_ERROR_CONNECTION,
							 message[0] != '\0' ? message : "connection to server was lost");
}

/*
 * Has the server ended the session with this error? Before version 14 libpq takes
 * such a connection for a good one until it reads the end that comes after it.
 */
bool
idemkit_error_ends_session(const PGresult *result)
{
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

	return severity != NULL && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0);
}

/*
 * The statement gave no rows: result is an error of the server, an error libpq
 * made up for a broken connection, or NULL.
 */
IdemkitStatus
idemkit_error_set_result(IdemkitError *error, const PGconn *conn, const PGresult *result)
{
	const char	 *sqlstate = result != NULL ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
	IdemkitStatus status = IDEMKIT_ERROR_SERVER;

	if (sqlstate == NULL)
	{
		if (PQstatus(conn) == CONNECTION_BAD)
			return idemkit_error_set_connection(error, conn);
		if (result == NULL || PQresultStatus(result) == PGRES_FATAL_ERROR)
		{
			/* libpq's own errors on a good connection: nearly always memory */
			if (strstr(PQerrorMessage(conn), "memory") != NULL || result == NULL)
				return idemkit_error_set_memory(error);
			return idemkit_error_set_connection(error, conn);
		}
		return idemkit_error_set(error, IDEMKIT_ERROR_PROTOCOL, "unexpected answer from server");
	}

	if (strcmp(sqlstate, "IK001") == 0)
		status = IDEMKIT_ERROR_CLAIM_LOST;
	else if (idemkit_error_ends_session(result))
		status = IDEMKIT_ERROR_CONNECTION;
	if (error != NULL)
	{
		idemkit_error_set(error, status, PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
		(void) snprintf(error->sqlstate, sizeof(error->sqlstate), "%s", sqlstate);
		store_text(error->detail, PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL));
		store_text(error->hint, PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
	}
	return status;
}

void
idemkit_error_copy(IdemkitError *error, const IdemkitError *from)
{
	if (error != NULL)
		*error = *from;
}
