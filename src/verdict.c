/*
 * verdict.c
 *		The state a stored row is in.
 *
 * Expiry is judged here and nowhere else: a row whose lease_until lies before
 * the clock is over, whether or not anything has removed it.
 */
#include "idemkit.h"

#include "utils/jsonb.h"

/*
 * Is a text value this word?
 */
static bool
is_word(Datum value, const char *word)
{
	text *stored = DatumGetTextPP(value);
	Size  length = strlen(word);

	return VARSIZE_ANY_EXHDR(stored) == length && memcmp(VARDATA_ANY(stored), word, length) == 0;
}

/*
 * Is a jsonb value an object?  Only its first word is looked at, so that
 * large headers need not be fetched from TOAST for it.
 */
bool
idemkit_is_object(Datum headers)
{
	struct varlena *start = PG_DETOAST_DATUM_SLICE(headers, 0, sizeof(JsonbContainer));
	uint32			header;

	memcpy(&header, VARDATA_ANY(start), sizeof(header));
	return (header & JB_FOBJECT) != 0;
}

/*
 * Is the row a claim, live or not?
 */
bool
idemkit_is_claimed(const IdemkitRecord *record)
{
	return is_word(record->values[IDEMKIT_STATE], "CLAIMED");
}

/*
 * Is the row a result, live or not?
 */
bool
idemkit_is_completed(const IdemkitRecord *record)
{
	return is_word(record->values[IDEMKIT_STATE], "COMPLETED");
}

/*
 * What a row of a state other than CLAIMED and COMPLETED, a result without a
 * time of completion, headers that are no object and a row of an unknown
 * layout have in common: nothing in them can be trusted.
 */
static bool
is_corrupt(const IdemkitRecord *record, bool completed)
{
	if (!completed && !idemkit_is_claimed(record))
		return true;
	if (completed && record->nulls[IDEMKIT_COMPLETED_AT])
		return true;
	if (!record->nulls[IDEMKIT_RESPONSE_HEADERS] &&
		!idemkit_is_object(record->values[IDEMKIT_RESPONSE_HEADERS]))
		return true;
	return record->schema_version != IDEMKIT_SCHEMA_VERSION;
}

/*
 * Judges a row by a reading of the clock.
 */
IdemkitCondition
idemkit_judge(const IdemkitRecord *record, TimestampTz clock)
{
	bool completed = idemkit_is_completed(record);
	bool over = DatumGetTimestampTz(record->values[IDEMKIT_LEASE_UNTIL]) < clock;

	if (is_corrupt(record, completed))
		return IDEMKIT_CORRUPT;
	if (completed)
		return over ? IDEMKIT_EXPIRED_RESULT : IDEMKIT_LIVE_RESULT;
	return over ? IDEMKIT_LAPSED_CLAIM : IDEMKIT_LIVE_CLAIM;
}
