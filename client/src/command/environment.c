/*
 * environment.c - the environment of the command
 */
#include "run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is set, in this order; of these names nothing is inherited. */
static const char *const names[] = {"IDEMKIT_KEY=", TOKEN_VARIABLE "=",
									"IDEMKIT_FENCE=", "IDEMKIT_ATTEMPTS="};

#define NAMES (sizeof(names) / sizeof(names[0]))

/*
 * The environment with what the command may want to know about its claim: the
 * token lets it call idemkit_guard(), the fence is for systems beside the
 * database. NULL when out of memory.
 */
char **
environment_create(const IdemkitClaim *claim, const Options *options)
{
	const IdemkitRecord *record = idemkit_claim_record(claim);
	size_t				 n = 0;
	char			   **environment;

	while (environ[n] != NULL)
		n++;
	environment = calloc(n + NAMES + 1, sizeof(char *));
	if (environment == NULL)
		return NULL;
	n = NAMES;
	for (char **variable = environ; *variable != NULL; variable++)
	{
		bool ours = false;

		for (size_t i = 0; i < NAMES; i++)
			ours |= strncmp(*variable, names[i], strlen(names[i])) == 0;
		if (!ours)
			environment[n++] = *variable;
	}
	if (asprintf(&environment[0], "%s%s", names[0], options->key) >= 0 &&
		asprintf(&environment[1], "%s%s", names[1], idemkit_claim_our_token(claim)) >= 0 &&
		asprintf(&environment[2], "%s%lld", names[2], (long long) idemkit_record_fence(record)) >=
			0 &&
		asprintf(&environment[3], "%s%d", names[3], (int) idemkit_record_attempts(record)) >= 0)
		return environment;
	free(environment);
	return NULL;
}

void
environment_free(char **environment)
{
	for (size_t i = 0; environment != NULL && i < NAMES; i++)
		free(environment[i]);
	free(environment);
}
