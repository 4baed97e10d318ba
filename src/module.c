/*
 * module.c
 *		Start of the library: settings, and the callbacks of the table cache.
 *
 * The library needs no shared memory and no preloading; it is loaded by the
 * first call of one of its functions.
 */
#include "idemkit.h"

#include <limits.h>

#include "compat.h"

PG_MODULE_MAGIC;

void _PG_init(void);

int idemkit_notify = IDEMKIT_NOTIFY_ALWAYS;
int idemkit_max_response_bytes = 0;

static const struct config_enum_entry notify_options[] = {
	{"always", IDEMKIT_NOTIFY_ALWAYS, false},
	{"awaited", IDEMKIT_NOTIFY_AWAITED, false},
	{"never", IDEMKIT_NOTIFY_NEVER, false},
	{NULL, 0, false}};

/*
 * Called once per backend when the library is loaded.
 */
void
_PG_init(void)
{
	DefineCustomEnumVariable(
		"idemkit.notify",
		"Sets which completions and releases are announced on channel " IDEMKIT_NOTIFY_CHANNEL ".",
		"\"awaited\" announces only those a subscriber has marked.", &idemkit_notify,
		IDEMKIT_NOTIFY_ALWAYS, notify_options, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable(
		"idemkit.max_response_bytes", "Sets the largest response idemkit_complete stores.",
		"Body and headers count together. Zero means no limit.", &idemkit_max_response_bytes, 0, 0,
		INT_MAX, PGC_USERSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	MarkGUCPrefixReserved("idemkit");

	idemkit_watch_tables();
}
