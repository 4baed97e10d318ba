/*
 * waits.c - the waits of one waiter, and the keys they wait for
 */
#include <string.h>

#include "alloc.h"
#include "waits.h"

static uint64_t
rotate(uint64_t x, int by)
{
	return (x << by) | (x >> (64 - by));
}

static void
sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotate(v[1], 13) ^ v[0];
	v[0] = rotate(v[0], 32);
	v[2] += v[3];
	v[3] = rotate(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotate(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotate(v[1], 17) ^ v[2];
	v[2] = rotate(v[2], 32);
}

/*
 * SipHash-1-3. Keys may come from strangers; with a seed they do not know they
 * can not choose keys that all fall into one bucket.
 */
static uint64_t
hash_key(const uint64_t seed[2], const char *key, size_t length)
{
	uint64_t v[4] = {seed[0] ^ UINT64_C(0x736f6d6570736575), seed[1] ^ UINT64_C(0x646f72616e646f6d),
					 seed[0] ^ UINT64_C(0x6c7967656e657261),
					 seed[1] ^ UINT64_C(0x7465646279746573)};
	size_t	 whole = length / 8;
	uint64_t word;

	for (size_t i = 0; i <= whole; i++)
	{
		size_t left = length - i * 8;

		word = 0;
		memcpy(&word, key + i * 8, left < 8 ? left : 8);
		if (i == whole)
			word |= (uint64_t) length << 56;
		v[3] ^= word;
		sip_round(v);
		v[0] ^= word;
	}
	v[2] ^= 0xFF;
	for (int i = 0; i < 3; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void
idemkit_waits_init(IdemkitWaits *waits, const uint64_t random[2])
{
	memset(waits, 0, sizeof(*waits));
	waits->hash_seed[0] = random[0];
	waits->hash_seed[1] = random[1];
	idemkit_list_init(&waits->queued);
	idemkit_list_init(&waits->notified);
	idemkit_list_init(&waits->reading);
	idemkit_list_init(&waits->ending);
}

static void
free_key(IdemkitBucketLink *link)
{
	IdemkitKey *key = IDEMKIT_MEMBER(IdemkitKey, bucket, link);

	idemkit_record_free(key->record);
	idemkit_mem_free(key);
}

static void
free_wait(IdemkitBucketLink *link)
{
	idemkit_mem_free(IDEMKIT_MEMBER(IdemkitWait, bucket, link));
}

void
idemkit_waits_free(IdemkitWaits *waits)
{
	idemkit_buckets_free(&waits->waits, free_wait);
	idemkit_buckets_free(&waits->keys, free_key);
	idemkit_heap_free(&waits->schedule);
	idemkit_heap_free(&waits->deadlines);
}

/*
 * The numbers of waits scatter by themselves and are their hashes.
 */
IdemkitWait *
idemkit_waits_find(const IdemkitWaits *waits, IdemkitWaitId id)
{
	IdemkitBucketLink *link = idemkit_buckets_find(&waits->waits, NULL, id);

	return link != NULL ? IDEMKIT_MEMBER(IdemkitWait, bucket, link) : NULL;
}

static IdemkitKey *
find_hashed(const IdemkitWaits *waits, uint64_t hash, const char *text, size_t length)
{
	IdemkitBucketLink *link = NULL;

	while ((link = idemkit_buckets_find(&waits->keys, link, hash)) != NULL)
	{
		IdemkitKey *key = IDEMKIT_MEMBER(IdemkitKey, bucket, link);

		if (key->length == length && memcmp(key->text, text, length) == 0)
			return key;
	}
	return NULL;
}

IdemkitKey *
idemkit_waits_find_key(const IdemkitWaits *waits, const char *key, size_t length)
{
	return find_hashed(waits, hash_key(waits->hash_seed, key, length), key, length);
}

/*
 * The key of that text, made and queued where it is new; NULL when out of memory.
 */
static IdemkitKey *
find_or_add_key(IdemkitWaits *waits, const char *text, size_t length)
{
	uint64_t	hash = hash_key(waits->hash_seed, text, length);
	IdemkitKey *key = find_hashed(waits, hash, text, length);

	if (key != NULL)
		return key;
	if (!idemkit_buckets_reserve(&waits->keys) ||
		!idemkit_heap_reserve(&waits->schedule, waits->keys.count + 1))
		return NULL;
	key = idemkit_mem_alloc(offsetof(IdemkitKey, text) + length + 1);
	if (key == NULL)
		return NULL;
	memset(key, 0, offsetof(IdemkitKey, text));
	key->length = length;
	memcpy(key->text, text, length);
	key->text[length] = '\0';
	key->schedule.index = IDEMKIT_HEAP_OUT;
	idemkit_list_init(&key->waits);
	idemkit_list_init(&key->link);
	idemkit_buckets_add(&waits->keys, &key->bucket, hash);
	idemkit_key_queue(waits, key);
	return key;
}

static void
remove_key(IdemkitWaits *waits, IdemkitKey *key)
{
	idemkit_buckets_remove(&waits->keys, &key->bucket);
	idemkit_list_remove(&key->link);
	idemkit_heap_remove(&waits->schedule, &key->schedule);
	free_key(&key->bucket);
}

IdemkitWait *
idemkit_waits_add(IdemkitWaits *waits, const char *key, size_t length, int64_t deadline,
				  IdemkitWaitCallback callback, void *arg)
{
	IdemkitWait *wait;

	if (!idemkit_buckets_reserve(&waits->waits) ||
		!idemkit_heap_reserve(&waits->deadlines, waits->wait_count + 1))
		return NULL;
	wait = idemkit_mem_alloc(sizeof(*wait));
	if (wait == NULL)
		return NULL;
	wait->key = find_or_add_key(waits, key, length);
	if (wait->key == NULL)
	{
		idemkit_mem_free(wait);
		return NULL;
	}
	wait->id = ++waits->last_id;
	wait->callback = callback;
	wait->arg = arg;
	idemkit_list_append(&wait->key->waits, &wait->link);
	idemkit_heap_add(&waits->deadlines, &wait->deadline, deadline);
	idemkit_buckets_add(&waits->waits, &wait->bucket, wait->id);
	waits->wait_count++;
	return wait;
}

/*
 * Move a wait from its key to those that are ending.
 */
static void
detach(IdemkitWaits *waits, IdemkitWait *wait)
{
	idemkit_list_remove(&wait->link);
	idemkit_list_append(&waits->ending, &wait->link);
	idemkit_heap_remove(&waits->deadlines, &wait->deadline);
	wait->key = NULL;
	waits->wait_count--;
}

void
idemkit_waits_end(IdemkitWaits *waits, IdemkitWait *wait)
{
	IdemkitKey *key = wait->key;

	detach(waits, wait);
	if (idemkit_list_empty(&key->waits))
		remove_key(waits, key);
}

void
idemkit_waits_end_key(IdemkitWaits *waits, IdemkitKey *key)
{
	while (!idemkit_list_empty(&key->waits))
		detach(waits, IDEMKIT_MEMBER(IdemkitWait, link, key->waits.next));
	remove_key(waits, key);
}

void
idemkit_waits_remove(IdemkitWaits *waits, IdemkitWait *wait)
{
	if (wait->key != NULL)
		idemkit_waits_end(waits, wait);
	idemkit_list_remove(&wait->link);
	idemkit_buckets_remove(&waits->waits, &wait->bucket);
	free_wait(&wait->bucket);
}

/*
 * Take a key out of where it is.
 */
static void
displace(IdemkitWaits *waits, IdemkitKey *key, IdemkitPlace place)
{
	idemkit_list_remove(&key->link);
	idemkit_heap_remove(&waits->schedule, &key->schedule);
	key->place = place;
}

void
idemkit_key_queue(IdemkitWaits *waits, IdemkitKey *key)
{
	displace(waits, key, IDEMKIT_QUEUED);
	idemkit_list_append(&waits->queued, &key->link);
}

void
idemkit_key_notify(IdemkitWaits *waits, IdemkitKey *key)
{
	/*
	 * The server sends notifications between statements only. This one came
	 * before the answer, so the statement began after what it tells of.
	 */
	if (key->place == IDEMKIT_READING)
		return;
	displace(waits, key, IDEMKIT_QUEUED);
	idemkit_list_append(&waits->notified, &key->link);
}

void
idemkit_key_read(IdemkitWaits *waits, IdemkitKey *key)
{
	displace(waits, key, IDEMKIT_READING);
	idemkit_list_append(&waits->reading, &key->link);
}

void
idemkit_key_schedule(IdemkitWaits *waits, IdemkitKey *key, int64_t reread_at, int64_t lease_end)
{
	displace(waits, key, IDEMKIT_SCHEDULED);
	key->reread_at = reread_at;
	idemkit_heap_add(&waits->schedule, &key->schedule,
					 reread_at < lease_end ? reread_at : lease_end);
}

typedef struct Due
{
	IdemkitWaits *waits;
	int64_t		  now;
} Due;

/*
 * Is this key due, or would it be before half its interval is over? Reading such
 * keys early brings keys that were submitted at different times into step, so
 * that they need one query between them.
 */
static bool
take_due(IdemkitHeapNode *node, void *arg)
{
	Due		   *due = arg;
	IdemkitKey *key = IDEMKIT_MEMBER(IdemkitKey, schedule, node);

	if (node->when > due->now && key->reread_at - due->now > key->interval / 2)
		return false;
	key->place = IDEMKIT_QUEUED;
	idemkit_list_append(&due->waits->queued, &key->link);
	return true;
}

void
idemkit_waits_queue_due(IdemkitWaits *waits, int64_t now)
{
	Due due = {waits, now};

	idemkit_heap_take(&waits->schedule, take_due, &due);
}

static bool
take_all(IdemkitHeapNode *node, void *arg)
{
	IdemkitWaits *waits = arg;
	IdemkitKey	 *key = IDEMKIT_MEMBER(IdemkitKey, schedule, node);

	key->place = IDEMKIT_QUEUED;
	idemkit_list_append(&waits->queued, &key->link);
	return true;
}

void
idemkit_waits_queue_all(IdemkitWaits *waits)
{
	idemkit_waits_requeue(waits);
	idemkit_list_prepend_all(&waits->queued, &waits->notified);
	idemkit_heap_take(&waits->schedule, take_all, waits);
	for (IdemkitLink *link = waits->queued.next; link != &waits->queued; link = link->next)
		IDEMKIT_MEMBER(IdemkitKey, link, link)->interval = 0;
}

void
idemkit_waits_requeue(IdemkitWaits *waits)
{
	for (IdemkitLink *link = waits->reading.next; link != &waits->reading; link = link->next)
		IDEMKIT_MEMBER(IdemkitKey, link, link)->place = IDEMKIT_QUEUED;
	idemkit_list_prepend_all(&waits->queued, &waits->reading);
}
