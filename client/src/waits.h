/*
 * waits.h - the waits of one waiter, and the keys they wait for
 *
 * A key is read once for all waits that share it. Where a key stands:
 *
 *	 QUEUED		to be read by the next query (waits->queued, or waits->notified
 *				where a notification said that there is something to read)
 *	 READING	in the query that is under way (waits->reading)
 *	 SCHEDULED	read lately, to be read again when its time comes (waits->schedule)
 *
 * A key lives as long as somebody waits for it. Nothing here knows of
 * connections, and nothing calls back.
 */
#ifndef IDEMKIT_WAITS_H
#define IDEMKIT_WAITS_H

#include "buckets.h"
#include "heap.h"
#include "idemkit.h"
#include "list.h"

typedef enum IdemkitPlace
{
	IDEMKIT_QUEUED,
	IDEMKIT_READING,
	IDEMKIT_SCHEDULED
} IdemkitPlace;

typedef struct IdemkitKey
{
	IdemkitBucketLink	 bucket;
	IdemkitLink			 waits; /* head of IdemkitWait.link */
	IdemkitPlace		 place;
	IdemkitLink			 link;		/* in queued, notified or reading */
	IdemkitHeapNode		 schedule;	/* SCHEDULED: when to read it, or its lease's end */
	int64_t				 reread_at; /* SCHEDULED: when to read it, its lease aside */
	int64_t				 interval;	/* since the last reading, in microseconds; 0: none yet */
	const IdemkitRecord *record;	/* as last read, or NULL */
	size_t				 length;
	char				 text[];
} IdemkitKey;

typedef struct IdemkitWait
{
	IdemkitBucketLink	bucket;
	IdemkitWaitId		id;
	IdemkitKey		   *key;  /* NULL once it is ending */
	IdemkitLink			link; /* in key->waits or waits->ending */
	IdemkitHeapNode		deadline;
	IdemkitWaitCallback callback;
	void			   *arg;
} IdemkitWait;

typedef struct IdemkitWaits
{
	IdemkitBuckets keys;
	IdemkitBuckets waits;
	size_t		   wait_count; /* those ending not among them */
	IdemkitWaitId  last_id;
	uint64_t	   hash_seed[2];
	IdemkitLink	   queued;
	IdemkitLink	   notified;
	IdemkitLink	   reading;
	IdemkitLink	   ending;	  /* waits whose callback is about to be called */
	IdemkitHeap	   schedule;  /* of IdemkitKey.schedule */
	IdemkitHeap	   deadlines; /* of IdemkitWait.deadline */
} IdemkitWaits;

/* random is what keys are scattered by. */
void idemkit_waits_init(IdemkitWaits *waits, const uint64_t random[2]);
/* Frees all, waits and keys included, without a word to anybody. */
void idemkit_waits_free(IdemkitWaits *waits);

/* Returns NULL when out of memory, having changed nothing that shows. */
IdemkitWait *idemkit_waits_add(IdemkitWaits *waits, const char *key, size_t length,
							   int64_t deadline, IdemkitWaitCallback callback, void *arg);
IdemkitWait *idemkit_waits_find(const IdemkitWaits *waits, IdemkitWaitId id);
IdemkitKey	*idemkit_waits_find_key(const IdemkitWaits *waits, const char *key, size_t length);

/* Forget a wait, and its key where nobody else waits for it. */
void idemkit_waits_remove(IdemkitWaits *waits, IdemkitWait *wait);

/* Move a wait, or all waits of a key, to waits->ending; the key may go. */
void idemkit_waits_end(IdemkitWaits *waits, IdemkitWait *wait);
void idemkit_waits_end_key(IdemkitWaits *waits, IdemkitKey *key);

/* Put a key elsewhere. */
void idemkit_key_queue(IdemkitWaits *waits, IdemkitKey *key);
void idemkit_key_notify(IdemkitWaits *waits, IdemkitKey *key);
void idemkit_key_read(IdemkitWaits *waits, IdemkitKey *key);
void
idemkit_key_schedule(IdemkitWaits *waits, IdemkitKey *key, int64_t reread_at, int64_t lease_end);

/* Queue what is due, and all keys that would be due soon after. */
void idemkit_waits_queue_due(IdemkitWaits *waits, int64_t now);
/* Queue everything anew, with its schedule begun again. */
void idemkit_waits_queue_all(IdemkitWaits *waits);
/* Put what is being read back to the front of the queue. */
void idemkit_waits_requeue(IdemkitWaits *waits);

#endif /* IDEMKIT_WAITS_H */
