/*
 * verbs.c - claim, complete, release, renew, get, wait: one call each
 */
#include "command.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What every verb here begins with and ends with. */
typedef struct Call
{
	PGconn		 *conn;
	IdemkitError *error;
	char		 *token; /* NULL where the verb takes none */
} Call;

static int
begin_call(Call *call, const Options *options, bool with_token)
{
	int status = EX_OK;

	*call = (Call){NULL, NULL, NULL};
	if (with_token)
	{
		status = read_token(options, &call->token);
		if (status != EX_OK)
			return status;
	}
	call->error = idemkit_error_create();
	if (call->error == NULL)
	{
		say("out of memory");
		return EX_OSERR;
	}
	call->conn = open_connection(options, &status);
	return status;
}

static int
end_call(Call *call, int status)
{
	PQfinish(call->conn);
	idemkit_error_free(call->error);
	free(call->token);
	return status;
}

/*
 * The end of complete, release and renew: a claim that is not held is an answer,
 * and the exit status for it.
 */
static int
end_answer(Call *call, const Options *options, const char *name, bool answer)
{
	print_answer(options, name, answer);
	if (!answer)
		say("the claim is not held with this token");
	return end_call(call, answer ? EX_OK : EX_FALSE);
}

static void
print_claim(const IdemkitClaim *claim, const Options *options)
{
	Json json;

	if (!options->json)
	{
		if (idemkit_claim_our_token(claim) != NULL)
			printf("%s\n", idemkit_claim_our_token(claim));
		return;
	}
	json_begin(&json, stdout);
	json_text(&json, "result", idemkit_verdict_name(idemkit_claim_verdict(claim)));
	json_text(&json, "our_claim_token", idemkit_claim_our_token(claim));
	json_bool(&json, "recovered_from_corrupt", idemkit_claim_recovered_from_corrupt(claim));
	json_bool(&json, "fingerprint_matches", idemkit_claim_fingerprint_matches(claim));
	print_record_json(&json, idemkit_claim_record(claim));
	json_end(&json);
}

/*
 * The exit status for a verdict, and a word where the claim was not won.
 */
static int
verdict_status(const IdemkitClaim *claim)
{
	IdemkitVerdict verdict = idemkit_claim_verdict(claim);

	if (idemkit_claim_our_token(claim) != NULL)
		return EX_OK;
	if (!idemkit_claim_fingerprint_matches(claim))
	{
		say("%s, with another fingerprint", idemkit_verdict_name(verdict));
		return EX_DATAERR;
	}
	say("%s", idemkit_verdict_name(verdict));
	return verdict == IDEMKIT_ALREADY_COMPLETED ? EX_FALSE : EX_TEMPFAIL;
}

int
verb_claim(const Options *options)
{
	Call		  call;
	IdemkitClaim *claim = NULL;
	int			  status = begin_call(&call, options, false);

	if (status != EX_OK)
		return end_call(&call, status);
	if (idemkit_claim(call.conn, options->key, options->fingerprint,
					  (int32_t) options->fingerprint_version, options->lease, !options->no_reclaim,
					  options->table, &claim, call.error) != IDEMKIT_OK)
		return end_call(&call, say_error("cannot claim", call.error));
	print_claim(claim, options);
	status = verdict_status(claim);
	idemkit_claim_free(claim);
	return end_call(&call, status);
}

int
verb_complete(const Options *options)
{
	Call		  call;
	char		 *body = NULL;
	size_t		  length = 0;
	int32_t		  code = (int32_t) options->status;
	bool		  completed;
	IdemkitStatus result;
	int			  status = EX_OK;

	if (options->body_file != NULL)
		status = read_input(options->body_file, &body, &length);
	if (status != EX_OK)
		return status;
	status = begin_call(&call, options, true);
	if (status != EX_OK)
	{
		free(body);
		return end_call(&call, status);
	}
	result = idemkit_complete(
		call.conn, options->key, call.token, options->status == NO_STATUS ? NULL : &code,
		options->headers, body, length,
		isnan(options->expires_after) ? DEFAULT_EXPIRES_AFTER : options->expires_after,
		options->table, &completed, call.error);
	free(body);
	if (result != IDEMKIT_OK)
		return end_call(&call, say_error("cannot complete", call.error));
	return end_answer(&call, options, "completed", completed);
}

int
verb_release(const Options *options)
{
	Call call;
	bool released;
	int	 status = begin_call(&call, options, true);

	if (status != EX_OK)
		return end_call(&call, status);
	if (idemkit_release(call.conn, options->key, call.token, options->keep_attempts, options->table,
						&released, call.error) != IDEMKIT_OK)
		return end_call(&call, say_error("cannot release", call.error));
	return end_answer(&call, options, "released", released);
}

int
verb_renew(const Options *options)
{
	Call call;
	bool renewed;
	int	 status = begin_call(&call, options, true);

	if (status != EX_OK)
		return end_call(&call, status);
	if (idemkit_renew(call.conn, options->key, call.token, options->lease, options->table, &renewed,
					  call.error) != IDEMKIT_OK)
		return end_call(&call, say_error("cannot renew", call.error));
	return end_answer(&call, options, "renewed", renewed);
}

/*
 * A record in the form asked for; outcome is what wait adds to the JSON, or NULL.
 */
static void
print_record(const Options *options, const char *outcome, const IdemkitRecord *record)
{
	Json		json;
	size_t		length;
	const void *body;

	if (options->json)
	{
		json_begin(&json, stdout);
		if (outcome != NULL)
			json_text(&json, "outcome", outcome);
		if (record != NULL)
			print_record_json(&json, record);
		json_end(&json);
	}
	else if (record != NULL && options->body)
	{
		body = idemkit_record_response_body(record, &length);
		if (body != NULL)
			fwrite(body, 1, length, stdout);
	}
	else if (record != NULL)
		print_record_lines(record);
}

int
verb_get(const Options *options)
{
	Call				 call;
	const IdemkitRecord *record;
	int					 status = begin_call(&call, options, false);

	if (status != EX_OK)
		return end_call(&call, status);
	if (idemkit_get(call.conn, options->key, options->table, &record, call.error) != IDEMKIT_OK)
		return end_call(&call, say_error("cannot read the record", call.error));
	if (record == NULL)
	{
		say("there is no record of this key");
		return end_call(&call, EX_FALSE);
	}
	print_record(options, NULL, record);
	if (options->body && idemkit_record_response_body(record, NULL) == NULL)
	{
		say("the record has no body");
		status = EX_FALSE;
	}
	idemkit_record_free(record);
	return end_call(&call, status);
}

/*
 * The exit status for how a wait ended, and a word where not with a result.
 */
static int
outcome_status(const Options *options, IdemkitOutcome outcome, const IdemkitRecord *record,
			   const IdemkitError *error)
{
	switch (outcome)
	{
		case IDEMKIT_OUTCOME_COMPLETED:
			if (!options->body || idemkit_record_response_body(record, NULL) != NULL)
				return EX_OK;
			say("the record has no body");
			return EX_FALSE;
		case IDEMKIT_OUTCOME_TIMEOUT:
			if (idemkit_error_status(error) != IDEMKIT_OK)
				return say_error("timeout", error);
			say("timeout");
			return EX_TEMPFAIL;
		default:
			say("%s", idemkit_outcome_name(outcome));
			return EX_FALSE;
	}
}

static IdemkitSharedWaiter *
create_waiter(const Options *options, IdemkitError *error)
{
	IdemkitWaiterOptions *settings = idemkit_waiter_options_create();
	IdemkitSharedWaiter	 *waiter = NULL;
	IdemkitStatus		  status = settings != NULL
									   ? idemkit_waiter_options_set_records(settings, options->table)
									   : IDEMKIT_ERROR_MEMORY;

	if (status == IDEMKIT_OK)
		status = idemkit_shared_waiter_create(options->conninfo, settings, &waiter, error);
	if (status == IDEMKIT_ERROR_MEMORY)
		say("out of memory");
	idemkit_waiter_options_free(settings);
	return waiter;
}

int
verb_wait(const Options *options)
{
	IdemkitError		*error = idemkit_error_create();
	IdemkitSharedWaiter *waiter = error != NULL ? create_waiter(options, error) : NULL;
	IdemkitOutcome		 outcome;
	const IdemkitRecord *record = NULL;
	int					 status;

	if (waiter == NULL)
		status = EX_OSERR;
	else if (idemkit_shared_wait(waiter, options->key, options->timeout, &outcome, &record,
								 error) != IDEMKIT_OK)
		status = say_error("cannot wait", error);
	else
	{
		/* without JSON only a result is worth printing */
		if (options->json || outcome == IDEMKIT_OUTCOME_COMPLETED)
			print_record(options, idemkit_outcome_name(outcome), record);
		status = outcome_status(options, outcome, record, error);
	}
	idemkit_record_free(record);
	idemkit_shared_waiter_destroy(waiter);
	idemkit_error_free(error);
	return status;
}
