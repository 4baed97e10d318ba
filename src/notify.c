/*
 * notify.c
 *		Announcing the end of a claim.
 *
 * A notification is sent in the transaction that completes or releases, so
 * it is delivered if and when that commits.  Why not always: the server holds
 * one lock for all notifying commits from just before the commit record is
 * written until after it is flushed, so notifying transactions commit one at
 * a time.  With idemkit.notify = awaited only those pay that somebody waits
 * for.
 */
#include "idemkit.h"

#include "commands/async.h"
#include "utils/builtins.h"

/*
 * Announces that the claim of this key ended, as far as idemkit.notify asks
 * for it.  "awaited" tells whether a subscriber has marked the row.
 */
void
idemkit_announce(const text *key, bool awaited)
{
	char *payload;

	if (idemkit_notify == IDEMKIT_NOTIFY_NEVER)
		return;
	if (idemkit_notify == IDEMKIT_NOTIFY_AWAITED && !awaited)
		return;
	payload = text_to_cstring(key);
	Async_Notify(IDEMKIT_NOTIFY_CHANNEL, payload);
	pfree(payload);
}
