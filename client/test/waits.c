/*
 * waits.c - a waiter that a test script drives
 *
 *	   waits [-l auto|off|always] [-c SECONDS] [-q SECONDS] [-r MIN,MAX] CONNINFO
 *
 * Reads commands from standard input, a line each:
 *
 *	   wait NAME KEY SECONDS	  submit a wait
 *	   counters					  print all counters
 *	   quit						  destroy the waiter and leave; so does the input's end
 *
 * and prints what happens, a line each:
 *
 *	   ended NAME OUTCOME MILLISECONDS [BODY] SQLSTATE MESSAGE
 *	   notice POLLING|DISCONNECTED|CONNECTED MESSAGE
 *	   counters WAITS QUERIES KEYS NOTIFICATIONS CONNECTIONS FAILURES LISTENING
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support.h"

typedef struct Named
{
	char   name[64];
	double begun;
} Named;

static void
print_ended(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
			const IdemkitError *error)
{
	Named	   *named = arg;
	const char *body = record != NULL ? idemkit_record_response_body(record, NULL) : NULL;

	printf("ended %s %s %.0f [%s] %s %s\n", named->name, idemkit_outcome_name(outcome),
		   (seconds_now() - named->begun) * 1000.0, body != NULL ? body : "",
		   idemkit_error_sqlstate(error), idemkit_error_message(error));
	free(named);
}

static void
print_notice(void *arg, IdemkitNotice notice, const char *message)
{
	static const char *const names[] = {"?", "POLLING", "DISCONNECTED", "CONNECTED"};

	(void) arg;
	printf("notice %s %s\n", names[notice], message);
}

static void
obey(IdemkitWaiter *waiter, char *line)
{
	Named *named = malloc(sizeof(*named));
	char   key[1100];
	char   seconds[32];

	if (sscanf(line, "wait %63s %1099s %31s", named->name, key, seconds) == 3)
	{
		named->begun = seconds_now();
		if (idemkit_waiter_submit(waiter, key, strtod(seconds, NULL), print_ended, named, NULL,
								  test_error()) == IDEMKIT_OK)
			return;
		printf("refused %s %s\n", named->name, idemkit_error_message(test_error()));
	}
	else if (strcmp(line, "counters") == 0)
	{
		printf("counters");
		for (int i = IDEMKIT_COUNTER_WAITS; i <= IDEMKIT_COUNTER_LISTENING; i++)
			printf(" %d", (int) idemkit_waiter_counter(waiter, (IdemkitCounter) i));
		putchar('\n');
	}
	free(named);
}

/*
 * Obey the whole lines of input. False at its end.
 */
static bool
read_input(IdemkitWaiter *waiter)
{
	static char	  buffer[4096];
	static size_t length;
	ssize_t		  got = read(STDIN_FILENO, buffer + length, sizeof(buffer) - length - 1);
	char		 *end;

	if (got <= 0)
		return false;
	length += (size_t) got;
	buffer[length] = '\0';
	while ((end = strchr(buffer, '\n')) != NULL)
	{
		*end = '\0';
		if (strcmp(buffer, "quit") == 0)
			return false;
		obey(waiter, buffer);
		length -= (size_t) (end + 1 - buffer);
		memmove(buffer, end + 1, length + 1);
	}
	return true;
}

static bool
turn_with_input(IdemkitWaiter *waiter)
{
	struct pollfd ready[2] = {{.fd = idemkit_waiter_socket(waiter)},
							  {.fd = STDIN_FILENO, .events = POLLIN}};
	int			  events = idemkit_waiter_events(waiter);

	if (events & IDEMKIT_EVENT_READ)
		ready[0].events |= POLLIN;
	if (events & IDEMKIT_EVENT_WRITE)
		ready[0].events |= POLLOUT;
	poll(ready, 2, idemkit_waiter_timeout_ms(waiter));
	if (ready[1].revents != 0 && !read_input(waiter))
		return false;
	idemkit_waiter_process(waiter);
	return true;
}

static void
set_options(IdemkitWaiterOptions *options, int argc, char **argv)
{
	IdemkitStatus status = IDEMKIT_OK;
	int			  option;

	while ((option = getopt(argc, argv, "l:c:q:r:")) != -1)
	{
		char *end;

		if (option == 'l')
			status = idemkit_waiter_options_set_listen(
				options, strcmp(optarg, "auto") == 0  ? IDEMKIT_LISTEN_AUTO
						 : strcmp(optarg, "off") == 0 ? IDEMKIT_LISTEN_OFF
													  : IDEMKIT_LISTEN_ALWAYS);
		else if (option == 'c')
			status = idemkit_waiter_options_set_connect_timeout(options, strtod(optarg, NULL));
		else if (option == 'q')
			status = idemkit_waiter_options_set_query_timeout(options, strtod(optarg, NULL));
		else if (option == 'r')
		{
			double min = strtod(optarg, &end);

			status = idemkit_waiter_options_set_reconnect(options, min, strtod(end + 1, NULL));
		}
		else
			give_up("usage");
		if (status != IDEMKIT_OK)
			give_up("option");
	}
}

int
main(int argc, char **argv)
{
	IdemkitWaiterOptions *options = idemkit_waiter_options_create();
	IdemkitWaiter		 *waiter;

	setvbuf(stdout, NULL, _IOLBF, 0);
	set_options(options, argc, argv);
	if (idemkit_waiter_options_set_notice(options, print_notice, NULL) != IDEMKIT_OK)
		give_up("option");
	waiter = must_create(optind < argc ? argv[optind] : "", options);
	idemkit_waiter_options_free(options);
	while (turn_with_input(waiter))
		;
	idemkit_waiter_destroy(waiter);
	idemkit_error_free(test_error());
	return 0;
}
