/*
 * record.c - records: one block of memory each, counted by reference
 *
 * The texts and the body lie behind the struct in the same block. Only the count
 * of references ever changes once a record has been handed out.
 */
#include <limits.h>
#include <stdatomic.h>
#include <string.h>

#include "alloc.h"
#include "error.h"
#include "record.h"
#include "wire.h"

/* 2000-01-01, PostgreSQL's epoch, in microseconds since 1970-01-01 */
#define POSTGRES_EPOCH_US INT64_C(946684800000000)

struct IdemkitRecord
{
	atomic_uint	 references;
	IdemkitState state;
	int32_t		 fingerprint_version;
	int32_t		 response_status;
	int32_t		 attempts;
	bool		 has_completed_at;
	bool		 has_response_status;
	int64_t		 claimed_at;
	int64_t		 lease_until;
	int64_t		 completed_at;
	int64_t		 fence;
	double		 remaining_seconds;
	const char	*effective_key;
	const char	*fingerprint;
	const char	*claim_token;
	const char	*response_headers;
	const char	*response_body;
	size_t		 response_body_length;
	size_t		 room; /* bytes in texts[] */
	char		 texts[];
};

/* One value of a row: NULL, or length bytes. */
typedef struct Field
{
	const char *value;
	int			length;
} Field;

enum
{
	COLUMN_EFFECTIVE_KEY,
	COLUMN_STATE,
	COLUMN_FINGERPRINT,
	COLUMN_FINGERPRINT_VERSION,
	COLUMN_CLAIM_TOKEN,
	COLUMN_CLAIMED_AT,
	COLUMN_LEASE_UNTIL,
	COLUMN_COMPLETED_AT,
	COLUMN_RESPONSE_STATUS,
	COLUMN_RESPONSE_HEADERS,
	COLUMN_RESPONSE_BODY,
	COLUMN_ATTEMPTS,
	COLUMN_REMAINING_SECONDS,
	COLUMN_FENCE
};

/* The length of a column's binary form; 0: any, negative: at least one. */
static const int column_lengths[IDEMKIT_RECORD_NCOLUMNS] = {
	0, 0, 0, 4, 0, 8, 8, 8, 4, -1, 0, 4, 8, 8,
};

/* Columns that the contract allows to be NULL. */
static const bool column_nullable[IDEMKIT_RECORD_NCOLUMNS] = {
	[COLUMN_COMPLETED_AT] = true,
	[COLUMN_RESPONSE_STATUS] = true,
	[COLUMN_RESPONSE_HEADERS] = true,
	[COLUMN_RESPONSE_BODY] = true,
};

IdemkitRecord *
idemkit_record_create(size_t text_bytes)
{
	IdemkitRecord *record;

	if (text_bytes > SIZE_MAX / 2)
		return NULL;
	record = idemkit_mem_alloc(offsetof(IdemkitRecord, texts) + text_bytes);
	if (record == NULL)
		return NULL;
	memset(record, 0, sizeof(*record));
	atomic_init(&record->references, 1);
	record->room = text_bytes;
	return record;
}

const IdemkitRecord *
idemkit_record_ref(const IdemkitRecord *record)
{
	if (record != NULL)
		atomic_fetch_add_explicit(&((IdemkitRecord *) (uintptr_t) record)->references, 1,
								  memory_order_relaxed);
	return record;
}

void
idemkit_record_free(const IdemkitRecord *record)
{
	if (record == NULL)
		return;
	if (atomic_fetch_sub_explicit(&((IdemkitRecord *) (uintptr_t) record)->references, 1,
								  memory_order_acq_rel) == 1)
		idemkit_mem_free(record);
}

static IdemkitStatus
set_malformed(IdemkitError *error)
{
	return idemkit_error_set(error, IDEMKIT_ERROR_PROTOCOL,
							 "record from server has an unexpected form");
}

/*
 * Point fields at the values of a row, having checked their lengths. Returns the
 * room their texts need, or 0 where something is not as it should be.
 */
static size_t
take_fields(Field *fields, const PGresult *result, int row, int first)
{
	size_t room = 1;

	if (PQnfields(result) < first + IDEMKIT_RECORD_NCOLUMNS)
		return 0;
	for (int i = 0; i < IDEMKIT_RECORD_NCOLUMNS; i++)
	{
		int	 column = first + i;
		int	 wanted = column_lengths[i];
		bool null = PQgetisnull(result, row, column) != 0;

		fields[i].value = null ? NULL : PQgetvalue(result, row, column);
		fields[i].length = PQgetlength(result, row, column);
		if (PQfformat(result, column) != 1 || (null && !column_nullable[i]))
			return 0;
		if (null)
			continue;
		if ((wanted > 0 && fields[i].length != wanted) || fields[i].length < (wanted < 0 ? 1 : 0))
			return 0;
		if (wanted <= 0)
			room += (size_t) fields[i].length + 1;
	}
	return room;
}

/*
 * Copy a text with a NUL behind it; *to moves on. NULL stays NULL.
 */
static const char *
store(char **to, const char *value, int length)
{
	char *copy = *to;

	if (value == NULL)
		return NULL;
	memcpy(copy, value, (size_t) length);
	copy[length] = '\0';
	*to += length + 1;
	return copy;
}

static int64_t
take_time(const char *value)
{
	int64_t time = (int64_t) idemkit_take_int8(value);

	/* the extremes are infinity, and stay extremes */
	if (time == INT64_MIN || time > INT64_MAX - POSTGRES_EPOCH_US)
		return time;
	return time + POSTGRES_EPOCH_US;
}

static IdemkitState
take_state(const Field *field)
{
	if (field->length == 7 && memcmp(field->value, "CLAIMED", 7) == 0)
		return IDEMKIT_STATE_CLAIMED;
	if (field->length == 9 && memcmp(field->value, "COMPLETED", 9) == 0)
		return IDEMKIT_STATE_COMPLETED;
	return IDEMKIT_STATE_UNKNOWN;
}

static void
fill_numbers(IdemkitRecord *record, const Field *fields)
{
	record->state = take_state(&fields[COLUMN_STATE]);
	record->fingerprint_version =
		(int32_t) idemkit_take_int4(fields[COLUMN_FINGERPRINT_VERSION].value);
	record->attempts = (int32_t) idemkit_take_int4(fields[COLUMN_ATTEMPTS].value);
	record->claimed_at = take_time(fields[COLUMN_CLAIMED_AT].value);
	record->lease_until = take_time(fields[COLUMN_LEASE_UNTIL].value);
	record->fence = (int64_t) idemkit_take_int8(fields[COLUMN_FENCE].value);
	record->remaining_seconds = idemkit_take_float8(fields[COLUMN_REMAINING_SECONDS].value);
	if (fields[COLUMN_COMPLETED_AT].value != NULL)
	{
		record->has_completed_at = true;
		record->completed_at = take_time(fields[COLUMN_COMPLETED_AT].value);
	}
	if (fields[COLUMN_RESPONSE_STATUS].value != NULL)
	{
		record->has_response_status = true;
		record->response_status = (int32_t) idemkit_take_int4(fields[COLUMN_RESPONSE_STATUS].value);
	}
}

static void
fill_texts(IdemkitRecord *record, const Field *fields)
{
	char		*to = record->texts;
	const Field *headers = &fields[COLUMN_RESPONSE_HEADERS];
	const Field *body = &fields[COLUMN_RESPONSE_BODY];

	record->effective_key =
		store(&to, fields[COLUMN_EFFECTIVE_KEY].value, fields[COLUMN_EFFECTIVE_KEY].length);
	record->fingerprint =
		store(&to, fields[COLUMN_FINGERPRINT].value, fields[COLUMN_FINGERPRINT].length);
	record->claim_token =
		store(&to, fields[COLUMN_CLAIM_TOKEN].value, fields[COLUMN_CLAIM_TOKEN].length);
	if (headers->value != NULL)
		/* jsonb's binary form is a version byte and the text */
		record->response_headers = store(&to, headers->value + 1, headers->length - 1);
	record->response_body = store(&to, body->value, body->length);
	record->response_body_length = body->value != NULL ? (size_t) body->length : 0;
}

IdemkitStatus
idemkit_record_fill(IdemkitRecord **record, const PGresult *result, int row, int first,
					IdemkitError *error)
{
	Field  fields[IDEMKIT_RECORD_NCOLUMNS];
	size_t room = take_fields(fields, result, row, first);

	if (room == 0)
		return set_malformed(error);
	if (fields[COLUMN_RESPONSE_HEADERS].value != NULL &&
		fields[COLUMN_RESPONSE_HEADERS].value[0] != 1)
		return set_malformed(error);
	if (*record == NULL || (*record)->room < room)
	{
		IdemkitRecord *larger = idemkit_record_create(room);

		if (larger == NULL)
			return idemkit_error_set_memory(error);
		idemkit_record_free(*record);
		*record = larger;
	}
	fill_numbers(*record, fields);
	fill_texts(*record, fields);
	return IDEMKIT_OK;
}

const char *
idemkit_record_effective_key(const IdemkitRecord *record)
{
	return record->effective_key;
}

IdemkitState
idemkit_record_state(const IdemkitRecord *record)
{
	return record->state;
}

const char *
idemkit_record_fingerprint(const IdemkitRecord *record)
{
	return record->fingerprint;
}

int32_t
idemkit_record_fingerprint_version(const IdemkitRecord *record)
{
	return record->fingerprint_version;
}

const char *
idemkit_record_claim_token(const IdemkitRecord *record)
{
	return record->claim_token;
}

int64_t
idemkit_record_claimed_at(const IdemkitRecord *record)
{
	return record->claimed_at;
}

int64_t
idemkit_record_lease_until(const IdemkitRecord *record)
{
	return record->lease_until;
}

bool
idemkit_record_completed_at(const IdemkitRecord *record, int64_t *value)
{
	if (record->has_completed_at)
		*value = record->completed_at;
	return record->has_completed_at;
}

bool
idemkit_record_response_status(const IdemkitRecord *record, int32_t *value)
{
	if (record->has_response_status)
		*value = record->response_status;
	return record->has_response_status;
}

const char *
idemkit_record_response_headers(const IdemkitRecord *record)
{
	return record->response_headers;
}

const void *
idemkit_record_response_body(const IdemkitRecord *record, size_t *length)
{
	if (length != NULL)
		*length = record->response_body_length;
	return record->response_body;
}

int32_t
idemkit_record_attempts(const IdemkitRecord *record)
{
	return record->attempts;
}

double
idemkit_record_remaining_seconds(const IdemkitRecord *record)
{
	return record->remaining_seconds;
}

int64_t
idemkit_record_fence(const IdemkitRecord *record)
{
	return record->fence;
}
