/*
 * buckets.c - a hash table that doubles when it has a member for each bucket
 */
#include "alloc.h"
#include "buckets.h"

#define FIRST_ROOM 64

static IdemkitBucketLink **
bucket_of(const IdemkitBuckets *buckets, uint64_t hash)
{
	return &buckets->first[hash & (buckets->room - 1)];
}

static void
put(const IdemkitBuckets *buckets, IdemkitBucketLink *link)
{
	IdemkitBucketLink **bucket = bucket_of(buckets, link->hash);

	link->next = *bucket;
	*bucket = link;
}

bool
idemkit_buckets_reserve(IdemkitBuckets *buckets)
{
	IdemkitBuckets grown = *buckets;

	if (buckets->count < buckets->room)
		return true;
	grown.room = buckets->room > 0 ? buckets->room * 2 : FIRST_ROOM;
	grown.first = idemkit_mem_alloc(grown.room * sizeof(*grown.first));
	if (grown.first == NULL)
		return false;
	for (size_t i = 0; i < grown.room; i++)
		grown.first[i] = NULL;
	for (size_t i = 0; i < buckets->room; i++)
		while (buckets->first[i] != NULL)
		{
			IdemkitBucketLink *link = buckets->first[i];

			buckets->first[i] = link->next;
			put(&grown, link);
		}
	idemkit_mem_free(buckets->first);
	*buckets = grown;
	return true;
}

void
idemkit_buckets_add(IdemkitBuckets *buckets, IdemkitBucketLink *link, uint64_t hash)
{
	link->hash = hash;
	put(buckets, link);
	buckets->count++;
}

void
idemkit_buckets_remove(IdemkitBuckets *buckets, IdemkitBucketLink *link)
{
	IdemkitBucketLink **at = bucket_of(buckets, link->hash);

	while (*at != link)
		at = &(*at)->next;
	*at = link->next;
	buckets->count--;
}

IdemkitBucketLink *
idemkit_buckets_find(const IdemkitBuckets *buckets, const IdemkitBucketLink *after, uint64_t hash)
{
	IdemkitBucketLink *link;

	if (buckets->room == 0)
		return NULL;
	link = after != NULL ? after->next : *bucket_of(buckets, hash);
	while (link != NULL && link->hash != hash)
		link = link->next;
	return link;
}

void
idemkit_buckets_free(IdemkitBuckets *buckets, void (*free_member)(IdemkitBucketLink *link))
{
	for (size_t i = 0; i < buckets->room; i++)
		while (buckets->first[i] != NULL)
		{
			IdemkitBucketLink *link = buckets->first[i];

			buckets->first[i] = link->next;
			free_member(link);
		}
	idemkit_mem_free(buckets->first);
}
