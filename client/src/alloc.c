/*
 * alloc.c - memory, and failures of it on demand
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"

#ifdef IDEMKIT_TEST_ALLOC
#include <stdatomic.h>

static atomic_long countdown;
static atomic_int  failed;
static atomic_long live;

void
idemkit_test_fail_alloc(long nth)
{
	atomic_store(&failed, 0);
	atomic_store(&countdown, nth);
}

int
idemkit_test_alloc_failed(void)
{
	return atomic_load(&failed);
}

long
idemkit_test_alloc_live(void)
{
	return atomic_load(&live);
}

static int
must_fail(void)
{
	if (atomic_load(&countdown) > 0 && atomic_fetch_sub(&countdown, 1) == 1)
	{
		atomic_store(&failed, 1);
		return 1;
	}
	return 0;
}

#define COUNT_LIVE(n) ((void) atomic_fetch_add(&live, (n)))
#else
#define must_fail()	  0
#define COUNT_LIVE(n) ((void) 0)
#endif

/*
 * Returns uninitialized memory, or NULL.
 */
void *
idemkit_mem_alloc(size_t size)
{
	void *memory;

	if (must_fail())
		return NULL;
	memory = malloc(size > 0 ? size : 1);
	if (memory != NULL)
		COUNT_LIVE(1);
	return memory;
}

/*
 * Returns the block with its new size, or NULL and leaves the old one alone.
 */
void *
idemkit_mem_grow(void *old, size_t size)
{
	void *memory;

	if (must_fail())
		return NULL;
	memory = realloc(old, size > 0 ? size : 1);
	if (memory != NULL && old == NULL)
		COUNT_LIVE(1);
	return memory;
}

/*
 * Returns a copy, or NULL.
 */
char *
idemkit_mem_strdup(const char *text)
{
	size_t size = strlen(text) + 1;
	char  *copy = idemkit_mem_alloc(size);

	if (copy != NULL)
		memcpy(copy, text, size);
	return copy;
}

void
idemkit_mem_free(const void *memory)
{
	if (memory != NULL)
		COUNT_LIVE(-1);
	free((void *) (uintptr_t) memory);
}
