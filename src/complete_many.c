/*
 * complete_many.c
 *		idemkit_complete_many: many completions in one statement.
 *
 * Rows are locked in key order, so crossing batches wait for each other and
 * never deadlock.
 */
#include "idemkit.h"

#include "catalog/pg_type.h"

PG_FUNCTION_INFO_V1(idemkit_complete_many);

/* Argument numbers */
enum
{
	ARG_KEYS,
	ARG_TOKENS,
	ARG_STATUSES,
	ARG_HEADERS,
	ARG_BODIES,
	ARG_EXPIRES_AFTER,
	ARG_RECORDS
};

/* Parameters of IDEMKIT_COMPLETE_MANY */
enum
{
	KEYS,
	TOKENS,
	COMPLETED_AT,
	LEASE_UNTIL,
	STATUSES,
	HEADERS,
	BODIES,
	POSITIONS,
	PARAMETERS
};

/*
 * An optional array, which must have as many elements as there are keys.
 */
static IdemkitArray
optional_argument(FunctionCallInfo fcinfo, int argno, const char *name, Oid type,
				  const IdemkitArray *keys)
{
	IdemkitArray array = idemkit_array_argument(fcinfo, argno, type);

	if (!PG_ARGISNULL(argno))
		idemkit_check_lengths(&array, name, keys);
	return array;
}

/*
 * Sets a parameter to an array's elements in key order, or to null for an
 * array that was not given.
 */
static void
set_parameter(Datum *parameter, char *null, const IdemkitArray *array, const int *order, int count,
			  Oid type)
{
	Datum *values;
	bool  *nulls;

	*null = array->values == NULL ? 'n' : ' ';
	if (array->values == NULL)
		return;
	values = palloc(count * sizeof(Datum));
	nulls = palloc(count * sizeof(bool));
	for (int i = 0; i < count; i++)
	{
		values[i] = array->values[order[i]];
		nulls[i] = array->nulls[order[i]];
	}
	*parameter = idemkit_form_array(values, nulls, count, type);
}

/*
 * Raises 22023 or 54000 for the first response that cannot be stored.
 */
static void
check_responses(const IdemkitArray *headers, const IdemkitArray *bodies, int count)
{
	for (int i = 0; i < count; i++)
	{
		bool headers_null = headers->values == NULL || headers->nulls[i];
		bool body_null = bodies->values == NULL || bodies->nulls[i];

		idemkit_check_response(headers_null ? (Datum) 0 : headers->values[i], headers_null,
							   body_null ? (Datum) 0 : bodies->values[i], body_null);
	}
}

/*
 * Drops from the order what repeats an earlier key and token: in turn, only the
 * first completes, and the statement must not choose.  Returns how many are left.
 */
static int
drop_repeated(int *order, const IdemkitArray *keys, const IdemkitArray *tokens)
{
	int count = 0;

	for (int i = 0; i < keys->count; i++)
	{
		int position = order[i];

		if (count == 0 ||
			idemkit_compare_keys(keys->values[order[count - 1]], keys->values[position]) != 0 ||
			idemkit_compare_keys(tokens->values[order[count - 1]], tokens->values[position]) != 0)
			order[count++] = position;
	}
	return count;
}

/*
 * Starts the retention of what this call completed again, at a later reading
 * of the clock.  Results that were there before are left alone.
 */
static void
restamp(IdemkitTable *table, const IdemkitArray *keys, const IdemkitArray *tokens, const int *order,
		int ordered, const bool *done, TimestampTz clock, int64 retention)
{
	Datum *done_keys = palloc(ordered * sizeof(Datum));
	Datum *done_tokens = palloc(ordered * sizeof(Datum));
	int	   count = 0;

	for (int i = 0; i < ordered; i++)
	{
		if (!done[order[i]])
			continue;
		done_keys[count] = keys->values[order[i]];
		done_tokens[count++] = tokens->values[order[i]];
	}
	if (count > 0)
	{
		Datum parameters[] = {
			idemkit_form_array(done_keys, NULL, count, TEXTOID),
			idemkit_form_array(done_tokens, NULL, count, TEXTOID),
			TimestampTzGetDatum(clock),
			TimestampTzGetDatum(clock + retention),
		};

		idemkit_execute(table, IDEMKIT_RESTAMP_RESULTS, parameters, NULL);
	}
}

/*
 * Runs the statement, notes by position what was completed, and announces it.
 */
static void
complete_batch(IdemkitTable *table, const IdemkitArray *keys, const Datum *parameters,
			   const char *nulls, bool *done)
{
	IdemkitResult result = idemkit_execute(table, IDEMKIT_COMPLETE_MANY, parameters, nulls);

	for (uint64 i = 0; i < result.count; i++)
	{
		int position = DatumGetInt32(idemkit_result_value(&result, i, 1));

		done[position] = true;
		idemkit_announce((text *) DatumGetPointer(keys->values[position]),
						 DatumGetBool(idemkit_result_value(&result, i, 2)));
	}
}

/*
 * idemkit_complete_many(effective_keys, claim_tokens, response_statuses,
 *						 response_headers, response_bodies,
 *						 expires_after_seconds, records) RETURNS SETOF boolean
 *
 * One row for each key, in the order given, each what idemkit_complete()
 * would have returned in turn.  Raises what that raises, and 22023 for arrays
 * of unequal length.
 */
Datum
idemkit_complete_many(PG_FUNCTION_ARGS)
{
	IdemkitArray keys = idemkit_keys_argument(fcinfo, ARG_KEYS);
	IdemkitArray tokens = idemkit_texts_argument(fcinfo, ARG_TOKENS, "claim_tokens");
	IdemkitArray statuses =
		optional_argument(fcinfo, ARG_STATUSES, "response_statuses", INT4OID, &keys);
	IdemkitArray headers =
		optional_argument(fcinfo, ARG_HEADERS, "response_headers", JSONBOID, &keys);
	IdemkitArray bodies = optional_argument(fcinfo, ARG_BODIES, "response_bodies", BYTEAOID, &keys);
	int64 retention = idemkit_duration_argument(fcinfo, ARG_EXPIRES_AFTER, "expires_after_seconds");
	IdemkitTable *table = idemkit_open_table(fcinfo, ARG_RECORDS);
	int			 *order;
	Datum		  parameters[PARAMETERS] = {0};
	char		  nulls[PARAMETERS];
	Datum		 *positions = palloc(Max(keys.count, 1) * sizeof(Datum));
	bool		 *done = palloc0(Max(keys.count, 1) * sizeof(bool));
	int			  count;
	TimestampTz	  clock;
	IdemkitRows	  rows;

	idemkit_check_lengths(&tokens, "claim_tokens", &keys);
	check_responses(&headers, &bodies, keys.count);
	idemkit_begin_rows(fcinfo, &rows);
	if (keys.count == 0)
		return (Datum) 0;

	order = idemkit_key_order(&keys, &tokens);
	count = drop_repeated(order, &keys, &tokens);
	memset(nulls, ' ', sizeof(nulls));
	set_parameter(&parameters[KEYS], &nulls[KEYS], &keys, order, count, TEXTOID);
	set_parameter(&parameters[TOKENS], &nulls[TOKENS], &tokens, order, count, TEXTOID);
	set_parameter(&parameters[STATUSES], &nulls[STATUSES], &statuses, order, count, INT4OID);
	set_parameter(&parameters[HEADERS], &nulls[HEADERS], &headers, order, count, JSONBOID);
	set_parameter(&parameters[BODIES], &nulls[BODIES], &bodies, order, count, BYTEAOID);
	for (int i = 0; i < count; i++)
		positions[i] = Int32GetDatum(order[i]);
	parameters[POSITIONS] = idemkit_form_array(positions, NULL, count, INT4OID);

	clock = idemkit_clock();
	parameters[COMPLETED_AT] = TimestampTzGetDatum(clock);
	parameters[LEASE_UNTIL] = TimestampTzGetDatum(clock + retention);
	complete_batch(table, &keys, parameters, nulls, done);
	if (idemkit_waited(clock, retention, &clock))
		restamp(table, &keys, &tokens, order, count, done, clock, retention);
	for (int i = 0; i < keys.count; i++)
	{
		Datum value = BoolGetDatum(done[i]);
		bool  isnull = false;

		idemkit_put_row(&rows, &value, &isnull);
	}
	return (Datum) 0;
}
