/*
 * compat.h
 *		The only place that knows server versions apart.
 *
 * Supported: PostgreSQL 13 to 19.  Code elsewhere is written for the newest
 * interface; what an older server lacks is made up for here.
 */
#ifndef IDEMKIT_COMPAT_H
#define IDEMKIT_COMPAT_H

#include "utils/guc.h"

#if PG_VERSION_NUM < 130000
#error "idemkit needs PostgreSQL 13 or later"
#endif

/* Reserving the prefix of a module's settings got its name in 15. */
#if PG_VERSION_NUM < 150000
#define MarkGUCPrefixReserved(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

#endif /* IDEMKIT_COMPAT_H */
