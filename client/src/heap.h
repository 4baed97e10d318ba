/*
 * heap.h - a queue of moments, the earliest first
 */
#ifndef IDEMKIT_HEAP_H
#define IDEMKIT_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lies in the member. index is where it stands in the heap, or IDEMKIT_HEAP_OUT. */
typedef struct IdemkitHeapNode
{
	int64_t when;
	size_t	index;
} IdemkitHeapNode;

#define IDEMKIT_HEAP_OUT SIZE_MAX

/* Starts as {0}. */
typedef struct IdemkitHeap
{
	IdemkitHeapNode **nodes;
	size_t			  count;
	size_t			  room;
} IdemkitHeap;

/*
 * Make room for that many members; false when out of memory. idemkit_heap_add()
 * within that room can not fail.
 */
bool idemkit_heap_reserve(IdemkitHeap *heap, size_t members);
void idemkit_heap_add(IdemkitHeap *heap, IdemkitHeapNode *node, int64_t when);
void idemkit_heap_remove(IdemkitHeap *heap, IdemkitHeapNode *node);
/* The earliest member, or NULL. */
IdemkitHeapNode *idemkit_heap_first(const IdemkitHeap *heap);

/*
 * Take out every member for which take() says true. Walks over all of them.
 */
void
idemkit_heap_take(IdemkitHeap *heap, bool (*take)(IdemkitHeapNode *node, void *arg), void *arg);
void idemkit_heap_free(IdemkitHeap *heap);

#endif /* IDEMKIT_HEAP_H */
