/*
 * load.c
 *		Loads a Redis server the way pgbench loads PostgreSQL.
 *
 * Every connection has one request under way, or one pipeline of them, and
 * sends the next when the last reply has come.  One thread with poll() serves
 * all connections: Redis has one, too, and waits for the disk most of the time.
 *
 *	load --socket=PATH --clients=N [--time=S] [--progress=S] [--pipeline=N]
 *		 [--rows=N] --result=TEXT fill|replay|claim|cycle
 *
 * A claim is SET key token NX PX; a completion is a script that replaces the
 * token by the result if it is still there.  A replay is a claim that fails,
 * and a GET in the same packet.  "fill" stores the results that "replay" asks
 * for.  Every reply is checked.  The report has the lines of pgbench's that
 * bench/lib/measure.sh reads; rates are keys a second.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define KEY_DIGITS	 38
#define LEASE_MS	 "3600000" /* none may end while keys are counted */
#define RETENTION_MS "86400000"
#define TOKEN		 "5d41402abc4b2a76b9719d911017c592"

static const char complete_script[] =
	"if redis.call('GET', KEYS[1]) == ARGV[1] then"
	" redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1 else return 0 end";

typedef enum Kind
{
	FILL,
	REPLAY,
	CLAIM,
	CYCLE
} Kind;

static const char *const kinds[] = {"fill", "replay", "claim", "cycle"};

typedef struct Buffer
{
	char  *data;
	size_t length;
	size_t done; /* sent or parsed so far */
	size_t size;
} Buffer;

typedef struct Connection
{
	int	 fd;
	bool completing; /* the second step of a cycle */
	int	 keys;		 /* in this pipeline */
	int	 replies_due;
	char (*key)[KEY_DIGITS + 1];
	Buffer out;
	Buffer in;
} Connection;

static const char *socket_path;
static const char *stored_result = "";
static Kind		   kind;
static int		   clients = 1;
static double	   seconds = 0;
static double	   progress = 0;
static int		   pipeline = 1;
static int64_t	   rows = 1;
static int64_t	   next_row = 1; /* to fill */
static char		   script_digest[41];
static uint64_t	   random_state;

static void
fail(const char *format, ...)
{
	va_list arguments;

	fputs("load: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static double
now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double) time.tv_sec + (double) time.tv_nsec / 1e9;
}

/*
 * xorshift64*
 */
static uint64_t
random_number(void)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return random_state * UINT64_C(2685821657736338717);
}

/*
 * Makes room for "more" bytes at the buffer's end.
 */
static void
reserve(Buffer *buffer, size_t more)
{
	if (buffer->length + more <= buffer->size)
		return;
	buffer->size = (buffer->length + more) * 2;
	buffer->data = realloc(buffer->data, buffer->size);
	if (buffer->data == NULL)
		fail("out of memory");
}

static void
append(Buffer *buffer, const char *text, size_t length)
{
	reserve(buffer, length);
	memcpy(buffer->data + buffer->length, text, length);
	buffer->length += length;
}

/*
 * Appends a command of "count" words.
 */
static void
append_command(Buffer *buffer, int count, const char *const *words)
{
	char head[32];

	append(buffer, head, (size_t) snprintf(head, sizeof(head), "*%d\r\n", count));
	for (int i = 0; i < count; i++)
	{
		size_t length = strlen(words[i]);

		append(buffer, head, (size_t) snprintf(head, sizeof(head), "$%zu\r\n", length));
		append(buffer, words[i], length);
		append(buffer, "\r\n", 2);
	}
}

#define APPEND_COMMAND(buffer, ...)                                                \
	append_command(buffer, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), \
				   (const char *[]){__VA_ARGS__})

/*
 * Writes the key of a stored row, by the arithmetic of bench/scripts, or a new
 * one.
 */
static void
make_key(char *key)
{
	uint64_t row;

	if (kind == FILL || kind == REPLAY)
	{
		row = kind == FILL ? (uint64_t) next_row++ : 1 + random_number() % (uint64_t) rows;
		snprintf(key, KEY_DIGITS + 1, "%019" PRIu64 "%019" PRIu64,
				 UINT64_C(1000000000000000000) +
					 row * 2654435761 % 4294967296 * UINT64_C(1000000000),
				 UINT64_C(1000000000000000000) + row);
	}
	else
		snprintf(key, KEY_DIGITS + 1, "%019" PRIu64 "%019" PRIu64,
				 UINT64_C(1000000000000000000) + random_number() % UINT64_C(4294967295000000000),
				 UINT64_C(1000000000000000000) + random_number() % UINT64_C(8000000000000000000));
}

/*
 * Puts the commands of a step for all keys of the pipeline into the buffer.
 */
static void
compose(Connection *connection)
{
	Buffer *out = &connection->out;

	out->length = out->done = 0;
	connection->replies_due = connection->keys * (kind == REPLAY ? 2 : 1);
	for (int i = 0; i < connection->keys; i++)
	{
		const char *key = connection->key[i];

		if (kind == FILL)
			APPEND_COMMAND(out, "SET", key, stored_result, "PX", RETENTION_MS);
		else if (connection->completing)
			APPEND_COMMAND(out, "EVALSHA", script_digest, "1", key, TOKEN, stored_result,
						   RETENTION_MS);
		else
			APPEND_COMMAND(out, "SET", key, TOKEN, "NX", "PX", LEASE_MS);
		if (kind == REPLAY)
			APPEND_COMMAND(out, "GET", key);
	}
}

/*
 * Sends what the socket takes of the buffer.
 */
static void
send_some(Connection *connection)
{
	Buffer *out = &connection->out;

	while (out->done < out->length)
	{
		ssize_t sent =
			send(connection->fd, out->data + out->done, out->length - out->done, MSG_NOSIGNAL);

		if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (sent < 0)
			fail("could not send: %s", strerror(errno));
		out->done += (size_t) sent;
	}
}

/*
 * Starts on the next keys.  False if there are none: everything is filled.
 */
static bool
start(Connection *connection)
{
	connection->completing = false;
	connection->keys = pipeline;
	if (kind == FILL && rows - next_row + 1 < pipeline)
		connection->keys = (int) (rows - next_row + 1);
	if (connection->keys == 0)
		return false;
	for (int i = 0; i < connection->keys; i++)
		make_key(connection->key[i]);
	compose(connection);
	send_some(connection);
	return true;
}

/*
 * The length of the reply that the buffer begins with, or 0 if it is not all
 * there yet.
 */
static size_t
reply_length(const Buffer *in)
{
	const char *reply = in->data + in->done;
	size_t		available = in->length - in->done;
	const char *end = available > 0 ? memchr(reply, '\n', available) : NULL;
	size_t		length;

	if (end == NULL)
		return 0;
	length = (size_t) (end - reply) + 1;
	if (reply[0] == '$' && reply[1] != '-')
		length += strtoul(reply + 1, NULL, 10) + 2;
	return length <= available ? length : 0;
}

/*
 * Ends the program unless the reply is the one that says "done".
 */
static void
check_reply(const Connection *connection, const char *reply, size_t length)
{
	const char *expected = "+OK\r\n";

	if (connection->completing)
		expected = ":1\r\n";
	else if (kind == REPLAY && connection->replies_due % 2 == 0)
		expected = "$-1\r\n";
	else if (kind == REPLAY)
	{
		/* The result is the tail of the reply, before the line's end. */
		size_t result = strlen(stored_result);

		if (length > result + 2 && memcmp(reply + length - 2 - result, stored_result, result) == 0)
			return;
	}
	if (length != strlen(expected) || memcmp(reply, expected, length) != 0)
		fail("unexpected reply: %.*s", (int) length, reply);
}

/*
 * Receives what has come, and takes the replies that are complete.
 */
static void
receive_some(Connection *connection)
{
	Buffer *in = &connection->in;
	ssize_t received;
	size_t	length;

	reserve(in, 65536);
	received = recv(connection->fd, in->data + in->length, in->size - in->length, 0);
	if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return;
	if (received <= 0)
		fail("the server closed the connection");
	in->length += (size_t) received;
	while (connection->replies_due > 0 && (length = reply_length(in)) > 0)
	{
		check_reply(connection, in->data + in->done, length);
		connection->replies_due--;
		in->done += length;
	}
	if (in->done == in->length)
		in->done = in->length = 0;
}

/*
 * Connects; the socket does not block.
 */
static void
open_connection(Connection *connection)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(socket_path) >= sizeof(address.sun_path))
		fail("the path of the socket is too long");
	strcpy(address.sun_path, socket_path);
	connection->fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (connection->fd < 0 ||
		connect(connection->fd, (struct sockaddr *) &address, sizeof(address)) != 0)
		fail("could not connect to \"%s\": %s", socket_path, strerror(errno));
	fcntl(connection->fd, F_SETFL, O_NONBLOCK);
	connection->key = calloc((size_t) pipeline, sizeof(*connection->key));
	if (connection->key == NULL)
		fail("out of memory");
}

/*
 * Waits for the socket of one connection.
 */
static void
wait_for(const Connection *connection, short events)
{
	struct pollfd wait = {connection->fd, events, 0};

	if (poll(&wait, 1, 10000) != 1)
		fail("the server does not answer");
}

/*
 * Gives the server the script and keeps its digest.
 */
static void
load_script(Connection *connection)
{
	Buffer *in = &connection->in;

	APPEND_COMMAND(&connection->out, "SCRIPT", "LOAD", complete_script);
	send_some(connection);
	while (reply_length(in) == 0)
	{
		wait_for(connection, POLLIN);
		receive_some(connection);
	}
	if (in->length != 47 || strncmp(in->data, "$40\r\n", 5) != 0)
		fail("could not load the script: %.*s", (int) in->length, in->data);
	memcpy(script_digest, in->data + 5, 40);
	in->done = in->length = 0;
}

/*
 * Goes on with a connection whose replies have all come.  Adds to "done" if
 * that ended a transaction; returns whether another step was begun.
 */
static bool
go_on(Connection *connection, bool time_is_over, int64_t *done)
{
	if (kind == CYCLE && !connection->completing)
	{
		connection->completing = true;
		compose(connection);
		send_some(connection);
		return true;
	}
	*done += connection->keys;
	return !time_is_over && start(connection);
}

/*
 * Keeps all connections busy until the time is over or there is nothing left
 * to fill, and prints the report.
 */
static void
run(Connection *connections)
{
	struct pollfd *waits = calloc((size_t) clients, sizeof(*waits));
	int			   active = 0;
	int64_t		   done = 0;
	double		   begin = now();
	double		   time = begin;

	if (waits == NULL)
		fail("out of memory");
	for (int i = 0; i < clients; i++)
	{
		waits[i].fd = start(&connections[i]) ? connections[i].fd : -1;
		active += waits[i].fd >= 0;
	}
	while (active > 0)
	{
		for (int i = 0; i < clients; i++)
			waits[i].events =
				POLLIN | (connections[i].out.done < connections[i].out.length ? POLLOUT : 0);
		if (poll(waits, (nfds_t) clients, 10000) <= 0)
			fail("the server does not answer");
		time = now();
		if (progress > 0 && time - begin >= progress)
		{
			printf("progress: %.4f s, %.4f tps\n", time - begin, (double) done / (time - begin));
			progress = 0;
		}
		for (int i = 0; i < clients; i++)
		{
			if (waits[i].revents & POLLOUT)
				send_some(&connections[i]);
			if (waits[i].revents & ~POLLOUT)
				receive_some(&connections[i]);
			if (waits[i].revents != 0 && connections[i].replies_due == 0 &&
				!go_on(&connections[i], seconds > 0 && time - begin >= seconds, &done))
			{
				waits[i].fd = -1;
				active--;
			}
		}
	}
	printf("number of transactions actually processed: %" PRId64 "\n", done);
	printf("tps = %f\n", (double) done / (now() - begin));
	free(waits);
}

static void
set_kind(const char *name)
{
	for (int i = FILL; i <= CYCLE; i++)
	{
		if (strcmp(name, kinds[i]) == 0)
		{
			kind = (Kind) i;
			return;
		}
	}
	fail("unknown kind of load: %s", name);
}

/*
 * Reads the command line.  Ends the program if it makes no sense.
 */
static void
read_arguments(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},	{"clients", required_argument, NULL, 'c'},
		{"time", required_argument, NULL, 'T'},		{"progress", required_argument, NULL, 'P'},
		{"pipeline", required_argument, NULL, 'p'}, {"rows", required_argument, NULL, 'r'},
		{"result", required_argument, NULL, 'R'},	{NULL, 0, NULL, 0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		switch (option)
		{
			case 's':
				socket_path = optarg;
				break;
			case 'c':
				clients = atoi(optarg);
				break;
			case 'T':
				seconds = atof(optarg);
				break;
			case 'P':
				progress = atof(optarg);
				break;
			case 'p':
				pipeline = atoi(optarg);
				break;
			case 'r':
				rows = atoll(optarg);
				break;
			case 'R':
				stored_result = optarg;
				break;
			default:
				exit(2);
		}
	}
	if (optind != argc - 1 || socket_path == NULL || clients < 1 || pipeline < 1 || rows < 1)
		fail("missing or bad arguments, see the head of load.c");
	set_kind(argv[optind]);
	if (kind == FILL)
		pipeline = 1000;
	else if (seconds <= 0)
		fail("--time is missing");
}

int
main(int argc, char **argv)
{
	Connection *connections;

	read_arguments(argc, argv);
	if (getrandom(&random_state, sizeof(random_state), 0) != sizeof(random_state))
		fail("no random numbers");
	random_state |= 1;

	connections = calloc((size_t) clients, sizeof(*connections));
	if (connections == NULL)
		fail("out of memory");
	for (int i = 0; i < clients; i++)
		open_connection(&connections[i]);
	load_script(&connections[0]);
	run(connections);
	return 0;
}
