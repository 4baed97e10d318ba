/*
 * read.c
 *		idemkit_get: the stored row, as it stands.
 */
#include "idemkit.h"

PG_FUNCTION_INFO_V1(idemkit_get);

/*
 * idemkit_get(effective_key, records) RETURNS SETOF idemkit_record
 *
 * One row, or none.  The row is shown as it is stored, expired or not;
 * remaining_seconds is 0 for one that is over.  Raises 22004, 22023.
 */
Datum
idemkit_get(PG_FUNCTION_ARGS)
{
	text		 *key = idemkit_key_argument(fcinfo, 0);
	IdemkitRecord record;
	IdemkitRows	  rows;

	idemkit_begin_rows(fcinfo, &rows);
	if (idemkit_read_record(idemkit_open_table(fcinfo, 1), key, &record))
	{
		idemkit_set_clock(&record, idemkit_clock());
		idemkit_put_row(&rows, record.values, record.nulls);
	}
	return (Datum) 0;
}
