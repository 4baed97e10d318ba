/*
 * wait_poll.c - wait for many keys on one connection, in a loop around poll(2)
 *
 *	   wait_poll SECONDS KEY...
 *
 * Prints a line for each key as its wait ends. Connects by libpq's environment.
 *
 *	   cc wait_poll.c $(pkg-config --cflags --libs libidemkit)
 */
#define _POSIX_C_SOURCE 200809L

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include <idemkit.h>

static int left;

static void
wait_ended(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
		   const IdemkitError *error)
{
	size_t length = 0;

	if (outcome == IDEMKIT_OUTCOME_COMPLETED)
		idemkit_record_response_body(record, &length);
	printf("%s: %s, %zu bytes %s\n", (const char *) arg, idemkit_outcome_name(outcome), length,
		   idemkit_error_message(error));
	left--;
}

static void
noticed(void *arg, IdemkitNotice notice, const char *message)
{
	(void) arg;
	if (notice != IDEMKIT_NOTICE_CONNECTED)
		fprintf(stderr, "wait_poll: %s\n", message);
}

/*
 * Once around: wait for the socket or the timeout, then let the waiter work.
 */
static void
turn(IdemkitWaiter *waiter)
{
	struct pollfd ready = {.fd = idemkit_waiter_socket(waiter)};
	int			  events = idemkit_waiter_events(waiter);

	if (events & IDEMKIT_EVENT_READ)
		ready.events |= POLLIN;
	if (events & IDEMKIT_EVENT_WRITE)
		ready.events |= POLLOUT;
	poll(&ready, 1, idemkit_waiter_timeout_ms(waiter));
	idemkit_waiter_process(waiter);
}

int
main(int argc, char **argv)
{
	IdemkitWaiterOptions *options = idemkit_waiter_options_create();
	IdemkitError		 *error = idemkit_error_create();
	IdemkitWaiter		 *waiter = NULL;
	int					  status = EXIT_FAILURE;

	if (options != NULL)
		(void) idemkit_waiter_options_set_notice(options, noticed, NULL);
	if (argc < 3)
		fprintf(stderr, "usage: wait_poll SECONDS KEY...\n");
	else if (idemkit_waiter_create("", options, &waiter, error) != IDEMKIT_OK)
		fprintf(stderr, "wait_poll: %s\n", idemkit_error_message(error));
	else
	{
		status = EXIT_SUCCESS;
		for (int i = 2; i < argc; i++)
		{
			if (idemkit_waiter_submit(waiter, argv[i], strtod(argv[1], NULL), wait_ended, argv[i],
									  NULL, error) == IDEMKIT_OK)
				left++;
			else
			{
				fprintf(stderr, "wait_poll: %s: %s\n", argv[i], idemkit_error_message(error));
				status = EXIT_FAILURE;
			}
		}
		while (left > 0)
			turn(waiter);
	}
	idemkit_waiter_destroy(waiter);
	idemkit_waiter_options_free(options);
	idemkit_error_free(error);
	return status;
}
