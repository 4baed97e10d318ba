/*
 * settle.c
 *		What the owner of a claim may do with it: idemkit_complete,
 *		idemkit_release, idemkit_renew, idemkit_guard.
 *
 * Each is one conditional statement on the row that has this key, this token
 * and state CLAIMED.  A token is fresh at every win, so an owner whose lease
 * was taken over finds no such row, whatever it tries.  An owner whose lease
 * has run out but was not taken over still owns the claim.
 */
#include "idemkit.h"

#include "access/detoast.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

PG_FUNCTION_INFO_V1(idemkit_complete);
PG_FUNCTION_INFO_V1(idemkit_release);
PG_FUNCTION_INFO_V1(idemkit_renew);
PG_FUNCTION_INFO_V1(idemkit_guard);

/* Argument numbers; the first two are those of all four functions. */
enum
{
	ARG_KEY,
	ARG_TOKEN,
	COMPLETE_STATUS = 2,
	COMPLETE_HEADERS,
	COMPLETE_BODY,
	COMPLETE_EXPIRES_AFTER,
	COMPLETE_RECORDS,
	RELEASE_KEEP_ATTEMPTS = 2,
	RELEASE_RECORDS,
	RENEW_LEASE = 2,
	RENEW_RECORDS,
	GUARD_RECORDS = 2
};

/*
 * Raises 54000 for a response above idemkit.max_response_bytes: the bytes of
 * the body and those of the headers' text.
 */
static void
check_response_size(Datum headers, bool headers_null, Datum body, bool body_null)
{
	Size size = 0;

	if (idemkit_max_response_bytes == 0)
		return;
	if (!body_null)
		size = toast_raw_datum_size(body) - VARHDRSZ;
	if (!headers_null)
	{
		Jsonb *object = DatumGetJsonbP(headers);

		size += strlen(JsonbToCString(NULL, &object->root, VARSIZE(object)));
	}
	if (size > (Size) idemkit_max_response_bytes)
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_TOO_LARGE),
				 errmsg("response of %zu bytes is larger than idemkit.max_response_bytes", size),
				 errdetail("The limit is %d bytes.", idemkit_max_response_bytes)));
}

/*
 * Raises 22023 for headers that are no object, 54000 for a response that is
 * too large.
 */
void
idemkit_check_response(Datum headers, bool headers_null, Datum body, bool body_null)
{
	if (!headers_null && !idemkit_is_object(headers))
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT),
						errmsg("response_headers must be a JSON object or null")));
	check_response_size(headers, headers_null, body, body_null);
}

/*
 * Announces what a statement ended that returned the column awaited, and
 * tells whether it ended anything.
 */
static bool
announce_end(const text *key, IdemkitResult result)
{
	if (result.count == 0)
		return false;
	idemkit_announce(key, DatumGetBool(idemkit_result_value(&result, 0, 1)));
	return true;
}

/*
 * idemkit_complete(effective_key, claim_token, response_status,
 *					response_headers, response_body, expires_after_seconds,
 *					records) RETURNS boolean
 *
 * Stores the result and starts its retention.  False, with nothing changed,
 * if the claim is not held with this token.  Raises 22004, 22023, 54000.
 */
Datum
idemkit_complete(PG_FUNCTION_ARGS)
{
	text *key = idemkit_key_argument(fcinfo, ARG_KEY);
	text *token = idemkit_text_argument(fcinfo, ARG_TOKEN, "claim_token");
	int64 retention =
		idemkit_duration_argument(fcinfo, COMPLETE_EXPIRES_AFTER, "expires_after_seconds");
	IdemkitTable *table;
	TimestampTz	  clock;
	bool		  done;

	idemkit_check_response(PG_GETARG_DATUM(COMPLETE_HEADERS), PG_ARGISNULL(COMPLETE_HEADERS),
						   PG_GETARG_DATUM(COMPLETE_BODY), PG_ARGISNULL(COMPLETE_BODY));

	table = idemkit_open_table(fcinfo, COMPLETE_RECORDS);
	clock = idemkit_clock();
	{
		Datum values[] = {
			PointerGetDatum(key),
			PointerGetDatum(token),
			TimestampTzGetDatum(clock),
			TimestampTzGetDatum(clock + retention),
			PG_GETARG_DATUM(COMPLETE_STATUS),
			PG_GETARG_DATUM(COMPLETE_HEADERS),
			PG_GETARG_DATUM(COMPLETE_BODY),
		};
		char nulls[] = {
			' ',
			' ',
			' ',
			' ',
			PG_ARGISNULL(COMPLETE_STATUS) ? 'n' : ' ',
			PG_ARGISNULL(COMPLETE_HEADERS) ? 'n' : ' ',
			PG_ARGISNULL(COMPLETE_BODY) ? 'n' : ' ',
		};

		done = announce_end(key, idemkit_execute(table, IDEMKIT_COMPLETE, values, nulls));

		/* The retention runs from now: start it again if we had to wait. */
		if (done && idemkit_waited(clock, retention, &clock))
		{
			values[2] = TimestampTzGetDatum(clock);
			values[3] = TimestampTzGetDatum(clock + retention);
			idemkit_execute(table, IDEMKIT_RESTAMP_RESULT, values, NULL);
		}
	}
	PG_RETURN_BOOL(done);
}

/*
 * Ends a claim but leaves its row, claimable at once, with its attempts.  The
 * row gets a token nobody has: the owner has given the claim up.
 */
static IdemkitResult
release_keeping_attempts(IdemkitTable *table, text *key, text *token)
{
	Datum values[] = {
		PointerGetDatum(key),
		PointerGetDatum(token),
		TimestampTzGetDatum(idemkit_clock() - 1),
		PointerGetDatum(idemkit_fresh_token()),
	};

	return idemkit_execute(table, IDEMKIT_RELEASE_KEEPING, values, NULL);
}

/*
 * idemkit_release(effective_key, claim_token, keep_attempts, records)
 *		RETURNS boolean
 *
 * Gives a claim up.  False, with nothing changed, if it is not held with this
 * token.  Raises 22004, 22023.
 */
Datum
idemkit_release(PG_FUNCTION_ARGS)
{
	text *key = idemkit_key_argument(fcinfo, ARG_KEY);
	text *token = idemkit_text_argument(fcinfo, ARG_TOKEN, "claim_token");
	bool  keep_attempts = idemkit_bool_argument(fcinfo, RELEASE_KEEP_ATTEMPTS, "keep_attempts");
	IdemkitTable *table = idemkit_open_table(fcinfo, RELEASE_RECORDS);
	Datum		  values[] = {PointerGetDatum(key), PointerGetDatum(token)};
	IdemkitResult result = keep_attempts ? release_keeping_attempts(table, key, token)
										 : idemkit_execute(table, IDEMKIT_RELEASE, values, NULL);

	PG_RETURN_BOOL(announce_end(key, result));
}

/*
 * Sets the end of a lease.  False if there is no such claim.
 */
static bool
renew(IdemkitTable *table, text *key, text *token, TimestampTz lease_until)
{
	Datum values[] = {
		PointerGetDatum(key),
		PointerGetDatum(token),
		TimestampTzGetDatum(lease_until),
	};

	return idemkit_execute(table, IDEMKIT_RENEW, values, NULL).count > 0;
}

/*
 * idemkit_renew(effective_key, claim_token, lease_ttl_seconds, records)
 *		RETURNS boolean
 *
 * Starts the lease of a claim anew.  False, with nothing changed, if it is
 * not held with this token.  Raises 22004, 22023.
 */
Datum
idemkit_renew(PG_FUNCTION_ARGS)
{
	text		 *key = idemkit_key_argument(fcinfo, ARG_KEY);
	text		 *token = idemkit_text_argument(fcinfo, ARG_TOKEN, "claim_token");
	int64		  lease = idemkit_lease_argument(fcinfo, RENEW_LEASE);
	IdemkitTable *table;
	TimestampTz	  clock;
	bool		  done;

	table = idemkit_open_table(fcinfo, RENEW_RECORDS);
	clock = idemkit_clock();
	done = renew(table, key, token, clock + lease);

	/* The lease runs from now: start it again if we had to wait. */
	if (done && idemkit_waited(clock, lease, &clock))
		renew(table, key, token, clock + lease);
	PG_RETURN_BOOL(done);
}

/*
 * idemkit_guard(effective_key, claim_token, records) RETURNS void
 *
 * Locks the claim's row until the transaction ends, so that nobody can take
 * it over before what the transaction writes is committed.  Raises IK001
 * unless the claim is held with this token and its lease is live at the
 * moment the lock is granted; 22004, 22023 for bad arguments.
 */
Datum
idemkit_guard(PG_FUNCTION_ARGS)
{
	text		 *key = idemkit_key_argument(fcinfo, ARG_KEY);
	text		 *token = idemkit_text_argument(fcinfo, ARG_TOKEN, "claim_token");
	Datum		  values[] = {PointerGetDatum(key), PointerGetDatum(token)};
	IdemkitTable *table = idemkit_open_table(fcinfo, GUARD_RECORDS);
	IdemkitResult result = idemkit_execute(table, IDEMKIT_GUARD, values, NULL);

	if (result.count == 0)
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_CLAIM_LOST), errmsg("claim is not held with this token"),
				 errdetail("It was completed, released or taken over, or there never was one.")));
	if (DatumGetTimestampTz(idemkit_result_value(&result, 0, 1)) < idemkit_clock())
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_CLAIM_LOST), errmsg("lease of the claim has run out"),
				 errhint("Renew the claim with idemkit_renew() before its lease ends.")));
	PG_RETURN_VOID();
}
