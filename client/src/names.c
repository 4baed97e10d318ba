/*
 * names.c - version, and words for the public enumerators
 */
#include "idemkit.h"

int
idemkit_version(void)
{
	return IDEMKIT_VERSION_MAJOR * 10000 + IDEMKIT_VERSION_MINOR * 100 + IDEMKIT_VERSION_PATCH;
}

const char *
idemkit_status_text(IdemkitStatus status)
{
	switch (status)
	{
		case IDEMKIT_OK:
			return "no error";
		case IDEMKIT_ERROR_MEMORY:
			return "out of memory";
		case IDEMKIT_ERROR_ARGUMENT:
			return "invalid argument";
		case IDEMKIT_ERROR_CONNECTION:
			return "connection failed";
		case IDEMKIT_ERROR_SERVER:
			return "server reported an error";
		case IDEMKIT_ERROR_CLAIM_LOST:
			return "claim is no longer held";
		case IDEMKIT_ERROR_PROTOCOL:
			return "unexpected answer from server";
		case IDEMKIT_ERROR_BUSY:
			return "object is in use";
		case IDEMKIT_ERROR_CLOSED:
			return "waiter is being destroyed";
		case IDEMKIT_ERROR_SYSTEM:
			return "operating system error";
		case IDEMKIT_ERROR_NOT_FOUND:
			return "no such wait";
		default:
			return "unknown status";
	}
}

const char *
idemkit_state_name(IdemkitState state)
{
	switch (state)
	{
		case IDEMKIT_STATE_CLAIMED:
			return "CLAIMED";
		case IDEMKIT_STATE_COMPLETED:
			return "COMPLETED";
		default:
			return "UNKNOWN";
	}
}

const char *
idemkit_verdict_name(IdemkitVerdict verdict)
{
	switch (verdict)
	{
		case IDEMKIT_NEW_CLAIMED:
			return "new_claimed";
		case IDEMKIT_LEASE_RECLAIMED:
			return "lease_reclaimed";
		case IDEMKIT_LEASE_LAPSED:
			return "lease_lapsed";
		case IDEMKIT_ALREADY_CLAIMED:
			return "already_claimed";
		case IDEMKIT_ALREADY_COMPLETED:
			return "already_completed";
		default:
			return "unknown";
	}
}

const char *
idemkit_outcome_name(IdemkitOutcome outcome)
{
	switch (outcome)
	{
		case IDEMKIT_OUTCOME_COMPLETED:
			return "completed";
		case IDEMKIT_OUTCOME_ABSENT:
			return "absent";
		case IDEMKIT_OUTCOME_LAPSED:
			return "lapsed";
		case IDEMKIT_OUTCOME_TIMEOUT:
			return "timeout";
		case IDEMKIT_OUTCOME_ERROR:
			return "error";
		case IDEMKIT_OUTCOME_CLOSED:
			return "closed";
		default:
			return "unknown";
	}
}
