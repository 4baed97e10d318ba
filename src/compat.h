/*
 * compat.h
 *		The only place that knows server versions apart.
 *
 * Supported: PostgreSQL 13 to 19.  Code elsewhere is written for the newest
 * interface; what an older server lacks is made up for here.
 */
#ifndef IDEMKIT_COMPAT_H
#define IDEMKIT_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
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

/* Inserting an index entry got the hint that its columns are unchanged in 14. */
#if PG_VERSION_NUM < 140000
#define index_insert(index, values, nulls, tid, relation, check, unchanged, info) \
	index_insert(index, values, nulls, tid, relation, check, info)
#endif

/* Functions named after one C function for two types had one name before 14. */
#if PG_VERSION_NUM < 140000
#define F_TIMESTAMPTZ_GE F_TIMESTAMP_GE
#define F_TIMESTAMPTZ_LT F_TIMESTAMP_LT
#endif

/* Reserving the prefix of a module's settings got its name in 15. */
#if PG_VERSION_NUM < 150000
#define MarkGUCPrefixReserved(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

/* A saved plan's search_path was called an override before 17. */
#if PG_VERSION_NUM < 170000
#define SearchPathMatchesCurrentEnvironment(path) OverrideSearchPathMatchesCurrent(path)
#endif

/* What does not return was marked behind its declaration before 18. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* Deleting a row took one option, as its last argument, before 19. */
#if PG_VERSION_NUM < 190000
#define table_tuple_delete(relation, tid, command, options, snapshot, crosscheck, wait, failure) \
	table_tuple_delete(relation, tid, command, snapshot, crosscheck, wait, failure, false)
#endif

#endif /* IDEMKIT_COMPAT_H */
