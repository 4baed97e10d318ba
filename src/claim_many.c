/*
 * claim_many.c
 *		idemkit_claim_many: many claims in a fixed number of statements.
 *
 * A batch reads all its keys, inserts those that were absent, takes over those
 * that were over, and reads again what it lost to others.  Locks are taken in
 * one order by every batch: first by inserting, in key order, then by taking
 * over, in key order; so batches cannot deadlock.  Where a key that was lost
 * can be won after all, going on would break that order: the batch then gives
 * back what it has, by rolling back a subtransaction, and starts again.
 */
#include "idemkit.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

PG_FUNCTION_INFO_V1(idemkit_claim_many);

/* Argument numbers */
enum
{
	ARG_KEYS,
	ARG_FINGERPRINTS,
	ARG_TERMS, /* fingerprint_version, lease, reclaim */
	ARG_RECORDS = ARG_TERMS + 3
};

/* The claim of one of the distinct keys of a batch */
typedef struct BatchClaim
{
	IdemkitClaim	 claim;
	IdemkitClaimStep step;
	bool			 won;
	Datum			 seen_token; /* of the row that is to be taken over */
	Datum			 seen_state;
	Datum			 seen_lease_until;
} BatchClaim;

typedef struct Batch
{
	IdemkitTable	 *table;
	IdemkitClaimTerms terms;
	int				  count;
	BatchClaim		 *claims; /* in key order */
	BatchClaim		**chosen; /* scratch: those a statement is about */
} Batch;

/* Where gather() finds a column of the record. */
#define RECORD_COLUMN(column) (offsetof(BatchClaim, claim.record.values) + (column) * sizeof(Datum))

/*
 * Chooses the claims that are to take a step, in key order; returns how many.
 */
static int
choose(Batch *batch, IdemkitClaimStep step)
{
	int count = 0;

	for (int i = 0; i < batch->count; i++)
	{
		if (batch->claims[i].step == step)
			batch->chosen[count++] = &batch->claims[i];
	}
	return count;
}

/*
 * Chooses the claims that have no answer yet.
 */
static int
choose_open(Batch *batch)
{
	int count = 0;

	for (int i = 0; i < batch->count; i++)
	{
		if (batch->claims[i].step != IDEMKIT_ANSWERED)
			batch->chosen[count++] = &batch->claims[i];
	}
	return count;
}

/*
 * One value of each chosen claim, as an array parameter.
 */
static Datum
gather(const Batch *batch, int count, size_t offset, Oid type)
{
	Datum *values = palloc(count * sizeof(Datum));
	Datum  array;

	for (int i = 0; i < count; i++)
		memcpy(&values[i], (char *) batch->chosen[i] + offset, sizeof(Datum));
	array = idemkit_form_array(values, NULL, count, type);
	pfree(values);
	return array;
}

/*
 * The chosen claim with a key that a statement returned.  Raises 55000 if it
 * is none of those, as when a trigger has changed it.
 */
static BatchClaim *
find_chosen(const Batch *batch, int count, Datum key)
{
	int low = 0;
	int high = count - 1;

	while (low <= high)
	{
		int middle = (low + high) / 2;
		int order = idemkit_compare_keys(key, PointerGetDatum(batch->chosen[middle]->claim.key));

		if (order == 0)
			return batch->chosen[middle];
		if (order < 0)
			high = middle - 1;
		else
			low = middle + 1;
	}
	ereport(ERROR, (errcode(IDEMKIT_ERRCODE_UNSETTLED),
					errmsg("%s stored another effective_key than it was given", batch->table->name),
					errhint("Look for a trigger that changes effective_key.")));
}

/*
 * Reads the rows of the claims that have no answer, and weighs each.  True if
 * all have one now.
 */
static bool
look_at_open(Batch *batch)
{
	int			  count = choose_open(batch);
	Datum		  keys[] = {gather(batch, count, RECORD_COLUMN(IDEMKIT_EFFECTIVE_KEY), TEXTOID)};
	IdemkitResult result = idemkit_execute(batch->table, IDEMKIT_READ_MANY, keys, NULL);
	TimestampTz	  clock = idemkit_clock();

	/* No row until one is found */
	for (int i = 0; i < count; i++)
		batch->chosen[i]->step =
			idemkit_weigh_claim(&batch->chosen[i]->claim, &batch->terms, false, clock);
	for (uint64 i = 0; i < result.count; i++)
	{
		IdemkitRecord record;
		BatchClaim	 *chosen;

		idemkit_load_record(&record, &result, i);
		record.values[IDEMKIT_EFFECTIVE_KEY] =
			PointerGetDatum(DatumGetTextPP(record.values[IDEMKIT_EFFECTIVE_KEY]));
		chosen = find_chosen(batch, count, record.values[IDEMKIT_EFFECTIVE_KEY]);
		chosen->claim.record = record;
		chosen->step = idemkit_weigh_claim(&chosen->claim, &batch->terms, true, clock);
	}
	return choose_open(batch) == 0;
}

/*
 * Writes the claims just won again with a later reading of the clock.
 */
static void
restamp(Batch *batch, int count, TimestampTz clock)
{
	int won = 0;

	for (int i = 0; i < count; i++)
	{
		if (!batch->chosen[i]->won)
			continue;
		batch->chosen[won++] = batch->chosen[i];
		idemkit_stamp_win(&batch->chosen[won - 1]->claim, &batch->terms, clock);
	}
	if (won > 0)
	{
		Datum values[] = {
			gather(batch, won, RECORD_COLUMN(IDEMKIT_EFFECTIVE_KEY), TEXTOID),
			gather(batch, won, RECORD_COLUMN(IDEMKIT_CLAIM_TOKEN), TEXTOID),
			gather(batch, won, RECORD_COLUMN(IDEMKIT_CLAIMED_AT), TIMESTAMPTZOID),
			TimestampTzGetDatum(clock + batch->terms.lease),
		};

		idemkit_execute(batch->table, IDEMKIT_RESTAMP_CLAIMS, values, NULL);
	}
}

/*
 * Runs the statement that inserts, or the one that takes over.
 */
static IdemkitResult
execute_step(const Batch *batch, int count, IdemkitClaimStep step, TimestampTz clock)
{
	bool  insert = step == IDEMKIT_TRY_INSERT;
	Datum values[10] = {
		gather(batch, count, RECORD_COLUMN(IDEMKIT_EFFECTIVE_KEY), TEXTOID),
		gather(batch, count, RECORD_COLUMN(IDEMKIT_FINGERPRINT), TEXTOID),
		Int32GetDatum(batch->terms.fingerprint_version),
		gather(batch, count, RECORD_COLUMN(IDEMKIT_CLAIM_TOKEN), TEXTOID),
		TimestampTzGetDatum(clock),
		TimestampTzGetDatum(clock + batch->terms.lease),
	};

	if (insert)
		return idemkit_execute(batch->table, IDEMKIT_INSERT_CLAIMS, values, NULL);
	values[4] = gather(batch, count, RECORD_COLUMN(IDEMKIT_CLAIMED_AT), TIMESTAMPTZOID);
	values[6] = gather(batch, count, RECORD_COLUMN(IDEMKIT_ATTEMPTS), INT4OID);
	values[7] = gather(batch, count, offsetof(BatchClaim, seen_token), TEXTOID);
	values[8] = gather(batch, count, offsetof(BatchClaim, seen_state), TEXTOID);
	values[9] = gather(batch, count, offsetof(BatchClaim, seen_lease_until), TIMESTAMPTZOID);
	return idemkit_execute(batch->table, IDEMKIT_TAKE_OVER_MANY, values, NULL);
}

/*
 * Tries to win the claims that are to take a step.
 */
static void
try_to_win(Batch *batch, IdemkitClaimStep step)
{
	int			  count = choose(batch, step);
	TimestampTz	  clock = idemkit_clock();
	IdemkitResult result;

	if (count == 0)
		return;
	for (int i = 0; i < count; i++)
	{
		BatchClaim *chosen = batch->chosen[i];
		Datum	   *record = chosen->claim.record.values;

		chosen->seen_token = record[IDEMKIT_CLAIM_TOKEN];
		chosen->seen_state = record[IDEMKIT_STATE];
		chosen->seen_lease_until = record[IDEMKIT_LEASE_UNTIL];
		idemkit_prepare_win(&chosen->claim, &batch->terms, step, clock);
	}

	result = execute_step(batch, count, step, clock);
	for (uint64 i = 0; i < result.count; i++)
	{
		Datum		key = idemkit_result_value(&result, i, 1);
		BatchClaim *winner = find_chosen(batch, count, PointerGetDatum(DatumGetTextPP(key)));

		winner->won = true;
		winner->step = IDEMKIT_ANSWERED;
	}
	if (idemkit_waited(clock, batch->terms.lease, &clock))
		restamp(batch, count, clock);
}

/*
 * Tries to win what can be won and reads again what was lost.  False if there
 * is no answer to some key, in which case everything must be given back.
 */
static bool
settle_once(Batch *batch)
{
	try_to_win(batch, IDEMKIT_TRY_INSERT);
	try_to_win(batch, IDEMKIT_TRY_TAKE_OVER);
	return choose_open(batch) == 0 || look_at_open(batch);
}

/*
 * settle_once() in a subtransaction that is rolled back if it returns false
 * or raises an error.  Nothing may raise another one before the rollback, not
 * even for want of memory: a subtransaction that is still open when the error
 * reaches the session would be taken for the user's own savepoint.
 */
static bool
settle_in_subtransaction(Batch *batch)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool settled = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		settled = settle_once(batch);
		if (settled)
			ReleaseCurrentSubTransaction();
		else
			RollbackAndReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		PG_RE_THROW();
	}
	PG_END_TRY();

	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return settled;
}

/*
 * Looks, and tries to win, until there is an answer to every key.
 */
static void
settle_batch(Batch *batch)
{
	for (int looks = 0; looks < IDEMKIT_MAX_LOOKS; looks++)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < batch->count; i++)
		{
			BatchClaim *claim = &batch->claims[i];

			claim->step = IDEMKIT_TRY_INSERT;
			claim->won = false;
			claim->claim.record.values[IDEMKIT_EFFECTIVE_KEY] = PointerGetDatum(claim->claim.key);
		}
		if (look_at_open(batch) || settle_in_subtransaction(batch))
			return;
	}
	idemkit_refuse_race(batch->table);
}

/*
 * Makes a batch of the distinct keys.  "members" receives for each position
 * the claim that answers it; the first position of a key asks its question.
 */
static void
make_batch(Batch *batch, const IdemkitArray *keys, text *const *fingerprints, BatchClaim **members)
{
	int *order = idemkit_key_order(keys, NULL);

	batch->count = 0;
	batch->claims = palloc0(keys->count * sizeof(BatchClaim));
	batch->chosen = palloc(keys->count * sizeof(BatchClaim *));
	for (int i = 0; i < keys->count; i++)
	{
		int	  position = order[i];
		Datum key = keys->values[position];

		if (i == 0 || idemkit_compare_keys(keys->values[order[i - 1]], key) != 0)
		{
			IdemkitClaim *claim = &batch->claims[batch->count++].claim;

			claim->key = (text *) DatumGetPointer(key);
			claim->fingerprint = fingerprints[position];
		}
		members[position] = &batch->claims[batch->count - 1];
	}
}

/*
 * Adds the answer for one position.  A key that stands in the batch twice is
 * won by its first position only; the others see what that did.
 */
static void
put_answer(IdemkitRows *rows, BatchClaim *member, text *fingerprint, const IdemkitClaimTerms *terms)
{
	IdemkitClaim claim = member->claim;
	Datum		 values[IDEMKIT_CLAIM_COLUMNS];
	bool		 nulls[IDEMKIT_CLAIM_COLUMNS];

	if (fingerprint != claim.fingerprint)
	{
		claim.fingerprint = fingerprint;
		claim.fingerprint_matches = idemkit_fingerprint_matches(&claim, terms);
		if (member->won)
		{
			claim.result = "already_claimed";
			claim.token = NULL;
			claim.recovered = false;
		}
	}
	idemkit_claim_columns(&claim, values, nulls);
	idemkit_put_row(rows, values, nulls);
}

/*
 * The fingerprints, one for each key: those given, or empty ones.  Each is a
 * value of its own, by whose address put_answer() knows it.
 */
static text **
read_fingerprints(FunctionCallInfo fcinfo, const IdemkitArray *keys)
{
	text	   **fingerprints = palloc(Max(keys->count, 1) * sizeof(text *));
	IdemkitArray given = {0};

	if (!PG_ARGISNULL(ARG_FINGERPRINTS))
	{
		given = idemkit_texts_argument(fcinfo, ARG_FINGERPRINTS, "fingerprints");
		idemkit_check_lengths(&given, "fingerprints", keys);
	}
	for (int i = 0; i < keys->count; i++)
		fingerprints[i] =
			given.values != NULL ? DatumGetTextPP(given.values[i]) : cstring_to_text("");
	return fingerprints;
}

/*
 * idemkit_claim_many(effective_keys, fingerprints, fingerprint_version,
 *					  lease_ttl_seconds, reclaim, records)
 *		RETURNS SETOF idemkit_claim_result
 *
 * One row for each key, in the order given, each what idemkit_claim() would
 * have said in turn.  Raises what idemkit_claim() raises, and 22023 for arrays
 * of unequal length.
 */
Datum
idemkit_claim_many(PG_FUNCTION_ARGS)
{
	IdemkitArray keys = idemkit_keys_argument(fcinfo, ARG_KEYS);
	text	   **fingerprints = read_fingerprints(fcinfo, &keys);
	BatchClaim **members = palloc(Max(keys.count, 1) * sizeof(BatchClaim *));
	Batch		 batch;
	IdemkitRows	 rows;

	idemkit_claim_terms(fcinfo, ARG_TERMS, &batch.terms);
	batch.table = idemkit_open_table(fcinfo, ARG_RECORDS);
	idemkit_begin_rows(fcinfo, &rows);
	if (keys.count == 0)
		return (Datum) 0;

	make_batch(&batch, &keys, fingerprints, members);
	settle_batch(&batch);
	for (int i = 0; i < keys.count; i++)
		put_answer(&rows, members[i], fingerprints[i], &batch.terms);
	return (Datum) 0;
}
