/*
 * record.h - from result rows to records
 */
#ifndef IDEMKIT_RECORD_H
#define IDEMKIT_RECORD_H

#include "idemkit.h"

/* What to select, in the order idemkit_record_fill() reads it. */
#define IDEMKIT_RECORD_COLUMNS                                                   \
	"effective_key, state, fingerprint, fingerprint_version, claim_token, "      \
	"claimed_at, lease_until, completed_at, response_status, response_headers, " \
	"response_body, attempts, remaining_seconds, fence"
#define IDEMKIT_RECORD_NCOLUMNS 14

/* An empty record with room for texts of that many bytes in all, or NULL. */
IdemkitRecord *idemkit_record_create(size_t text_bytes);

/*
 * Fill *record from a row in binary format whose record begins at column first.
 * *record is an empty record or NULL; it is made, or made anew, where there is
 * not room enough. On failure *record is as it was.
 */
IdemkitStatus idemkit_record_fill(IdemkitRecord **record, const PGresult *result, int row,
								  int first, IdemkitError *error);

#endif /* IDEMKIT_RECORD_H */
