/*
 * help.c - --help, for the command and for each verb
 */
#include "command.h"

#include <string.h>

/* Where the explanation of an option begins. */
#define HELP_COLUMN 29

static const char exit_statuses[] =
	"Exit statuses (the manual page idemkit(1) says more):\n"
	"    0  done                        71  the operating system refused something\n"
	"    1  the answer is no            73  a file cannot be written\n"
	"   64  wrong usage                 74  standard output cannot be written\n"
	"   65  wrong data, fingerprint     75  in flight, timeout, lease lost: try again\n"
	"   66  a file cannot be read       76  command and extension do not fit\n"
	"   69  database not reachable      77  no permission\n"
	"   70  another error               78  extension or table missing or incomplete\n";

void
print_help(FILE *to)
{
	fputs("idemkit runs things once: it claims keys in a PostgreSQL database, stores results\n"
		  "and gives them to every duplicate.\n"
		  "\n"
		  "Usage: idemkit VERB [OPTION...]\n"
		  "\n"
		  "Verbs:\n",
		  to);
	for (const Verb *verb = verbs; verb->name != NULL; verb++)
		fprintf(to, "  %-10s %s\n", verb->name, verb->summary);
	fputs("\n"
		  "\"idemkit VERB --help\" tells a verb's options, \"idemkit --version\" the version.\n"
		  "\n"
		  "The database is that of libpq's environment (PGHOST, PGDATABASE, PGSERVICE, ...)\n"
		  "unless --dbname says otherwise. The extension's schema must be on the search_path.\n"
		  "\n"
		  "Example, on any number of machines at the same time:\n"
		  "  idemkit run --key \"report-$(date +%F)\" -- make-report\n"
		  "\n",
		  to);
	fputs(exit_statuses, to);
}

/*
 * "  -k, --key=KEY     the effective key"
 */
static void
print_option(const OptionRow *row, FILE *to)
{
	int column = 0;

	if (row->letter != '\0')
		column += fprintf(to, "  -%c, --%s", row->letter, row->name);
	else
		column += fprintf(to, "      --%s", row->name);
	if (row->argument != NULL)
		column += fprintf(to, "=%s", row->argument);
	if (column >= HELP_COLUMN - 1)
	{
		fputc('\n', to);
		column = 0;
	}
	fprintf(to, "%*s", HELP_COLUMN - column, "");
	for (const char *c = row->help; *c != '\0'; c++)
	{
		fputc(*c, to);
		if (*c == '\n')
			fprintf(to, "%*s", HELP_COLUMN, "");
	}
	fputc('\n', to);
}

void
print_verb_help(const Verb *verb, FILE *to)
{
	bool has_duration = false;

	fprintf(to, "idemkit %s: %s\n\nUsage: idemkit %s %s[OPTION...]%s%s\n\n%s\n\nOptions:\n",
			verb->name, verb->summary, verb->name, verb->needs_key ? "--key=KEY " : "",
			verb->synopsis[0] != '\0' ? " " : "", verb->synopsis, verb->description);
	for (const OptionRow *row = option_rows; row->name != NULL; row++)
	{
		if ((row->verbs & verb->bit) == 0)
			continue;
		print_option(row, to);
		has_duration |= row->kind == OPTION_DURATION || row->kind == OPTION_PATIENCE;
	}
	fprintf(to, "  -h, --help%*sthis text\n", HELP_COLUMN - 12, "");
	if (has_duration)
		fputs("\nA TIME is a number of seconds such as 1.5, or one with ms, s, m, h or d.\n", to);
	fputc('\n', to);
	fputs(exit_statuses, to);
}
