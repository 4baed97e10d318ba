/*
 * waits.c - the waits of one waiter, and the keys they wait for
 */
#include <string.h>

#include "alloc.h"
#include "waits.h"

#define FIRST_ROOM 64

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

bool
idemkit_waits_init(IdemkitWaits *waits, const uint64_t random[2])
{
	memset(waits, 0, sizeof(*waits));
	waits->hash_seed[0] = random[0];
	waits->hash_seed[1] = random[1];
	idemkit_list_init(&waits->queued);
	idemkit_list_init(&waits->notified);
	idemkit_list_init(&waits->reading);
	idemkit_list_init(&waits->ending);
	waits->key_room = waits->wait_room = FIRST_ROOM;
	waits->key_buckets = idemkit_mem_alloc(FIRST_ROOM * sizeof(*waits->key_buckets));
	waits->wait_buckets = idemkit_mem_alloc(FIRST_ROOM * sizeof(*waits->wait_buckets));
	if (waits->key_buckets == NULL || waits->wait_buckets == NULL)
	{
		idemkit_mem_free(waits->key_buckets);
		idemkit_mem_free(waits->wait_buckets);
		waits->key_buckets = NULL;
		waits->wait_buckets = NULL;
		return false;
	}
	for (size_t i = 0; i < FIRST_ROOM; i++)
	{
		waits->key_buckets[i] = NULL;
		waits->wait_buckets[i] = NULL;
	}
	return true;
}

static void
free_key(IdemkitKey *key)
{
	idemkit_record_free(key->record);
	idemkit_mem_free(key);
}

void
idemkit_waits_free(IdemkitWaits *waits)
{
	for (size_t i = 0; waits->wait_buckets != NULL && i < waits->wait_room; i++)
		while (waits->wait_buckets[i] != NULL)
		{
			IdemkitWait *wait = waits->wait_buckets[i];

			waits->wait_buckets[i] = wait->next_in_bucket;
			idemkit_mem_free(wait);
		}
	for (size_t i = 0; waits->key_buckets != NULL && i < waits->key_room; i++)
		while (waits->key_buckets[i] != NULL)
		{
			IdemkitKey *key = waits->key_buckets[i];

			waits->key_buckets[i] = key->next_in_bucket;
			free_key(key);
		}
	idemkit_mem_free(waits->key_buckets);
	idemkit_mem_free(waits->wait_buckets);
	idemkit_heap_free(&waits->schedule);
	idemkit_heap_free(&waits->deadlines);
}

/*
 * Double the buckets of keys once there are more keys than buckets.
 */
static bool
grow_keys(IdemkitWaits *waits)
{
	size_t		 room = waits->key_room * 2;
	IdemkitKey **buckets;

	if (waits->key_count < waits->key_room)
		return true;
	buckets = idemkit_mem_alloc(room * sizeof(*buckets));
	if (buckets == NULL)
		return false;
	for (size_t i = 0; i < room; i++)
		buckets[i] = NULL;
	for (size_t i = 0; i < waits->key_room; i++)
		while (waits->key_buckets[i] != NULL)
		{
			IdemkitKey	*key = waits->key_buckets[i];
			IdemkitKey **bucket = &buckets[key->hash & (room - 1)];

			waits->key_buckets[i] = key->next_in_bucket;
			key->next_in_bucket = *bucket;
			*bucket = key;
		}
	idemkit_mem_free(waits->key_buckets);
	waits->key_buckets = buckets;
	waits->key_room = room;
	return true;
}

/*
 * The same for waits, whose numbers scatter by themselves.
 */
static bool
grow_waits(IdemkitWaits *waits)
{
	size_t		  room = waits->wait_room * 2;
	IdemkitWait **buckets;

	if (waits->wait_count < waits->wait_room)
		return true;
	buckets = idemkit_mem_alloc(room * sizeof(*buckets));
	if (buckets == NULL)
		return false;
	for (size_t i = 0; i < room; i++)
		buckets[i] = NULL;
	for (size_t i = 0; i < waits->wait_room; i++)
		while (waits->wait_buckets[i] != NULL)
		{
			IdemkitWait	 *wait = waits->wait_buckets[i];
			IdemkitWait **bucket = &buckets[wait->id & (room - 1)];

			waits->wait_buckets[i] = wait->next_in_bucket;
			wait->next_in_bucket = *bucket;
			*bucket = wait;
		}
	idemkit_mem_free(waits->wait_buckets);
	waits->wait_buckets = buckets;
	waits->wait_room = room;
	return true;
}

IdemkitWait *
idemkit_waits_find(const IdemkitWaits *waits, IdemkitWaitId id)
{
	IdemkitWait *wait = waits->wait_buckets[id & (waits->wait_room - 1)];

	while (wait != NULL && wait->id != id)
		wait = wait->next_in_bucket;
	return wait;
}

static IdemkitKey *
find_hashed(const IdemkitWaits *waits, uint64_t hash, const char *text, size_t length)
{
	IdemkitKey *key = waits->key_buckets[hash & (waits->key_room - 1)];

	while (key != NULL &&
		   (key->hash != hash || key->length != length || memcmp(key->text, text, length) != 0))
		key = key->next_in_bucket;
	return key;
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
	uint64_t	 hash = hash_key(waits->hash_seed, text, length);
	IdemkitKey	*key = find_hashed(waits, hash, text, length);
	IdemkitKey **bucket;

	if (key != NULL)
		return key;
	if (!grow_keys(waits) || !idemkit_heap_reserve(&waits->schedule, waits->key_count + 1))
		return NULL;
	key = idemkit_mem_alloc(offsetof(IdemkitKey, text) + length + 1);
	if (key == NULL)
		return NULL;
	memset(key, 0, offsetof(IdemkitKey, text));
	key->hash = hash;
	key->length = length;
	memcpy(key->text, text, length);
	key->text[length] = '\0';
	key->schedule.index = IDEMKIT_HEAP_OUT;
	idemkit_list_init(&key->waits);
	idemkit_list_init(&key->link);
	bucket = &waits->key_buckets[hash & (waits->key_room - 1)];
	key->next_in_bucket = *bucket;
	*bucket = key;
	waits->key_count++;
	idemkit_key_queue(waits, key);
	return key;
}

static void
remove_key(IdemkitWaits *waits, IdemkitKey *key)
{
	IdemkitKey **at = &waits->key_buckets[key->hash & (waits->key_room - 1)];

	while (*at != key)
		at = &(*at)->next_in_bucket;
	*at = key->next_in_bucket;
	waits->key_count--;
	idemkit_list_remove(&key->link);
	idemkit_heap_remove(&waits->schedule, &key->schedule);
	free_key(key);
}

IdemkitWait *
idemkit_waits_add(IdemkitWaits *waits, const char *key, size_t length, int64_t deadline,
				  IdemkitWaitCallback callback, void *arg)
{
	IdemkitWait	 *wait;
	IdemkitWait **bucket;

	if (!grow_waits(waits) || !idemkit_heap_reserve(&waits->deadlines, waits->wait_count + 1))
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
	bucket = &waits->wait_buckets[wait->id & (waits->wait_room - 1)];
	wait->next_in_bucket = *bucket;
	*bucket = wait;
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
	IdemkitWait **at = &waits->wait_buckets[wait->id & (waits->wait_room - 1)];

	if (wait->key != NULL)
		idemkit_waits_end(waits, wait);
	idemkit_list_remove(&wait->link);
	while (*at != wait)
		at = &(*at)->next_in_bucket;
	*at = wait->next_in_bucket;
	idemkit_mem_free(wait);
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
