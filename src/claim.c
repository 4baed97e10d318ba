/*
 * claim.c
 *		idemkit_claim: exactly one winner per key, and a true verdict for all.
 *
 * A claim looks first.  A duplicate of a live row is answered from what it
 * read: no write, no row lock, no transaction id.  Otherwise it tries to win
 * by one conditional statement: an INSERT that does nothing where the key has
 * appeared, or an UPDATE of the row as it was seen.  Where that finds the
 * world changed it looks again, so every verdict describes a row that was
 * there, and of any number of racers one wins.
 */
#include "idemkit.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(idemkit_claim);

/* Argument numbers */
enum
{
	ARG_KEY,
	ARG_FINGERPRINT,
	ARG_TERMS, /* fingerprint_version, lease, reclaim */
	ARG_RECORDS = ARG_TERMS + 3
};

/* Columns of idemkit_claim_result before those of idemkit_record */
enum
{
	RESULT,
	OUR_CLAIM_TOKEN,
	RECOVERED_FROM_CORRUPT,
	FINGERPRINT_MATCHES,
	RECORD
};

/*
 * Reads the three arguments that stand together in both claim functions.
 */
void
idemkit_claim_terms(FunctionCallInfo fcinfo, int first_argno, IdemkitClaimTerms *terms)
{
	terms->fingerprint_version = idemkit_int_argument(fcinfo, first_argno, "fingerprint_version");
	terms->lease = idemkit_lease_argument(fcinfo, first_argno + 1);
	terms->reclaim = idemkit_bool_argument(fcinfo, first_argno + 2, "reclaim");
}

/*
 * Does the row in claim->record carry the fingerprint that was asked with?
 */
bool
idemkit_fingerprint_matches(const IdemkitClaim *claim, const IdemkitClaimTerms *terms)
{
	const IdemkitRecord *record = &claim->record;
	text				*stored = DatumGetTextPP(record->values[IDEMKIT_FINGERPRINT]);
	Size				 length = VARSIZE_ANY_EXHDR(claim->fingerprint);

	return DatumGetInt32(record->values[IDEMKIT_FINGERPRINT_VERSION]) ==
			   terms->fingerprint_version &&
		   VARSIZE_ANY_EXHDR(stored) == length &&
		   memcmp(VARDATA_ANY(stored), VARDATA_ANY(claim->fingerprint), length) == 0;
}

/*
 * Completes the answer of a claim that won nothing.
 */
static IdemkitClaimStep
answer(IdemkitClaim *claim, const IdemkitClaimTerms *terms, const char *result, TimestampTz clock)
{
	claim->result = result;
	claim->token = NULL;
	claim->recovered = false;
	claim->fingerprint_matches = idemkit_fingerprint_matches(claim, terms);
	idemkit_set_clock(&claim->record, clock);
	return IDEMKIT_ANSWERED;
}

/*
 * What follows from what was read: an answer, or a way to try and win.  The
 * row, if "found", is in claim->record; "clock" was read after it.
 */
IdemkitClaimStep
idemkit_weigh_claim(IdemkitClaim *claim, const IdemkitClaimTerms *terms, bool found,
					TimestampTz clock)
{
	claim->result = "new_claimed";
	claim->recovered = false;
	if (!found)
		return IDEMKIT_TRY_INSERT;

	switch (idemkit_judge(&claim->record, clock))
	{
		case IDEMKIT_LIVE_RESULT:
			return answer(claim, terms, "already_completed", clock);
		case IDEMKIT_LIVE_CLAIM:
			return answer(claim, terms, "already_claimed", clock);
		case IDEMKIT_LAPSED_CLAIM:
			if (!terms->reclaim)
				return answer(claim, terms, "lease_lapsed", clock);
			claim->result = "lease_reclaimed";
			break;
		case IDEMKIT_EXPIRED_RESULT:
			break;
		case IDEMKIT_CORRUPT:
			claim->recovered = true;
			break;
	}
	return IDEMKIT_TRY_TAKE_OVER;
}

/*
 * Stamps a win with a reading of the clock.  claimed_at, and with it the
 * fence, must be later than that of the row that was taken over, even where
 * the clock stands still or has stepped back.
 */
void
idemkit_stamp_win(IdemkitClaim *claim, const IdemkitClaimTerms *terms, TimestampTz clock)
{
	IdemkitRecord *record = &claim->record;
	TimestampTz	   claimed_at = clock;

	if (!record->nulls[IDEMKIT_CLAIMED_AT])
	{
		TimestampTz previous = DatumGetTimestampTz(record->values[IDEMKIT_CLAIMED_AT]);

		if (claimed_at <= previous && idemkit_has_fence(previous + 1))
			claimed_at = previous + 1;
	}
	record->values[IDEMKIT_CLAIMED_AT] = TimestampTzGetDatum(claimed_at);
	record->nulls[IDEMKIT_CLAIMED_AT] = false;
	record->values[IDEMKIT_LEASE_UNTIL] = TimestampTzGetDatum(clock + terms->lease);
	idemkit_set_clock(record, clock);
}

/*
 * Turns claim->record into the row that is to be written, with a new token.
 */
void
idemkit_prepare_win(IdemkitClaim *claim, const IdemkitClaimTerms *terms, IdemkitClaimStep step,
					TimestampTz clock)
{
	IdemkitRecord *record = &claim->record;
	int32		   attempts = 1;

	if (step == IDEMKIT_TRY_INSERT)
		memset(record->nulls, true, sizeof(record->nulls));
	else if (strcmp(claim->result, "lease_reclaimed") == 0)
	{
		attempts = DatumGetInt32(record->values[IDEMKIT_ATTEMPTS]);
		if (attempts < INT_MAX)
			attempts++;
	}
	idemkit_stamp_win(claim, terms, clock);

	claim->token = idemkit_fresh_token();
	claim->fingerprint_matches = true;
	record->values[IDEMKIT_EFFECTIVE_KEY] = PointerGetDatum(claim->key);
	record->values[IDEMKIT_STATE] = CStringGetTextDatum("CLAIMED");
	record->values[IDEMKIT_FINGERPRINT] = PointerGetDatum(claim->fingerprint);
	record->values[IDEMKIT_FINGERPRINT_VERSION] = Int32GetDatum(terms->fingerprint_version);
	record->values[IDEMKIT_CLAIM_TOKEN] = PointerGetDatum(claim->token);
	record->values[IDEMKIT_ATTEMPTS] = Int32GetDatum(attempts);
	for (int i = 0; i < IDEMKIT_RECORD_COLUMNS; i++)
		record->nulls[i] = (i >= IDEMKIT_COMPLETED_AT && i <= IDEMKIT_RESPONSE_BODY);
}

/*
 * Writes the row that idemkit_prepare_win() has made, in the place of what was
 * seen.  False if somebody else was faster.
 */
static bool
write_win(IdemkitTable *table, const IdemkitRecord *record, IdemkitClaimStep step, Datum seen_token,
		  Datum seen_state, Datum seen_lease_until)
{
	Datum values[] = {
		record->values[IDEMKIT_EFFECTIVE_KEY],
		record->values[IDEMKIT_FINGERPRINT],
		record->values[IDEMKIT_FINGERPRINT_VERSION],
		record->values[IDEMKIT_CLAIM_TOKEN],
		record->values[IDEMKIT_CLAIMED_AT],
		record->values[IDEMKIT_LEASE_UNTIL],
		record->values[IDEMKIT_ATTEMPTS],
		seen_token,
		seen_state,
		seen_lease_until,
	};

	if (step == IDEMKIT_TRY_TAKE_OVER)
		return idemkit_execute(table, IDEMKIT_TAKE_OVER, values, NULL).count > 0;
	return idemkit_insert_directly(table, record) ||
		   idemkit_execute(table, IDEMKIT_INSERT_CLAIM, values, NULL).count > 0;
}

/*
 * Tries to insert or take over the row.  False if somebody else was faster.
 */
static bool
try_to_win(IdemkitTable *table, IdemkitClaim *claim, const IdemkitClaimTerms *terms,
		   IdemkitClaimStep step, TimestampTz clock)
{
	IdemkitRecord *record = &claim->record;
	Datum		   seen_token = record->values[IDEMKIT_CLAIM_TOKEN];
	Datum		   seen_state = record->values[IDEMKIT_STATE];
	Datum		   seen_lease_until = record->values[IDEMKIT_LEASE_UNTIL];
	TimestampTz	   later;

	idemkit_prepare_win(claim, terms, step, clock);
	if (!write_win(table, record, step, seen_token, seen_state, seen_lease_until))
		return false;

	/* The lease runs from the win: start it again if we had to wait for that. */
	if (idemkit_waited(clock, terms->lease, &later))
	{
		idemkit_stamp_win(claim, terms, later);
		{
			Datum values[] = {
				record->values[IDEMKIT_EFFECTIVE_KEY],
				record->values[IDEMKIT_CLAIM_TOKEN],
				record->values[IDEMKIT_CLAIMED_AT],
				record->values[IDEMKIT_LEASE_UNTIL],
			};

			idemkit_execute(table, IDEMKIT_RESTAMP_CLAIM, values, NULL);
		}
	}
	return true;
}

/*
 * Raises 55000 after an absurd number of lost races.  Real contention does
 * not get here; a row that hides from this caller does.
 */
void
idemkit_refuse_race(IdemkitTable *table)
{
	ereport(ERROR, (errcode(IDEMKIT_ERRCODE_UNSETTLED),
					errmsg("could not settle a claim on %s", table->name),
					errdetail("The row neither showed nor could be written, %d times in a row.",
							  IDEMKIT_MAX_LOOKS),
					errhint("Look for a row-level security policy, trigger or rule that hides rows "
							"from this role or keeps it from writing them.")));
}

/*
 * Looks, and tries to win, until there is an answer.
 */
static void
settle_claim(IdemkitTable *table, IdemkitClaim *claim, const IdemkitClaimTerms *terms)
{
	for (int looks = 0; looks < IDEMKIT_MAX_LOOKS; looks++)
	{
		bool			 found;
		TimestampTz		 clock;
		IdemkitClaimStep step;

		CHECK_FOR_INTERRUPTS();
		found = idemkit_read_record(table, claim->key, &claim->record);
		clock = idemkit_clock();
		step = idemkit_weigh_claim(claim, terms, found, clock);
		if (step == IDEMKIT_ANSWERED || try_to_win(table, claim, terms, step, clock))
			return;
	}
	idemkit_refuse_race(table);
}

/*
 * Fills the columns of idemkit_claim_result.
 */
void
idemkit_claim_columns(const IdemkitClaim *claim, Datum *values, bool *nulls)
{
	StaticAssertStmt(RECORD + IDEMKIT_RECORD_COLUMNS == IDEMKIT_CLAIM_COLUMNS,
					 "columns of idemkit_claim_result");

	memset(nulls, false, RECORD);
	values[RESULT] = CStringGetTextDatum(claim->result);
	values[OUR_CLAIM_TOKEN] = PointerGetDatum(claim->token);
	nulls[OUR_CLAIM_TOKEN] = claim->token == NULL;
	values[RECOVERED_FROM_CORRUPT] = BoolGetDatum(claim->recovered);
	values[FINGERPRINT_MATCHES] = BoolGetDatum(claim->fingerprint_matches);
	memcpy(&values[RECORD], claim->record.values, sizeof(claim->record.values));
	memcpy(&nulls[RECORD], claim->record.nulls, sizeof(claim->record.nulls));
}

/*
 * idemkit_claim(effective_key, fingerprint, fingerprint_version,
 *				 lease_ttl_seconds, reclaim, records) RETURNS idemkit_claim_result
 *
 * Raises 22004 and 22023 for bad arguments, 42P01 and 55000 for a table that
 * is none; 40001 under REPEATABLE READ and above where it must not see what
 * it ran into.
 */
Datum
idemkit_claim(PG_FUNCTION_ARGS)
{
	IdemkitClaimTerms terms;
	IdemkitClaim	  claim = {0};
	Datum			  values[IDEMKIT_CLAIM_COLUMNS];
	bool			  nulls[IDEMKIT_CLAIM_COLUMNS];

	claim.key = idemkit_key_argument(fcinfo, ARG_KEY);
	claim.fingerprint = idemkit_text_argument(fcinfo, ARG_FINGERPRINT, "fingerprint");
	idemkit_claim_terms(fcinfo, ARG_TERMS, &terms);

	settle_claim(idemkit_open_table(fcinfo, ARG_RECORDS), &claim, &terms);
	idemkit_claim_columns(&claim, values, nulls);
	PG_RETURN_DATUM(idemkit_form_result(fcinfo, values, nulls));
}
