/*
 * options.c - settings of a waiter to be made
 */
#include <string.h>

#include "alloc.h"
#include "waiter.h"

static const IdemkitWaiterOptions defaults = {
	.listen = IDEMKIT_LISTEN_AUTO,
	.connect_timeout_us = 5000000,
	.query_timeout_us = 5000000,
	.reconnect_min_us = 50000,
	.reconnect_max_us = 5000000,
};

IdemkitWaiterOptions *
idemkit_waiter_options_create(void)
{
	IdemkitWaiterOptions *options = idemkit_mem_alloc(sizeof(*options));

	if (options != NULL)
		*options = defaults;
	return options;
}

void
idemkit_waiter_options_free(IdemkitWaiterOptions *options)
{
	if (options == NULL)
		return;
	idemkit_mem_free(options->records);
	idemkit_mem_free(options);
}

/*
 * Fill *to from options that may be NULL; false when out of memory.
 */
bool
idemkit_options_copy(IdemkitWaiterOptions *to, const IdemkitWaiterOptions *from)
{
	*to = from != NULL ? *from : defaults;
	if (to->records == NULL)
		return true;
	to->records = idemkit_mem_strdup(to->records);
	return to->records != NULL;
}

IdemkitStatus
idemkit_waiter_options_set_records(IdemkitWaiterOptions *options, const char *records)
{
	char *copy = NULL;

	if (options == NULL)
		return IDEMKIT_ERROR_ARGUMENT;
	if (records != NULL)
	{
		copy = idemkit_mem_strdup(records);
		if (copy == NULL)
			return IDEMKIT_ERROR_MEMORY;
	}
	idemkit_mem_free(options->records);
	options->records = copy;
	return IDEMKIT_OK;
}

IdemkitStatus
idemkit_waiter_options_set_listen(IdemkitWaiterOptions *options, IdemkitListen listen)
{
	if (options == NULL || (listen != IDEMKIT_LISTEN_AUTO && listen != IDEMKIT_LISTEN_OFF &&
							listen != IDEMKIT_LISTEN_ALWAYS))
		return IDEMKIT_ERROR_ARGUMENT;
	options->listen = listen;
	return IDEMKIT_OK;
}

static IdemkitStatus
set_duration(int64_t *place, double seconds)
{
	if (place == NULL || !idemkit_seconds_valid(seconds, 0) || seconds <= 0)
		return IDEMKIT_ERROR_ARGUMENT;
	*place = idemkit_seconds_to_us(seconds);
	return IDEMKIT_OK;
}

IdemkitStatus
idemkit_waiter_options_set_connect_timeout(IdemkitWaiterOptions *options, double seconds)
{
	return set_duration(options != NULL ? &options->connect_timeout_us : NULL, seconds);
}

IdemkitStatus
idemkit_waiter_options_set_query_timeout(IdemkitWaiterOptions *options, double seconds)
{
	return set_duration(options != NULL ? &options->query_timeout_us : NULL, seconds);
}

IdemkitStatus
idemkit_waiter_options_set_reconnect(IdemkitWaiterOptions *options, double min_seconds,
									 double max_seconds)
{
	int64_t min;
	int64_t max;

	if (options == NULL || set_duration(&min, min_seconds) != IDEMKIT_OK ||
		set_duration(&max, max_seconds) != IDEMKIT_OK || min > max)
		return IDEMKIT_ERROR_ARGUMENT;
	options->reconnect_min_us = min;
	options->reconnect_max_us = max;
	return IDEMKIT_OK;
}

IdemkitStatus
idemkit_waiter_options_set_notice(IdemkitWaiterOptions *options, IdemkitNoticeCallback callback,
								  void *arg)
{
	if (options == NULL)
		return IDEMKIT_ERROR_ARGUMENT;
	options->notice = callback;
	options->notice_arg = arg;
	return IDEMKIT_OK;
}
