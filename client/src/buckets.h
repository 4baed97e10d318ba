/*
 * buckets.h - hash tables whose links lie in the members
 *
 * The hash is the caller's: as many members as it likes may have the same, and it
 * tells them apart itself.
 */
#ifndef IDEMKIT_BUCKETS_H
#define IDEMKIT_BUCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct IdemkitBucketLink
{
	struct IdemkitBucketLink *next; /* in the same bucket */
	uint64_t				  hash;
} IdemkitBucketLink;

/* Starts as {0}. */
typedef struct IdemkitBuckets
{
	IdemkitBucketLink **first; /* of each bucket */
	size_t				room;  /* buckets: a power of two, or 0 */
	size_t				count; /* members */
} IdemkitBuckets;

/*
 * Make room for one more member; false when out of memory. idemkit_buckets_add()
 * after it can not fail.
 */
bool idemkit_buckets_reserve(IdemkitBuckets *buckets);
void idemkit_buckets_add(IdemkitBuckets *buckets, IdemkitBucketLink *link, uint64_t hash);
void idemkit_buckets_remove(IdemkitBuckets *buckets, IdemkitBucketLink *link);
/* A member of that hash after a member, or the first where that is NULL; or NULL. */
IdemkitBucketLink *
idemkit_buckets_find(const IdemkitBuckets *buckets, const IdemkitBucketLink *after, uint64_t hash);
/* Frees the table, and its members by free_member(). */
void idemkit_buckets_free(IdemkitBuckets *buckets, void (*free_member)(IdemkitBucketLink *link));

#endif /* IDEMKIT_BUCKETS_H */
