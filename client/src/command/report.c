/*
 * report.c - the file of --report: what "idemkit run" did, for a program
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int
report_open(Run *run)
{
	const char *path = run->options->report;
	int			fd;

	if (path == NULL)
		return EX_OK;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd >= 0)
		run->report_file = fdopen(fd, "w");
	if (run->report_file != NULL)
		return EX_OK;
	say("cannot write \"%s\": %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return EX_CANTCREAT;
}

static void
write_report(const Run *run)
{
	const Report *report = &run->report;
	Json		  json;

	json_begin(&json, run->report_file);
	json_text(&json, "effective_key", run->options->key);
	json_text(&json, "outcome", report->outcome);
	json_int(&json, "exit_status", report->exit_status);
	if (report->command_status >= 0)
		json_int(&json, "command_status", report->command_status);
	else
		json_null(&json, "command_status");
	if (report->output_bytes >= 0)
		json_int(&json, "output_bytes", report->output_bytes);
	else
		json_null(&json, "output_bytes");
	json_bool(&json, "output_stored", report->output_stored);
	if (report->attempts > 0)
		json_int(&json, "attempts", report->attempts);
	else
		json_null(&json, "attempts");
	if (report->fence != 0)
		json_int(&json, "fence", report->fence);
	else
		json_null(&json, "fence");
	json_end(&json);
}

/*
 * A report that cannot be written changes nothing about what was done: it is
 * said, and the exit status stays.
 */
int
report_close(Run *run)
{
	bool failed;

	if (run->report_file == NULL)
		return run->report.exit_status;
	write_report(run);
	failed = ferror(run->report_file) != 0;
	failed |= fclose(run->report_file) != 0;
	run->report_file = NULL;
	if (failed)
		say("cannot write \"%s\"", run->options->report);
	return run->report.exit_status;
}
