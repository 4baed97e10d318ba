/*
 * main.c - the command idemkit: which verb, and the process around it
 */
#include "command.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const Verb verbs[] = {
	{"run", VERB_RUN, verb_run, true, "[--] COMMAND [ARGUMENT...]",
	 "run a command once, and give its output to every duplicate",
	 "Claims KEY and runs COMMAND, without a shell, renewing the lease until it ends.\n"
	 "Its standard output and exit status are passed on, stored, and replayed to\n"
	 "every later run with the same key. A run that finds another in flight waits for\n"
	 "it, and takes over when its lease lapses. When COMMAND fails the key is released\n"
	 "for the next run. When the lease is lost COMMAND is stopped.\n"
	 "\n"
	 "COMMAND finds IDEMKIT_KEY, IDEMKIT_CLAIM_TOKEN, IDEMKIT_FENCE and\n"
	 "IDEMKIT_ATTEMPTS in its environment.\n"
	 "\n"
	 "The exit status is COMMAND's (128 + N where signal N killed it), executed or\n"
	 "replayed. A failure of idemkit itself is reported on standard error, and is 64\n"
	 "to 78 as below, or 126 or 127 where COMMAND could not be executed or found.\n"
	 "75: a run is in flight still, or the lease was lost. 65: the key was used with\n"
	 "another fingerprint. --report tells all of them apart for a program."},
	{"claim", VERB_CLAIM, verb_claim, true, "", "claim a key",
	 "Writes the claim token and exits with 0 where the claim was won. Otherwise\n"
	 "exits with 1 (completed already: see \"idemkit get\"), 75 (held by somebody else,\n"
	 "or lapsed and --no-reclaim) or 65 (the key is used with another fingerprint)."},
	{"complete", VERB_COMPLETE, verb_complete, true, "", "store a claim's result",
	 "The claim token comes from the environment's IDEMKIT_CLAIM_TOKEN or from\n"
	 "--token-file, never from the command line. Exits with 1 where the claim is not\n"
	 "held any more."},
	{"release", VERB_RELEASE, verb_release, true, "", "give a claim up without a result",
	 "The claim token comes from the environment's IDEMKIT_CLAIM_TOKEN or from\n"
	 "--token-file, never from the command line. Exits with 1 where the claim is not\n"
	 "held any more."},
	{"renew", VERB_RENEW, verb_renew, true, "", "let a claim's lease begin anew",
	 "The claim token comes from the environment's IDEMKIT_CLAIM_TOKEN or from\n"
	 "--token-file, never from the command line. Exits with 1 where the claim is not\n"
	 "held any more."},
	{"get", VERB_GET, verb_get, true, "", "print a key's record",
	 "Prints the record without its claim token. Exits with 1 where there is none."},
	{"wait", VERB_WAIT, verb_wait, true, "", "wait for a key's result",
	 "Prints the record when it is completed. Exits with 1 where the key was\n"
	 "released, never claimed, or its lease lapsed: claim it again. Exits with 75 at\n"
	 "the timeout."},
	{"vacuum", VERB_VACUUM, verb_vacuum, false, "", "remove expired records",
	 "Prints how many were removed. Nothing but disk space depends on it."},
	{"init", VERB_INIT, verb_init, false, "", "create the extension, or a records table",
	 "Creates the extension where it is missing, and with --table a records table of\n"
	 "that name in the current schema; prints the table's name. What exists is kept."},
	{"verify", VERB_VERIFY, verb_verify, false, "", "check a records table's definition",
	 "Exits with 0 where the table is complete, else with 78, saying what is wrong and\n"
	 "the statement that mends it."},
	{"stats", VERB_STATS, verb_stats, false, "", "print a records table's statistics",
	 "Prints one line for each number of the function idemkit_stats()."},
	{NULL, 0, NULL, false, NULL, NULL, NULL}};

const Verb *
find_verb(const char *name)
{
	for (const Verb *verb = verbs; verb->name != NULL; verb++)
		if (strcmp(verb->name, name) == 0)
			return verb;
	return NULL;
}

/*
 * A program started with one of the standard descriptors closed would open its
 * connection there, and write messages into it.
 */
static int
open_standard_descriptors(void)
{
	int fd;

	do
	{
		fd = open("/dev/null", O_RDWR);
		if (fd < 0)
			return EX_OSERR;
	} while (fd <= STDERR_FILENO);
	close(fd);
	return EX_OK;
}

static int
run_verb(const Verb *verb, int argc, char **argv)
{
	Options options;
	int		status = parse_options(verb, argc, argv, &options);

	if (status < 0)
		return finish_output(EX_OK);
	if (status == EX_OK)
		status = make_conninfo(options.dbname, &options.conninfo);
	if (status != EX_OK)
		return status;
	status = finish_output(verb->run(&options));
	free(options.conninfo);
	return status;
}

int
main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";
	const Verb *verb = find_verb(word);
	bool		wants_help =
		strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;

	if (open_standard_descriptors() != EX_OK)
		return EX_OSERR;
	if (verb != NULL)
		return run_verb(verb, argc - 1, argv + 1);
	if (wants_help && argc > 2)
	{
		verb = find_verb(argv[2]);
		if (verb != NULL)
		{
			print_verb_help(verb, stdout);
			return finish_output(EX_OK);
		}
		word = argv[2];
	}
	else if (wants_help)
	{
		print_help(stdout);
		return finish_output(EX_OK);
	}
	if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0)
	{
		int version = idemkit_version();

		printf("idemkit %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
		return finish_output(EX_OK);
	}
	if (word[0] == '\0')
		say("what shall be done is missing");
	else
		say("there is no \"%s\"", word);
	say("try \"idemkit --help\"");
	return EX_USAGE;
}
