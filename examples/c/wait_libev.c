/*
 * wait_libev.c - wait for many keys on one connection, in a libev loop
 *
 *	   wait_libev SECONDS KEY...
 *
 * Prints a line for each key as its wait ends. Connects by libpq's environment.
 *
 *	   cc wait_libev.c $(pkg-config --cflags --libs libidemkit) -lev
 */
#include <ev.h>
#include <stdio.h>
#include <stdlib.h>

#include <idemkit.h>

/* A waiter, and what the loop watches for it. */
typedef struct Watch
{
	struct ev_loop *loop;
	IdemkitWaiter  *waiter;
	ev_io			socket;
	ev_timer		timer;
	uint64_t		serial; /* of the socket that is watched */
	int				left;	/* waits */
} Watch;

static Watch watch;

/*
 * Watch what the waiter asks for now: after each submit, cancel and process.
 */
static void
update(void)
{
	int		wanted = idemkit_waiter_events(watch.waiter);
	int		events = 0;
	int64_t timeout = idemkit_waiter_timeout_us(watch.waiter);

	if (wanted & IDEMKIT_EVENT_READ)
		events |= EV_READ;
	if (wanted & IDEMKIT_EVENT_WRITE)
		events |= EV_WRITE;
	if (events != (watch.socket.events & (EV_READ | EV_WRITE)) ||
		watch.serial != idemkit_waiter_socket_serial(watch.waiter))
	{
		ev_io_stop(watch.loop, &watch.socket);
		ev_io_set(&watch.socket, idemkit_waiter_socket(watch.waiter), events);
		if (events != 0)
			ev_io_start(watch.loop, &watch.socket);
		watch.serial = idemkit_waiter_socket_serial(watch.waiter);
	}
	ev_timer_stop(watch.loop, &watch.timer);
	if (timeout >= 0)
	{
		ev_now_update(watch.loop);
		ev_timer_set(&watch.timer, (double) timeout / 1e6, 0.0);
		ev_timer_start(watch.loop, &watch.timer);
	}
	if (watch.left == 0)
		ev_break(watch.loop, EVBREAK_ALL);
}

static void
socket_ready(struct ev_loop *loop, ev_io *io, int events)
{
	(void) loop;
	(void) io;
	(void) events;
	idemkit_waiter_process(watch.waiter);
	update();
}

static void
time_over(struct ev_loop *loop, ev_timer *timer, int events)
{
	(void) loop;
	(void) timer;
	(void) events;
	idemkit_waiter_process(watch.waiter);
	update();
}

static void
wait_ended(void *arg, IdemkitOutcome outcome, const IdemkitRecord *record,
		   const IdemkitError *error)
{
	size_t length = 0;

	if (outcome == IDEMKIT_OUTCOME_COMPLETED)
		idemkit_record_response_body(record, &length);
	printf("%s: %s, %zu bytes %s\n", (const char *) arg, idemkit_outcome_name(outcome), length,
		   idemkit_error_message(error));
	watch.left--;
}

int
main(int argc, char **argv)
{
	IdemkitError *error = idemkit_error_create();
	int			  status = EXIT_FAILURE;

	if (argc < 3)
		fprintf(stderr, "usage: wait_libev SECONDS KEY...\n");
	else if (idemkit_waiter_create("", NULL, &watch.waiter, error) != IDEMKIT_OK)
		fprintf(stderr, "wait_libev: %s\n", idemkit_error_message(error));
	else
	{
		status = EXIT_SUCCESS;
		watch.loop = EV_DEFAULT;
		ev_io_init(&watch.socket, socket_ready, -1, 0);
		ev_timer_init(&watch.timer, time_over, 0.0, 0.0);
		for (int i = 2; i < argc; i++)
		{
			if (idemkit_waiter_submit(watch.waiter, argv[i], strtod(argv[1], NULL), wait_ended,
									  argv[i], NULL, error) == IDEMKIT_OK)
				watch.left++;
			else
			{
				fprintf(stderr, "wait_libev: %s: %s\n", argv[i], idemkit_error_message(error));
				status = EXIT_FAILURE;
			}
		}
		update();
		if (watch.left > 0)
			ev_run(watch.loop, 0);
	}
	idemkit_waiter_destroy(watch.waiter);
	idemkit_error_free(error);
	return status;
}
