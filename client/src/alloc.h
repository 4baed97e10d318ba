/*
 * alloc.h - the one place where this library asks for memory
 *
 * Compiled with IDEMKIT_TEST_ALLOC, as the test program does, it can be told to
 * fail at the n-th request and counts what is allocated. The installed library
 * has none of that.
 */
#ifndef IDEMKIT_ALLOC_H
#define IDEMKIT_ALLOC_H

#include <stddef.h>

void *idemkit_mem_alloc(size_t size);
void *idemkit_mem_grow(void *old, size_t size);
char *idemkit_mem_strdup(const char *text);
void  idemkit_mem_free(const void *memory);

#ifdef IDEMKIT_TEST_ALLOC
/* Let the n-th request from now fail (1: the next one); 0: none. */
void idemkit_test_fail_alloc(long nth);

/* Has the failure asked for happened? */
int idemkit_test_alloc_failed(void);

/* Blocks allocated and not freed. */
long idemkit_test_alloc_live(void);
#endif

#endif /* IDEMKIT_ALLOC_H */
