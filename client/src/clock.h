/*
 * clock.h - this machine's monotonic clock, and chance
 */
#ifndef IDEMKIT_CLOCK_H
#define IDEMKIT_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* A moment that never comes. */
#define IDEMKIT_NEVER INT64_MAX

/* Microseconds by a clock that only goes forward. */
int64_t idemkit_clock(void);

/* Is it a duration a caller may ask for, from least up to ten years? NaN is not. */
bool	idemkit_seconds_valid(double seconds, double least);
int64_t idemkit_seconds_to_us(double seconds);

/* Bytes nobody can guess; false where the system has none to give. */
bool idemkit_random_bytes(void *bytes, unsigned length);

/* The next of a sequence of numbers that need not be secret; *state is not 0. */
uint64_t idemkit_random_next(uint64_t *state);

#endif /* IDEMKIT_CLOCK_H */
