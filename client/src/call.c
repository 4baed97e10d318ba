/*
 * call.c - the plain calls: one statement each on the caller's connection
 *
 * Every call is made of the same three steps: list the parameters in the order
 * of the SQL function, run the statement with results in binary format, read the
 * one row. Types are given with the parameters, so that the function meant is
 * the one found whatever else has its name.
 */
#include <limits.h>
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "record.h"
#include "wire.h"

struct IdemkitClaim
{
	IdemkitVerdict verdict;
	bool		   recovered_from_corrupt;
	bool		   fingerprint_matches;
	IdemkitRecord *record;
	const char	  *our_token; /* within text, or NULL */
	size_t		   room;	  /* bytes in text[] */
	char		   text[];
};

/* A claim token is 32 digits; more room than that costs nothing. */
#define TOKEN_ROOM 64

#define CLAIM_COLUMNS  "result, our_claim_token, recovered_from_corrupt, fingerprint_matches, "
#define CLAIM_NCOLUMNS 4

/*
 * Can conn run a statement now?
 */
static IdemkitStatus
check_connection(const PGconn *conn, IdemkitError *error)
{
	if (conn == NULL)
		return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT, "connection is NULL");
	if (PQstatus(conn) != CONNECTION_OK)
		return idemkit_error_set_connection(error, conn);
	if (PQtransactionStatus(conn) == PQTRANS_ACTIVE)
		return idemkit_error_set(error, IDEMKIT_ERROR_BUSY, "connection has a command in progress");
#ifdef LIBPQ_HAS_PIPELINING
	if (PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
		return idemkit_error_set(error, IDEMKIT_ERROR_BUSY, "connection is in pipeline mode");
#endif
	return IDEMKIT_OK;
}

/*
 * Run a statement. On IDEMKIT_OK *result has rows and is to be cleared.
 */
static IdemkitStatus
run(PGconn *conn, const char *statement, const IdemkitParams *params, PGresult **result,
	IdemkitError *error)
{
	IdemkitStatus status = check_connection(conn, error);

	*result = NULL;
	if (status != IDEMKIT_OK)
		return status;
	*result = PQexecParams(conn, statement, params->count, params->types, params->values,
						   params->lengths, params->formats, 1);
	if (PQresultStatus(*result) == PGRES_TUPLES_OK)
		return IDEMKIT_OK;
	status = idemkit_error_set_result(error, conn, *result);
	PQclear(*result);
	*result = NULL;
	return status;
}

static IdemkitStatus
set_missing(IdemkitError *error, const char *message)
{
	return idemkit_error_set(error, IDEMKIT_ERROR_ARGUMENT, message);
}

static IdemkitStatus
set_unexpected(IdemkitError *error)
{
	return idemkit_error_set(error, IDEMKIT_ERROR_PROTOCOL,
							 "answer from server has an unexpected form");
}

/*
 * A field of type boolean; false where it is anything else.
 */
static bool
take_bool(const PGresult *result, int column, bool *value)
{
	if (PQgetisnull(result, 0, column) || PQgetlength(result, 0, column) != 1)
		return false;
	*value = PQgetvalue(result, 0, column)[0] != 0;
	return true;
}

/*
 * Run a statement that answers with one boolean.
 */
static IdemkitStatus
run_bool(PGconn *conn, const char *statement, const IdemkitParams *params, bool *answer,
		 IdemkitError *error)
{
	PGresult	 *result;
	IdemkitStatus status = run(conn, statement, params, &result, error);

	if (status != IDEMKIT_OK)
		return status;
	if (PQntuples(result) != 1 || PQnfields(result) != 1 || !take_bool(result, 0, answer))
		status = set_unexpected(error);
	else
		idemkit_error_clear(error);
	PQclear(result);
	return status;
}

/*
 * A claim with room for what a won claim's record holds. It is made before the
 * statement is sent, so that a claim is not won and then lost to a lack of
 * memory here.
 */
static IdemkitClaim *
create_claim(const char *effective_key, const char *fingerprint)
{
	size_t		  room = strlen(effective_key) + strlen(fingerprint) + TOKEN_ROOM + 16;
	IdemkitClaim *claim = idemkit_mem_alloc(offsetof(IdemkitClaim, text) + TOKEN_ROOM);

	if (claim == NULL)
		return NULL;
	memset(claim, 0, sizeof(*claim));
	claim->room = TOKEN_ROOM;
	claim->record = idemkit_record_create(room);
	if (claim->record == NULL)
	{
		idemkit_mem_free(claim);
		return NULL;
	}
	return claim;
}

/*
 * The verdict of an SQL name, or 0.
 */
static IdemkitVerdict
take_verdict(const PGresult *result)
{
	for (int v = IDEMKIT_NEW_CLAIMED; v <= IDEMKIT_ALREADY_COMPLETED; v++)
	{
		const char *name = idemkit_verdict_name((IdemkitVerdict) v);

		if ((size_t) PQgetlength(result, 0, 0) == strlen(name) &&
			memcmp(PQgetvalue(result, 0, 0), name, strlen(name)) == 0)
			return (IdemkitVerdict) v;
	}
	return (IdemkitVerdict) 0;
}

/*
 * Fill a claim from the row of idemkit_claim().
 */
static IdemkitStatus
fill_claim(IdemkitClaim *claim, const PGresult *result, IdemkitError *error)
{
	if (PQntuples(result) != 1 || PQnfields(result) != CLAIM_NCOLUMNS + IDEMKIT_RECORD_NCOLUMNS)
		return set_unexpected(error);
	claim->verdict = take_verdict(result);
	if (claim->verdict == 0 || !take_bool(result, 2, &claim->recovered_from_corrupt) ||
		!take_bool(result, 3, &claim->fingerprint_matches))
		return set_unexpected(error);
	if (!PQgetisnull(result, 0, 1))
	{
		size_t length = (size_t) PQgetlength(result, 0, 1);

		if (length >= claim->room)
			return set_unexpected(error);
		memcpy(claim->text, PQgetvalue(result, 0, 1), length);
		claim->text[length] = '\0';
		claim->our_token = claim->text;
	}
	return idemkit_record_fill(&claim->record, result, 0, CLAIM_NCOLUMNS, error);
}

IdemkitStatus
idemkit_claim(PGconn *conn, const char *effective_key, const char *fingerprint,
			  int32_t fingerprint_version, double lease_ttl_seconds, bool reclaim,
			  const char *records, IdemkitClaim **claim, IdemkitError *error)
{
	IdemkitParams params = {0};
	IdemkitClaim *made;
	PGresult	 *result;
	IdemkitStatus status;

	if (claim == NULL)
		return set_missing(error, "place for the claim is NULL");
	*claim = NULL;
	if (effective_key == NULL)
		return set_missing(error, "effective key is NULL");
	if (fingerprint == NULL)
		fingerprint = "";
	made = create_claim(effective_key, fingerprint);
	if (made == NULL)
		return idemkit_error_set_memory(error);

	idemkit_add_text(&params, IDEMKIT_OID_TEXT, effective_key);
	idemkit_add_text(&params, IDEMKIT_OID_TEXT, fingerprint);
	idemkit_add_int4(&params, &fingerprint_version);
	idemkit_add_float8(&params, lease_ttl_seconds);
	idemkit_add_bool(&params, reclaim);
	idemkit_add_text(&params, IDEMKIT_OID_REGCLASS, records);
	status = run(conn,
				 "SELECT " CLAIM_COLUMNS IDEMKIT_RECORD_COLUMNS
				 " FROM idemkit_claim($1, $2, $3, $4, $5, $6)",
				 &params, &result, error);
	if (status == IDEMKIT_OK)
	{
		status = fill_claim(made, result, error);
		PQclear(result);
	}
	if (status != IDEMKIT_OK)
	{
		idemkit_claim_free(made);
		return status;
	}
	idemkit_error_clear(error);
	*claim = made;
	return IDEMKIT_OK;
}

IdemkitStatus
idemkit_complete(PGconn *conn, const char *effective_key, const char *claim_token,
				 const int32_t *response_status, const char *response_headers,
				 const void *response_body, size_t response_body_length,
				 double expires_after_seconds, const char *records, bool *completed,
				 IdemkitError *error)
{
	IdemkitParams params = {0};

	if (effective_key == NULL || claim_token == NULL || completed == NULL)
		return set_missing(error, "effective key, claim token or place for the answer is NULL");
	if (response_body == NULL && response_body_length > 0)
		return set_missing(error, "response body is NULL and has a length");
	if (response_body_length > INT_MAX)
		return set_missing(error, "response body is too long for the protocol");

	idemkit_add_text(&params, IDEMKIT_OID_TEXT, effective_key);
	idemkit_add_text(&params, IDEMKIT_OID_TEXT, claim_token);
	idemkit_add_int4(&params, response_status);
	idemkit_add_text(&params, IDEMKIT_OID_JSONB, response_headers);
	idemkit_add_bytes(&params, IDEMKIT_OID_BYTEA, response_body, (int) response_body_length);
	idemkit_add_float8(&params, expires_after_seconds);
	idemkit_add_text(&params, IDEMKIT_OID_REGCLASS, records);
	return run_bool(conn, "SELECT idemkit_complete($1, $2, $3, $4, $5, $6, $7)", &params, completed,
					error);
}

IdemkitStatus
idemkit_release(PGconn *conn, const char *effective_key, const char *claim_token,
				bool keep_attempts, const char *records, bool *released, IdemkitError *error)
{
	IdemkitParams params = {0};

	if (effective_key == NULL || claim_token == NULL || released == NULL)
		return set_missing(error, "effective key, claim token or place for the answer is NULL");
	idemkit_add_text(&params, IDEMKIT_OID_TEXT, effective_key);
	idemkit_add_text(&params, IDEMKIT_OID_TEXT, claim_token);
	idemkit_add_bool(&params, keep_attempts);
	idemkit_add_text(&params, IDEMKIT_OID_REGCLASS, records);
	return run_bool(conn, "SELECT idemkit_release($1, $2, $3, $4)", &params, released, error);
}

IdemkitStatus
idemkit_renew(PGconn *conn, const char *effective_key, const char *claim_token,
			  double lease_ttl_seconds, const char *records, bool *renewed, IdemkitError *error)
{
	IdemkitParams params = {0};

	if (effective_key == NULL || claim_token == NULL || renewed == NULL)
		return set_missing(error, "effective key, claim token or place for the answer is NULL");
	idemkit_add_text(&params, IDEMKIT_OID_TEXT, effective_key);
	idemkit_add_text(&params, IDEMKIT_OID_TEXT, claim_token);
	idemkit_add_float8(&params, lease_ttl_seconds);
	idemkit_add_text(&params, IDEMKIT_OID_REGCLASS, records);
	return run_bool(conn, "SELECT idemkit_renew($1, $2, $3, $4)", &params, renewed, error);
}

IdemkitStatus
idemkit_guard(PGconn *conn, const char *effective_key, const char *claim_token, const char *records,
			  IdemkitError *error)
{
	IdemkitParams params = {0};
	PGresult	 *result;
	IdemkitStatus status;

	if (effective_key == NULL || claim_token == NULL)
		return set_missing(error, "effective key or claim token is NULL");
	idemkit_add_text(&params, IDEMKIT_OID_TEXT, effective_key);
	idemkit_add_text(&params, IDEMKIT_OID_TEXT, claim_token);
	idemkit_add_text(&params, IDEMKIT_OID_REGCLASS, records);
	status = run(conn, "SELECT idemkit_guard($1, $2, $3)", &params, &result, error);
	if (status != IDEMKIT_OK)
		return status;
	PQclear(result);
	idemkit_error_clear(error);
	return IDEMKIT_OK;
}

IdemkitStatus
idemkit_get(PGconn *conn, const char *effective_key, const char *records,
			const IdemkitRecord **record, IdemkitError *error)
{
	IdemkitParams  params = {0};
	IdemkitRecord *made = NULL;
	PGresult	  *result;
	IdemkitStatus  status;

	if (record == NULL)
		return set_missing(error, "place for the record is NULL");
	*record = NULL;
	if (effective_key == NULL)
		return set_missing(error, "effective key is NULL");
	idemkit_add_text(&params, IDEMKIT_OID_TEXT, effective_key);
	idemkit_add_text(&params, IDEMKIT_OID_REGCLASS, records);
	status = run(conn, "SELECT " IDEMKIT_RECORD_COLUMNS " FROM idemkit_get($1, $2)", &params,
				 &result, error);
	if (status != IDEMKIT_OK)
		return status;
	if (PQntuples(result) > 0)
		status = idemkit_record_fill(&made, result, 0, 0, error);
	PQclear(result);
	if (status != IDEMKIT_OK)
		return status;
	idemkit_error_clear(error);
	*record = made;
	return IDEMKIT_OK;
}

void
idemkit_claim_free(IdemkitClaim *claim)
{
	if (claim == NULL)
		return;
	idemkit_record_free(claim->record);
	idemkit_mem_free(claim);
}

IdemkitVerdict
idemkit_claim_verdict(const IdemkitClaim *claim)
{
	return claim->verdict;
}

const char *
idemkit_claim_our_token(const IdemkitClaim *claim)
{
	return claim->our_token;
}

bool
idemkit_claim_recovered_from_corrupt(const IdemkitClaim *claim)
{
	return claim->recovered_from_corrupt;
}

bool
idemkit_claim_fingerprint_matches(const IdemkitClaim *claim)
{
	return claim->fingerprint_matches;
}

const IdemkitRecord *
idemkit_claim_record(const IdemkitClaim *claim)
{
	return claim->record;
}
