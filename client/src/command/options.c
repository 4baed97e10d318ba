/*
 * options.c - the options of all verbs, and reading them
 *
 * One table says which verb takes which option and what it means; reading and
 * --help both go by it.
 */
#include "command.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HOLDERS (VERB_COMPLETE | VERB_RELEASE | VERB_RENEW)
#define LEASERS (VERB_RUN | VERB_CLAIM | VERB_RENEW)
#define KEYED	(VERB_RUN | VERB_CLAIM | HOLDERS | VERB_GET | VERB_WAIT)

#define PLACE(field) offsetof(Options, field)

const OptionRow option_rows[] = {
	{"key", 'k', OPTION_TEXT, PLACE(key), KEYED, "KEY", "the effective key, 1 to 1024 bytes"},
	{"fingerprint", 'f', OPTION_TEXT, PLACE(fingerprint), VERB_RUN | VERB_CLAIM, "TEXT",
	 "what the key stands for: the same key with another\n"
	 "fingerprint is refused (default: empty)"},
	{"fingerprint-version", 0, OPTION_NUMBER, PLACE(fingerprint_version), VERB_RUN | VERB_CLAIM,
	 "N", "how the fingerprint was made (default: 1)"},
	{"lease", 'l', OPTION_DURATION, PLACE(lease), LEASERS, "TIME",
	 "how long the claim is held without being renewed\n"
	 "(default: 30s)"},
	{"no-reclaim", 0, OPTION_FLAG, PLACE(no_reclaim), VERB_CLAIM, NULL,
	 "do not take over a claim whose lease has lapsed"},
	{"expires-after", 'e', OPTION_DURATION, PLACE(expires_after), VERB_RUN | VERB_COMPLETE, "TIME",
	 "how long the result is kept (default: 1d)"},
	{"wait", 'w', OPTION_PATIENCE, PLACE(wait), VERB_RUN, "TIME",
	 "how long to wait for a run in flight; 0: not at all\n"
	 "(default: forever)"},
	{"cache-failures", 'F', OPTION_FLAG, PLACE(cache_failures), VERB_RUN, NULL,
	 "store the result of a command that fails, too"},
	{"max-output", 'm', OPTION_SIZE, PLACE(max_output), VERB_RUN, "BYTES",
	 "do not store output longer than this (default: 16M)"},
	{"grace", 'g', OPTION_DURATION, PLACE(grace), VERB_RUN, "TIME",
	 "from SIGTERM to SIGKILL when the lease is lost, and\n"
	 "for the end of the output after the command's end\n"
	 "(default: 10s)"},
	{"report", 'r', OPTION_TEXT, PLACE(report), VERB_RUN, "FILE",
	 "write what happened to FILE, as one JSON object"},
	{"status", 's', OPTION_NUMBER, PLACE(status), VERB_COMPLETE, "N",
	 "the result's status (default: none)"},
	{"headers", 0, OPTION_TEXT, PLACE(headers), VERB_COMPLETE, "JSON",
	 "the result's headers, a JSON object (default: none)"},
	{"body-file", 'b', OPTION_TEXT, PLACE(body_file), VERB_COMPLETE, "FILE",
	 "the result's body; - is standard input\n"
	 "(default: none)"},
	{"token-file", 'T', OPTION_TEXT, PLACE(token_file), HOLDERS, "FILE",
	 "read the claim token from FILE; - is standard input\n"
	 "(default: the environment's " TOKEN_VARIABLE ")"},
	{"keep-attempts", 0, OPTION_FLAG, PLACE(keep_attempts), VERB_RELEASE, NULL,
	 "keep the count of attempts for the next claim"},
	{"body", 'b', OPTION_FLAG, PLACE(body), VERB_GET | VERB_WAIT, NULL,
	 "write the result's body alone, byte for byte"},
	{"timeout", 'w', OPTION_DURATION, PLACE(timeout), VERB_WAIT, "TIME",
	 "how long to wait (default: 30s)"},
	{"expires-after", 'e', OPTION_DURATION, PLACE(expires_after), VERB_VACUUM, "TIME",
	 "remove results older than this, live ones too"},
	{"lease-grace", 0, OPTION_DURATION, PLACE(lease_grace), VERB_VACUUM, "TIME",
	 "keep lapsed claims this long (default: 60s)"},
	{"max-rows", 0, OPTION_COUNT, PLACE(max_rows), VERB_VACUUM, "N", "remove at most N records"},
	{"unlogged", 0, OPTION_FLAG, PLACE(unlogged), VERB_INIT, NULL,
	 "make the table unlogged: a crash empties it"},
	{"json", 'j', OPTION_FLAG, PLACE(json), VERB_ALL & ~VERB_RUN, NULL, "write one JSON object"},
	{"table", 't', OPTION_TEXT, PLACE(table), VERB_ALL, "NAME",
	 "the records table, as SQL writes its name\n"
	 "(default: the extension's own)"},
	{"dbname", 'd', OPTION_TEXT, PLACE(dbname), VERB_ALL, "CONNINFO",
	 "database name, connection string or URI, without a\n"
	 "password (default: libpq's environment)"},
	{NULL, 0, OPTION_FLAG, 0, 0, NULL, NULL}};

#define DEFAULT_MAX_OUTPUT ((int64_t) 16 << 20)
#define MAX_RETENTION	   (10 * 365.25 * 86400)
#define MAX_OPTIONS		   32
#define HELP_CODE		   1
#define FIRST_CODE		   256 /* above every letter */

/*
 * A duration as seconds: digits with a fraction, then nothing, ms, s, m, h or d.
 * EX_USAGE without a word for anything else.
 */
static int
parse_duration(const char *text, double *seconds)
{
	static const struct
	{
		const char *name;
		double		seconds;
	} units[] = {{"", 1}, {"ms", 0.001}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
	size_t digits = strspn(text, "0123456789.");
	char  *end;
	double value;

	if (strcspn(text, "0123456789") >= digits)
		return EX_USAGE;
	value = strtod(text, &end);
	if (end != text + digits)
		return EX_USAGE;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
	{
		if (strcmp(end, units[i].name) == 0)
		{
			*seconds = value * units[i].seconds;
			return isfinite(*seconds) ? EX_OK : EX_USAGE;
		}
	}
	return EX_USAGE;
}

/*
 * An integer from min to max; with_unit: k, M or G for powers of 1024 may follow.
 */
static int
parse_integer(const char *text, int64_t min, int64_t max, bool with_unit, int64_t *value)
{
	char	 *end;
	long long number;
	int		  shift = 0;

	if (text[strspn(text, "-")] < '0' || text[strspn(text, "-")] > '9')
		return EX_USAGE;
	errno = 0;
	number = strtoll(text, &end, 10);
	if (with_unit && *end != '\0')
	{
		shift = *end == 'k' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
		if (shift > 0)
			end++;
	}
	if (errno != 0 || *end != '\0' || number < min || number > (max >> shift))
		return EX_USAGE;
	*value = (int64_t) number * ((int64_t) 1 << shift);
	return EX_OK;
}

/*
 * Store the value of one option.
 */
static int
store_option(const OptionRow *row, const char *value, Options *options)
{
	void	   *place = (char *) options + row->place;
	const char *wanted = NULL;

	switch (row->kind)
	{
		case OPTION_FLAG:
			*(bool *) place = true;
			break;
		case OPTION_TEXT:
			*(const char **) place = value;
			break;
		case OPTION_PATIENCE:
			if (strcmp(value, "forever") == 0)
			{
				*(double *) place = INFINITY;
				break;
			}
			if (parse_duration(value, place) != EX_OK)
				wanted = "a number of seconds, or one with ms, s, m, h or d, or \"forever\"";
			break;
		case OPTION_DURATION:
			if (parse_duration(value, place) != EX_OK)
				wanted = "a number of seconds, or one with ms, s, m, h or d";
			break;
		case OPTION_NUMBER:
			if (parse_integer(value, INT32_MIN, INT32_MAX, false, place) != EX_OK)
				wanted = "an integer";
			break;
		case OPTION_COUNT:
			if (parse_integer(value, 0, INT64_MAX, false, place) != EX_OK)
				wanted = "an integer, not negative";
			break;
		case OPTION_SIZE:
			if (parse_integer(value, 0, 1000000000, true, place) != EX_OK)
				wanted = "a number of bytes up to 1000000000, or one with k, M or G";
			break;
	}
	if (wanted == NULL)
		return EX_OK;
	say("--%s: \"%s\" is not %s", row->name, value, wanted);
	return EX_USAGE;
}

/*
 * What cannot be said option by option. The server checks values, too, but the
 * retention only when the command of a run has ended.
 */
static int
check_options(const Verb *verb, const Options *options)
{
	const char *wrong = NULL;

	if (verb->needs_key && options->key == NULL)
		wrong = "--key is missing";
	else if (verb->needs_key && options->key[0] == '\0')
		wrong = "--key is empty";
	else if (verb->bit == VERB_RUN && options->command == NULL)
		wrong = "the command to run is missing";
	else if (verb->bit == VERB_RUN && options->lease < 1)
		wrong = "--lease must be at least one second";
	else if (verb->bit == VERB_RUN && options->expires_after > MAX_RETENTION)
		wrong = "--expires-after is more than ten years";
	else if (verb->bit == VERB_COMPLETE && options->body_file != NULL &&
			 options->token_file != NULL && strcmp(options->body_file, "-") == 0 &&
			 strcmp(options->token_file, "-") == 0)
		wrong = "--body-file and --token-file cannot both be standard input";
	else if (options->body && options->json)
		wrong = "--body and --json exclude each other";
	if (wrong == NULL)
		return EX_OK;
	say("%s", wrong);
	return EX_USAGE;
}

/*
 * The verb's rows of the table, in the forms getopt_long() takes. codes[] tells
 * which row a value returned by it means.
 */
static void
list_options(const Verb *verb, struct option *longs, char *shorts, const OptionRow **codes)
{
	int	  n = 0;
	char *letter = shorts;

	*letter++ = '+'; /* run: what follows the command is the command's */
	*letter++ = ':'; /* the messages are ours */
	*letter++ = 'h';
	for (const OptionRow *row = option_rows; row->name != NULL; row++)
	{
		int has_argument = row->kind == OPTION_FLAG ? no_argument : required_argument;

		if ((row->verbs & verb->bit) == 0 || n >= MAX_OPTIONS)
			continue;
		codes[n] = row;
		longs[n] = (struct option){row->name, has_argument, NULL, FIRST_CODE + n};
		n++;
		if (row->letter == '\0')
			continue;
		*letter++ = row->letter;
		if (has_argument == required_argument)
			*letter++ = ':';
	}
	longs[n++] = (struct option){"help", no_argument, NULL, HELP_CODE};
	longs[n] = (struct option){NULL, 0, NULL, 0};
	*letter = '\0';
}

/*
 * The row that a value returned by getopt_long() means.
 */
static const OptionRow *
row_of_code(const Verb *verb, const OptionRow *const *codes, int code)
{
	if (code >= FIRST_CODE)
		return codes[code - FIRST_CODE];
	for (const OptionRow *row = option_rows; row->name != NULL; row++)
		if ((row->verbs & verb->bit) != 0 && row->letter == (char) code)
			return row;
	return NULL;
}

/*
 * Is a word the whole name of a long option? getopt_long() takes abbreviations,
 * which a script must not depend on: a later version may have two options that
 * begin so.
 */
static bool
is_whole_name(const char *word, const char *name)
{
	size_t length = strlen(name);

	return strncmp(word, "--", 2) == 0 && strncmp(word + 2, name, length) == 0 &&
		   (word[2 + length] == '\0' || word[2 + length] == '=');
}

/*
 * Say what getopt_long() did not like about argv[at].
 */
static int
refuse_option(const Verb *verb, int code, const char *argument)
{
	if (code == ':')
		say("option %s needs an argument", argument);
	else
		say("%s has no option %.*s, or it takes no argument", verb->name,
			(int) strcspn(argument, "="), argument);
	say("try \"idemkit %s --help\"", verb->name);
	return EX_USAGE;
}

/*
 * Read argv, which begins with the verb. Returns -1 where --help was asked for,
 * and printed.
 */
int
parse_options(const Verb *verb, int argc, char **argv, Options *options)
{
	struct option	 longs[MAX_OPTIONS + 2];
	char			 shorts[2 * MAX_OPTIONS + 4];
	const OptionRow *codes[MAX_OPTIONS];
	int				 code;

	*options = (Options){
		.fingerprint = "",
		.fingerprint_version = 1,
		.lease = 30,
		.expires_after = NAN,
		.wait = INFINITY,
		.grace = 10,
		.lease_grace = 60,
		.timeout = 30,
		.max_output = DEFAULT_MAX_OUTPUT,
		.max_rows = -1,
		.status = NO_STATUS,
	};
	list_options(verb, longs, shorts, codes);
	optind = 1;
	for (int at = optind; (code = getopt_long(argc, argv, shorts, longs, NULL)) != -1; at = optind)
	{
		const OptionRow *row;

		if (code == '?' || code == ':')
			return refuse_option(verb, code, argv[optind - 1]);
		row = row_of_code(verb, codes, code);
		if ((code == HELP_CODE && !is_whole_name(argv[at], "help")) ||
			(code >= FIRST_CODE && !is_whole_name(argv[at], row->name)))
			return refuse_option(verb, '?', argv[at]);
		if (code == HELP_CODE || code == 'h')
		{
			print_verb_help(verb, stdout);
			return -1;
		}
		if (row == NULL || store_option(row, optarg, options) != EX_OK)
			return EX_USAGE;
	}
	if (verb->bit == VERB_RUN && optind < argc)
		options->command = argv + optind;
	else if (optind < argc)
	{
		say("%s takes no argument \"%s\"", verb->name, argv[optind]);
		return EX_USAGE;
	}
	return check_options(verb, options);
}
