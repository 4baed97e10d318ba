/*
 * heap.c - a binary heap whose members know their place, so that any of them can
 * be taken out
 */
#include "alloc.h"
#include "heap.h"

bool
idemkit_heap_reserve(IdemkitHeap *heap, size_t members)
{
	size_t			  room = heap->room > 0 ? heap->room : 16;
	IdemkitHeapNode **nodes;

	if (members <= heap->room)
		return true;
	while (room < members)
		room *= 2;
	nodes = idemkit_mem_grow(heap->nodes, room * sizeof(*nodes));
	if (nodes == NULL)
		return false;
	heap->nodes = nodes;
	heap->room = room;
	return true;
}

static void
place(IdemkitHeap *heap, size_t index, IdemkitHeapNode *node)
{
	heap->nodes[index] = node;
	node->index = index;
}

static void
sift_up(IdemkitHeap *heap, IdemkitHeapNode *node)
{
	size_t index = node->index;

	while (index > 0)
	{
		size_t parent = (index - 1) / 2;

		if (heap->nodes[parent]->when <= node->when)
			break;
		place(heap, index, heap->nodes[parent]);
		index = parent;
	}
	place(heap, index, node);
}

static void
sift_down(IdemkitHeap *heap, IdemkitHeapNode *node)
{
	size_t index = node->index;

	for (;;)
	{
		size_t child = 2 * index + 1;

		if (child >= heap->count)
			break;
		if (child + 1 < heap->count && heap->nodes[child + 1]->when < heap->nodes[child]->when)
			child++;
		if (node->when <= heap->nodes[child]->when)
			break;
		place(heap, index, heap->nodes[child]);
		index = child;
	}
	place(heap, index, node);
}

void
idemkit_heap_add(IdemkitHeap *heap, IdemkitHeapNode *node, int64_t when)
{
	node->when = when;
	place(heap, heap->count++, node);
	sift_up(heap, node);
}

void
idemkit_heap_remove(IdemkitHeap *heap, IdemkitHeapNode *node)
{
	size_t			 index = node->index;
	IdemkitHeapNode *last;

	if (index == IDEMKIT_HEAP_OUT)
		return;
	node->index = IDEMKIT_HEAP_OUT;
	last = heap->nodes[--heap->count];
	if (last == node)
		return;
	place(heap, index, last);
	sift_down(heap, last);
	sift_up(heap, last);
}

IdemkitHeapNode *
idemkit_heap_first(const IdemkitHeap *heap)
{
	return heap->count > 0 ? heap->nodes[0] : NULL;
}

void
idemkit_heap_take(IdemkitHeap *heap, bool (*take)(IdemkitHeapNode *node, void *arg), void *arg)
{
	size_t kept = 0;

	for (size_t i = 0; i < heap->count; i++)
	{
		IdemkitHeapNode *node = heap->nodes[i];

		if (take(node, arg))
			node->index = IDEMKIT_HEAP_OUT;
		else
			place(heap, kept++, node);
	}
	heap->count = kept;
	for (size_t i = kept / 2; i-- > 0;)
		sift_down(heap, heap->nodes[i]);
}

void
idemkit_heap_free(IdemkitHeap *heap)
{
	idemkit_mem_free(heap->nodes);
	heap->nodes = NULL;
	heap->count = heap->room = 0;
}
