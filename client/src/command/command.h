/*
 * command.h - what the files of the command idemkit share
 *
 * The command is a program of one run: what lives as long as the process (the
 * options, the arguments) is not freed on the way out of an error.
 */
#ifndef IDEMKIT_COMMAND_H
#define IDEMKIT_COMMAND_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pipe2(), environ, asprintf(), CLOCK_BOOTTIME */
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sysexits.h>

#include "idemkit.h"

/*
 * Exit statuses beside those of sysexits.h. The manual lists them all: they are
 * an interface and do not change.
 */
#define EX_FALSE		  1	  /* the answer is no: not held, not there, done already */
#define EX_CANNOT_EXECUTE 126 /* run: the command could not be executed */
#define EX_NOT_FOUND	  127 /* run: there is no such command */
#define EX_SIGNAL		  128 /* run: the command died of a signal, whose number is added */

/* ------------------------------------------------------------------------
 * options.c, help.c: the command line
 * ------------------------------------------------------------------------
 */

typedef struct Options
{
	const char *dbname;
	const char *table;
	const char *key;
	const char *fingerprint;
	int64_t		fingerprint_version;
	double		lease;
	double		expires_after; /* NAN: not given */
	double		wait;		   /* INFINITY: for ever */
	double		grace;
	double		lease_grace;
	double		timeout;
	bool		cache_failures;
	bool		no_reclaim;
	bool		keep_attempts;
	bool		unlogged;
	bool		json;
	bool		body;
	int64_t		max_output;
	int64_t		max_rows; /* -1: not given */
	int64_t		status;	  /* NO_STATUS: not given */
	const char *headers;
	const char *body_file;
	const char *token_file;
	const char *report;
	char	  **command; /* run: the command and its arguments, NULL at the end */

	/* made of the above by main() */
	char *conninfo;
} Options;

#define NO_STATUS			  INT64_MIN
#define DEFAULT_EXPIRES_AFTER 86400.0

typedef struct Verb
{
	const char *name;
	unsigned	bit; /* in OptionRow.verbs */
	int (*run)(const Options *options);
	bool		needs_key;
	const char *synopsis;	 /* what follows the options, "" for nothing */
	const char *summary;	 /* for the list of verbs */
	const char *description; /* for --help, lines of at most 79 */
} Verb;

enum
{
	VERB_RUN = 1 << 0,
	VERB_CLAIM = 1 << 1,
	VERB_COMPLETE = 1 << 2,
	VERB_RELEASE = 1 << 3,
	VERB_RENEW = 1 << 4,
	VERB_GET = 1 << 5,
	VERB_WAIT = 1 << 6,
	VERB_VACUUM = 1 << 7,
	VERB_INIT = 1 << 8,
	VERB_VERIFY = 1 << 9,
	VERB_STATS = 1 << 10,
	VERB_ALL = (1 << 11) - 1
};

typedef enum OptionKind
{
	OPTION_FLAG,	 /* bool */
	OPTION_TEXT,	 /* const char * */
	OPTION_DURATION, /* double, seconds */
	OPTION_PATIENCE, /* the same, or "forever" */
	OPTION_NUMBER,	 /* int64_t that fits an int32_t */
	OPTION_COUNT,	 /* int64_t, not negative */
	OPTION_SIZE		 /* int64_t, bytes */
} OptionKind;

typedef struct OptionRow
{
	const char *name;
	char		letter; /* or '\0' */
	OptionKind	kind;
	size_t		place; /* in Options */
	unsigned	verbs;
	const char *argument; /* how help calls it */
	const char *help;	  /* newlines begin continuation lines */
} OptionRow;

extern const Verb	   verbs[];		  /* ends with a NULL name */
extern const OptionRow option_rows[]; /* ends with a NULL name */

const Verb *find_verb(const char *name);

/*
 * EX_OK; EX_USAGE having said what is wrong; or -1 where --help was asked for,
 * and printed.
 */
int parse_options(const Verb *verb, int argc, char **argv, Options *options);

void print_help(FILE *to);
void print_verb_help(const Verb *verb, FILE *to);

/* ------------------------------------------------------------------------
 * say.c: messages to people, and which exit status an error becomes
 * ------------------------------------------------------------------------
 */

/* "idemkit: " message newline, on standard error in one write. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Why something failed, kept for later. */
typedef struct Failure
{
	int	 status;	  /* the exit status for it */
	char sqlstate[6]; /* "" where it did not come from the server */
	char text[2048];  /* lines: message, detail, hint */
} Failure;

void note_error(Failure *failure, const IdemkitError *error);
/* result NULL, or without an error of the server: what conn says */
void note_result(Failure *failure, const PGconn *conn, const PGresult *result);

/* Say what failed and why, and return the exit status for it. */
int say_failure(const char *what, const Failure *failure);
int say_error(const char *what, const IdemkitError *error);
int say_query_failure(const char *what, const PGconn *conn, const PGresult *result);

/* Flush standard output; status, or EX_IOERR where it could not be written. */
int finish_output(int status);

/* ------------------------------------------------------------------------
 * connection.c
 * ------------------------------------------------------------------------
 */

/*
 * Make a connection string of what -d says and this command's defaults. EX_OK,
 * or EX_USAGE having said what is wrong.
 */
int make_conninfo(const char *dbname, char **conninfo);

/* Connect. NULL having said why not, and *status is set then. */
PGconn *open_connection(const Options *options, int *status);

/*
 * Is the connection lost? Before version 14 libpq takes it for a good one after
 * an error with which the server ended the session: result, or NULL.
 */
bool connection_lost(const PGconn *conn, const PGresult *result);

/*
 * Run a statement with text parameters. NULL having said why it failed, and
 * *status is set then.
 */
PGresult *query(PGconn *conn, const char *what, const char *statement, int nparams,
				const char *const *params, int *status);

/* ------------------------------------------------------------------------
 * input.c: what is read from files, standard input and the environment
 * ------------------------------------------------------------------------
 */

#define TOKEN_VARIABLE "IDEMKIT_CLAIM_TOKEN"

/* All of a file, "-" being standard input; free() *data. EX_OK, or said. */
int read_input(const char *path, char **data, size_t *length);

/* The claim token, from --token-file or the environment; free() it. */
int read_token(const Options *options, char **token);

/* ------------------------------------------------------------------------
 * json.c: writing JSON
 * ------------------------------------------------------------------------
 */

/* One object being written. */
typedef struct Json
{
	FILE *to;
	bool  begun; /* a member has been written */
} Json;

void json_begin(Json *json, FILE *to);
void json_end(Json *json); /* with a newline */
void json_text(Json *json, const char *name, const char *value);
void json_int(Json *json, const char *name, int64_t value);
void json_double(Json *json, const char *name, double value);
void json_bool(Json *json, const char *name, bool value);
void json_null(Json *json, const char *name);
/* value is JSON already, or a number as the server wrote it */
void json_raw(Json *json, const char *name, const char *value);
void json_base64(Json *json, const char *name, const void *data, size_t length);

/* ------------------------------------------------------------------------
 * output.c: records and answers, as lines or JSON
 * ------------------------------------------------------------------------
 */

void print_record_json(Json *json, const IdemkitRecord *record);
void print_record_lines(const IdemkitRecord *record);
/* {"name": value}, or nothing where JSON is not wanted */
void print_answer(const Options *options, const char *name, bool value);
/* the columns of the first row, by name */
void print_row(const Options *options, const PGresult *result);

/* ------------------------------------------------------------------------
 * verbs.c, admin.c, run.c: the verbs; each returns the exit status
 * ------------------------------------------------------------------------
 */

int verb_claim(const Options *options);
int verb_complete(const Options *options);
int verb_release(const Options *options);
int verb_renew(const Options *options);
int verb_get(const Options *options);
int verb_wait(const Options *options);
int verb_vacuum(const Options *options);
int verb_init(const Options *options);
int verb_verify(const Options *options);
int verb_stats(const Options *options);
int verb_run(const Options *options);

#endif /* IDEMKIT_COMMAND_H */
