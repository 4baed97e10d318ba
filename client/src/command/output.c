/*
 * output.c - records and answers, as lines or as JSON
 *
 * A claim token is what its holder completes the claim with: records are printed
 * without it, so that a log of them hands nothing to its readers.
 */
#include "command.h"

#include <string.h>
#include <time.h>

/* Room for a time as written by format_time(). */
#define TIME_ROOM 64

/*
 * Microseconds since 1970 in ISO 8601, UTC. NULL where the year has no name.
 */
static const char *
format_time(int64_t micros, char *text)
{
	int64_t	  fraction = micros % 1000000;
	time_t	  seconds;
	struct tm tm;
	size_t	  n;

	if (fraction < 0)
		fraction += 1000000;
	seconds = (time_t) ((micros - fraction) / 1000000);
	if (gmtime_r(&seconds, &tm) == NULL)
		return NULL;
	n = strftime(text, TIME_ROOM, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text + n, TIME_ROOM - n, ".%06dZ", (int) fraction);
	return text;
}

void
print_record_json(Json *json, const IdemkitRecord *record)
{
	char		time[TIME_ROOM];
	int64_t		completed_at;
	int32_t		status;
	size_t		length;
	const void *body = idemkit_record_response_body(record, &length);

	json_text(json, "effective_key", idemkit_record_effective_key(record));
	json_text(json, "state", idemkit_state_name(idemkit_record_state(record)));
	json_text(json, "fingerprint", idemkit_record_fingerprint(record));
	json_int(json, "fingerprint_version", idemkit_record_fingerprint_version(record));
	json_text(json, "claimed_at", format_time(idemkit_record_claimed_at(record), time));
	json_text(json, "lease_until", format_time(idemkit_record_lease_until(record), time));
	if (idemkit_record_completed_at(record, &completed_at))
		json_text(json, "completed_at", format_time(completed_at, time));
	else
		json_null(json, "completed_at");
	if (idemkit_record_response_status(record, &status))
		json_int(json, "response_status", status);
	else
		json_null(json, "response_status");
	json_raw(json, "response_headers", idemkit_record_response_headers(record));
	json_base64(json, "response_body_base64", body, length);
	json_int(json, "attempts", idemkit_record_attempts(record));
	json_double(json, "remaining_seconds", idemkit_record_remaining_seconds(record));
	json_int(json, "fence", idemkit_record_fence(record));
}

static void
print_line(const char *name, const char *value)
{
	printf("%s: %s\n", name, value != NULL ? value : "");
}

void
print_record_lines(const IdemkitRecord *record)
{
	char		time[TIME_ROOM];
	int64_t		completed_at;
	int32_t		status;
	size_t		length;
	const void *body = idemkit_record_response_body(record, &length);

	print_line("effective_key", idemkit_record_effective_key(record));
	print_line("state", idemkit_state_name(idemkit_record_state(record)));
	print_line("fingerprint", idemkit_record_fingerprint(record));
	printf("fingerprint_version: %d\n", (int) idemkit_record_fingerprint_version(record));
	print_line("claimed_at", format_time(idemkit_record_claimed_at(record), time));
	print_line("lease_until", format_time(idemkit_record_lease_until(record), time));
	if (idemkit_record_completed_at(record, &completed_at))
		print_line("completed_at", format_time(completed_at, time));
	if (idemkit_record_response_status(record, &status))
		printf("response_status: %d\n", (int) status);
	if (idemkit_record_response_headers(record) != NULL)
		print_line("response_headers", idemkit_record_response_headers(record));
	if (body != NULL)
		printf("response_body: %zu bytes\n", length);
	printf("attempts: %d\n", (int) idemkit_record_attempts(record));
	printf("remaining_seconds: %.6f\n", idemkit_record_remaining_seconds(record));
	printf("fence: %lld\n", (long long) idemkit_record_fence(record));
}

void
print_answer(const Options *options, const char *name, bool value)
{
	Json json;

	if (!options->json)
		return;
	json_begin(&json, stdout);
	json_bool(&json, name, value);
	json_end(&json);
}

/*
 * A column as JSON. Numbers stay numbers, which NaN and the infinities are not
 * in JSON.
 */
static void
print_column_json(Json *json, const PGresult *result, int column)
{
	const char *name = PQfname(result, column);
	const char *value = PQgetvalue(result, 0, column);

	if (PQgetisnull(result, 0, column))
	{
		json_null(json, name);
		return;
	}
	switch (PQftype(result, column))
	{
		case 16: /* boolean */
			json_bool(json, name, value[0] == 't');
			break;
		case 20:   /* bigint */
		case 21:   /* smallint */
		case 23:   /* integer */
		case 700:  /* real */
		case 701:  /* double precision */
		case 1700: /* numeric */
			if (strspn(value, "0123456789+-.e") == strlen(value))
			{
				json_raw(json, name, value);
				break;
			}
			/* FALLTHROUGH */
		default:
			json_text(json, name, value);
			break;
	}
}

void
print_row(const Options *options, const PGresult *result)
{
	Json json;

	if (PQntuples(result) < 1)
		return;
	if (options->json)
		json_begin(&json, stdout);
	for (int column = 0; column < PQnfields(result); column++)
	{
		if (options->json)
			print_column_json(&json, result, column);
		else
			print_line(PQfname(result, column), PQgetvalue(result, 0, column));
	}
	if (options->json)
		json_end(&json);
}
