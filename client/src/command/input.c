/*
 * input.c - what is read from files, standard input and the environment
 */
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a bytea can hold at most. */
#define INPUT_LIMIT ((size_t) 1 << 30)

/*
 * All that fd has. Appends a NUL that does not count. EX_OK, or said.
 */
static int
read_all(int fd, const char *path, char **data, size_t *length)
{
	size_t room = 65536;
	char  *buffer = malloc(room);
	size_t n = 0;

	while (buffer != NULL)
	{
		ssize_t got = read(fd, buffer + n, room - n - 1);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 || n + (size_t) got >= INPUT_LIMIT)
		{
			say("cannot read \"%s\": %s", path, got < 0 ? strerror(errno) : "it is too large");
			free(buffer);
			return got < 0 ? EX_NOINPUT : EX_DATAERR;
		}
		n += (size_t) got;
		if (got == 0)
		{
			buffer[n] = '\0';
			*data = buffer;
			*length = n;
			return EX_OK;
		}
		if (room - n < 2)
		{
			char *larger = realloc(buffer, room *= 2);

			if (larger == NULL)
				free(buffer);
			buffer = larger;
		}
	}
	say("out of memory");
	return EX_OSERR;
}

int
read_input(const char *path, char **data, size_t *length)
{
	bool is_stdin = strcmp(path, "-") == 0;
	int	 fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
	int	 status;

	if (fd < 0)
	{
		say("cannot open \"%s\": %s", path, strerror(errno));
		return EX_NOINPUT;
	}
	status = read_all(fd, path, data, length);
	if (!is_stdin)
		close(fd);
	return status;
}

int
read_token(const Options *options, char **token)
{
	const char *variable = getenv(TOKEN_VARIABLE);
	size_t		length;
	int			status;

	if (options->token_file != NULL)
	{
		status = read_input(options->token_file, token, &length);
		if (status != EX_OK)
			return status;
	}
	else
	{
		*token = strdup(variable != NULL ? variable : "");
		if (*token == NULL)
		{
			say("out of memory");
			return EX_OSERR;
		}
		length = strlen(*token);
	}
	while (length > 0 && strchr(" \t\r\n", (*token)[length - 1]) != NULL)
		(*token)[--length] = '\0';
	if (length > 0 && strlen(*token) == length)
		return EX_OK;
	if (options->token_file != NULL)
		say("there is no claim token in \"%s\"", options->token_file);
	else
		say("no claim token: set " TOKEN_VARIABLE " in the environment or give --token-file");
	free(*token);
	*token = NULL;
	return EX_USAGE;
}
