/*
 * wait.c
 *		idemkit_subscribe and idemkit_wait: learning of a claim's end.
 *
 * Subscribing marks the live claims and then reads, each by a new snapshot.
 * A completion that commits before the mark is seen by the read; one that
 * comes after it finds the mark, because it locks the row that the mark
 * changed.  None can fall between.
 */
#include "idemkit.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "utils/builtins.h"
#include "utils/memutils.h"


PG_FUNCTION_INFO_V1(idemkit_subscribe);
PG_FUNCTION_INFO_V1(idemkit_wait);

/* How long idemkit_wait sleeps between looks: doubling between these. */
#define FIRST_SLEEP_USECS	10000
#define LONGEST_SLEEP_USECS 250000

/*
 * The keys in key order, each once, as an array parameter.
 */
static Datum
ordered_keys(const IdemkitArray *keys)
{
	int	  *order = idemkit_key_order(keys, NULL);
	Datum *distinct = palloc(keys->count * sizeof(Datum));
	int	   count = 0;

	for (int i = 0; i < keys->count; i++)
	{
		Datum key = keys->values[order[i]];

		if (count == 0 || idemkit_compare_keys(distinct[count - 1], key) != 0)
			distinct[count++] = key;
	}
	return idemkit_form_array(distinct, NULL, count, TEXTOID);
}

/*
 * idemkit_subscribe(effective_keys, records) RETURNS SETOF idemkit_record
 *
 * Marks the live claims among the keys as awaited and returns the rows there
 * are, in key order.  Only reads where nothing can be written.  Raises 22004,
 * 22023.
 */
Datum
idemkit_subscribe(PG_FUNCTION_ARGS)
{
	IdemkitArray  keys = idemkit_keys_argument(fcinfo, 0);
	IdemkitTable *table = idemkit_open_table(fcinfo, 1);
	IdemkitRows	  rows;
	IdemkitResult result;
	TimestampTz	  clock;

	idemkit_begin_rows(fcinfo, &rows);
	if (keys.count > 0)
	{
		Datum values[] = {ordered_keys(&keys), TimestampTzGetDatum(idemkit_clock())};

		if (!XactReadOnly && !RecoveryInProgress())
			idemkit_execute(table, IDEMKIT_MARK_AWAITED, values, NULL);
		result = idemkit_execute(table, IDEMKIT_READ_MANY, values, NULL);
		clock = idemkit_clock();
		for (uint64 i = 0; i < result.count; i++)
		{
			IdemkitRecord record;

			idemkit_load_record(&record, &result, i);
			idemkit_set_clock(&record, clock);
			idemkit_put_row(&rows, record.values, record.nulls);
		}
	}
	return (Datum) 0;
}

/*
 * Microseconds since some moment, by a clock that nobody sets.  A timeout is
 * measured by it, since it is no moment in the database's time: stepping the
 * server's clock must not make a caller wait for hours.
 */
static int64
steady_usecs(void)
{
	instr_time now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/*
 * What a wait that sees this row is told, or NULL if it must go on.  "left" is
 * what is left of its timeout.
 */
static const char *
wait_outcome(const IdemkitRecord *record, bool found, TimestampTz clock, int64 left)
{
	if (!found)
		return "absent";
	switch (idemkit_judge(record, clock))
	{
		case IDEMKIT_LIVE_RESULT:
			return "completed";
		case IDEMKIT_LAPSED_CLAIM:
			return "lapsed";
		case IDEMKIT_EXPIRED_RESULT:
		case IDEMKIT_CORRUPT:
			return "absent";
		case IDEMKIT_LIVE_CLAIM:
			break;
	}
	return left <= 0 ? "timeout" : NULL;
}

/*
 * Reads the row again and again until there is an outcome.  The record of
 * the last look is left in "record", with its values in "look".
 */
static const char *
wait_for_outcome(FunctionCallInfo fcinfo, const text *key, int64 timeout, IdemkitRecord *record,
				 MemoryContext look)
{
	MemoryContext caller = CurrentMemoryContext;
	int64		  deadline = steady_usecs() + timeout;
	int64		  sleep = FIRST_SLEEP_USECS;

	for (;;)
	{
		bool		found;
		TimestampTz clock;
		TimestampTz lease_until;
		int64		left;
		const char *outcome;

		MemoryContextReset(look);
		MemoryContextSwitchTo(look);
		found = idemkit_read_record(idemkit_open_table(fcinfo, 2), key, record);
		clock = idemkit_clock();
		left = deadline - steady_usecs();
		outcome = wait_outcome(record, found, clock, left);
		MemoryContextSwitchTo(caller);
		if (outcome != NULL)
		{
			idemkit_set_clock(record, clock);
			return outcome;
		}

		/* Neither past the deadline nor past the end of the lease, if it has one. */
		lease_until = DatumGetTimestampTz(record->values[IDEMKIT_LEASE_UNTIL]);
		if (!TIMESTAMP_IS_NOEND(lease_until))
			left = Min(left, lease_until + 1 - clock);
		idemkit_sleep(Min(sleep, left));
		sleep = Min(sleep * 2, LONGEST_SLEEP_USECS);
	}
}

/*
 * idemkit_wait(effective_key, timeout_seconds, records)
 *		RETURNS idemkit_wait_result
 *
 * Blocks this connection until the claim of a key has ended, or for
 * timeout_seconds.  Raises 22004, 22023; 25001 under REPEATABLE READ and
 * above, whose snapshot would never show the end.
 */
Datum
idemkit_wait(PG_FUNCTION_ARGS)
{
	text		 *key = idemkit_key_argument(fcinfo, 0);
	int64		  timeout = idemkit_duration_argument(fcinfo, 1, "timeout_seconds");
	IdemkitRecord record = {0};
	MemoryContext look;
	const char	 *outcome;
	Datum		  values[1 + IDEMKIT_RECORD_COLUMNS];
	bool		  nulls[1 + IDEMKIT_RECORD_COLUMNS];

	if (IsolationUsesXactSnapshot())
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_IN_TRANSACTION),
						errmsg("idemkit_wait cannot run under REPEATABLE READ or SERIALIZABLE"),
						errdetail("Its snapshot would not show the end of the claim.")));

	look = AllocSetContextCreate(CurrentMemoryContext, "idemkit look", ALLOCSET_SMALL_SIZES);
	outcome = wait_for_outcome(fcinfo, key, timeout, &record, look);

	values[0] = CStringGetTextDatum(outcome);
	nulls[0] = false;
	memcpy(&values[1], record.values, sizeof(record.values));
	if (strcmp(outcome, "absent") == 0)
		memset(&nulls[1], true, sizeof(record.nulls));
	else
		memcpy(&nulls[1], record.nulls, sizeof(record.nulls));
	PG_RETURN_DATUM(idemkit_form_result(fcinfo, values, nulls));
}
