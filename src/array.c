/*
 * array.c
 *		Array arguments, and arrays as parameters of statements.
 */
#include "idemkit.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

/*
 * The elements of an array argument, read row by row if it has more than one
 * dimension.  An array that is null has none.
 */
IdemkitArray
idemkit_array_argument(FunctionCallInfo fcinfo, int argno, Oid type)
{
	IdemkitArray array = {0};
	int16		 length;
	bool		 byval;
	char		 align;

	if (PG_ARGISNULL(argno))
		return array;
	get_typlenbyvalalign(type, &length, &byval, &align);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(argno), type, length, byval, align, &array.values,
					  &array.nulls, &array.count);
	return array;
}

/*
 * The elements of a text array.  Raises 22004 if it or one of them is null.
 */
IdemkitArray
idemkit_texts_argument(FunctionCallInfo fcinfo, int argno, const char *name)
{
	IdemkitArray array;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_NULL_ARGUMENT), errmsg("%s must not be null", name)));
	array = idemkit_array_argument(fcinfo, argno, TEXTOID);
	for (int i = 0; i < array.count; i++)
	{
		if (array.nulls[i])
			ereport(ERROR, (errcode(IDEMKIT_ERRCODE_NULL_ARGUMENT),
							errmsg("element %d of %s must not be null", i + 1, name)));
	}
	return array;
}

/*
 * The argument effective_keys.  Raises 22004 for nulls, 22023 for a key that
 * is empty or too long.
 */
IdemkitArray
idemkit_keys_argument(FunctionCallInfo fcinfo, int argno)
{
	IdemkitArray keys = idemkit_texts_argument(fcinfo, argno, "effective_keys");

	for (int i = 0; i < keys.count; i++)
	{
		/* Unpacked once, because keys are compared many times. */
		keys.values[i] = PointerGetDatum(DatumGetTextPP(keys.values[i]));
		idemkit_check_key((text *) DatumGetPointer(keys.values[i]));
	}
	return keys;
}

/*
 * Raises 22023 unless an array has as many elements as there are keys.
 */
void
idemkit_check_lengths(const IdemkitArray *array, const char *name, const IdemkitArray *keys)
{
	if (array->count != keys->count)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT),
						errmsg("%s must have as many elements as effective_keys", name),
						errdetail("It has %d, effective_keys has %d.", array->count, keys->count)));
}

/*
 * Compares two keys by their bytes, as the index of a records table does.
 */
int
idemkit_compare_keys(Datum a, Datum b)
{
	text *left = (text *) DatumGetPointer(a);
	text *right = (text *) DatumGetPointer(b);
	int	  left_length = VARSIZE_ANY_EXHDR(left);
	int	  right_length = VARSIZE_ANY_EXHDR(right);
	int	  result = memcmp(VARDATA_ANY(left), VARDATA_ANY(right), Min(left_length, right_length));

	return result != 0 ? result : left_length - right_length;
}

/* What positions are ordered by */
typedef struct Order
{
	const IdemkitArray *keys;
	const IdemkitArray *tokens; /* or NULL */
} Order;

/*
 * Orders positions by their keys, equal keys by their tokens, and equal tokens
 * by position.
 */
static int
compare_positions(const void *a, const void *b, void *arg)
{
	const Order *by = arg;
	int			 left = *(const int *) a;
	int			 right = *(const int *) b;
	int			 result = idemkit_compare_keys(by->keys->values[left], by->keys->values[right]);

	if (result == 0 && by->tokens != NULL)
		result = idemkit_compare_keys(by->tokens->values[left], by->tokens->values[right]);
	return result != 0 ? result : left - right;
}

/*
 * The positions of the keys, in key order.  "tokens", where not NULL, brings
 * equal tokens of a key together.
 */
int *
idemkit_key_order(const IdemkitArray *keys, const IdemkitArray *tokens)
{
	Order by = {keys, tokens};
	int	 *order = palloc(Max(keys->count, 1) * sizeof(int));

	for (int i = 0; i < keys->count; i++)
		order[i] = i;
	qsort_arg(order, keys->count, sizeof(int), compare_positions, &by);
	return order;
}

/*
 * An array to pass to a statement.  "nulls" may be NULL.
 */
Datum
idemkit_form_array(const Datum *values, const bool *nulls, int count, Oid type)
{
	int	  dims[1] = {count};
	int	  lower_bounds[1] = {1};
	int16 length;
	bool  byval;
	char  align;

	get_typlenbyvalalign(type, &length, &byval, &align);
	return PointerGetDatum(construct_md_array((Datum *) values, (bool *) nulls, 1, dims,
											  lower_bounds, type, length, byval, align));
}
