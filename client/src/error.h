/*
 * error.h - filling error objects
 */
#ifndef IDEMKIT_ERROR_H
#define IDEMKIT_ERROR_H

#include "idemkit.h"

#define IDEMKIT_ERROR_TEXT_BYTES 512

struct IdemkitError
{
	IdemkitStatus status;
	char		  sqlstate[6];
	char		  message[IDEMKIT_ERROR_TEXT_BYTES];
	char		  detail[IDEMKIT_ERROR_TEXT_BYTES];
	char		  hint[IDEMKIT_ERROR_TEXT_BYTES];
};

/* All of these accept a NULL error, and those that fill it return status. */
void		  idemkit_error_clear(IdemkitError *error);
IdemkitStatus idemkit_error_set(IdemkitError *error, IdemkitStatus status, const char *message);
IdemkitStatus idemkit_error_set_memory(IdemkitError *error);
IdemkitStatus idemkit_error_set_connection(IdemkitError *error, const PGconn *conn);
IdemkitStatus
	 idemkit_error_set_result(IdemkitError *error, const PGconn *conn, const PGresult *result);
bool idemkit_error_ends_session(const PGresult *result);
void idemkit_error_copy(IdemkitError *error, const IdemkitError *from);

#endif /* IDEMKIT_ERROR_H */
