/*
 * pace.c
 *		How a sweep gives way to other sessions.
 *
 * Removing rows as fast as it goes keeps a processor and the write-ahead log
 * busy, and every commit beside it waits for its share of both.  So where
 * others have written since the batch before, a batch is small, and the sweep
 * rests after it for longer than it took; nothing is locked then.  While
 * nobody else writes, batches double until they are as large as asked.
 *
 * That others write is told by the transaction ids given out meanwhile.
 */
#include "idemkit.h"

#include "access/transam.h"

/*
 * A millisecond's work or so, and little that a commit beside it would have to
 * flush; yet enough that the commit after it is not most of the work.
 */
#define SMALL_BATCH_ROWS 100

/* A rest is so many times as long as the batch before it, */
#define REST_FACTOR 3

/* and no longer than this, should the batch have waited for something. */
#define LONGEST_REST_USECS 100000

/*
 * The next transaction id.
 */
static uint64
next_xid(void)
{
	return U64FromFullTransactionId(ReadNextFullTransactionId());
}

/*
 * Begins the first batch, and with it the pace of a sweep whose batches have
 * at most so many rows.
 */
void
idemkit_begin_pace(IdemkitPace *pace, int32 most_rows)
{
	pace->most_rows = most_rows;
	pace->rows = Min(most_rows, SMALL_BATCH_ROWS);
	pace->began = idemkit_clock();
	pace->next_xid = next_xid();
}

/*
 * Ends a batch, which is committed, rests if others are at work, and begins the
 * next.
 */
void
idemkit_give_way(IdemkitPace *pace)
{
	uint64 previous = pace->next_xid;

	pace->next_xid = next_xid();
	if (pace->next_xid > previous + 1) /* one was our own */
	{
		int64 spent = Max(idemkit_clock() - pace->began, 0);

		pace->rows = Min(pace->most_rows, SMALL_BATCH_ROWS);
		idemkit_sleep(Min(spent * REST_FACTOR, LONGEST_REST_USECS));
	}
	else
		pace->rows = Min((int64) pace->rows * 2, pace->most_rows);
	pace->began = idemkit_clock();
}
