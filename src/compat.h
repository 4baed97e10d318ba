/*
 * compat.h
 *		The only place that knows server versions apart.
 *
 * Supported: PostgreSQL 13 to 19.  Code elsewhere is written for the newest
 * interface; what an older server lacks is made up for here.
 */
#ifndef IDEMKIT_COMPAT_H
#define IDEMKIT_COMPAT_H

#include "catalog/namespace.h"
#include "utils/guc.h"

#if PG_VERSION_NUM < 130000
#error "idemkit needs PostgreSQL 13 or later"
#endif

/* Wait events had their header from 14 on. */
#if PG_VERSION_NUM >= 140000
#include "utils/wait_event.h"
#else
#include "pgstat.h"
#endif

/* Reserving the prefix of a module's settings got its name in 15. */
#if PG_VERSION_NUM < 150000
#define MarkGUCPrefixReserved(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

/* A saved plan's search_path was called an override before 17. */
#if PG_VERSION_NUM < 170000
#define SearchPathMatchesCurrentEnvironment(path) OverrideSearchPathMatchesCurrent(path)
#endif

#endif /* IDEMKIT_COMPAT_H */
