/*
 * idemkit.h
 *		Declarations shared by the files of the extension.
 *
 * Times are TimestampTz and durations int64, both in microseconds, named
 * "clock" when they are a reading of the database's clock.  Only statements.c
 * knows SPI; what it returns is allocated in the caller's memory context.
 */
#ifndef IDEMKIT_H
#define IDEMKIT_H

#include "postgres.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "utils/relcache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"

/* What the control file calls this version; checked against pg_extension. */
#define IDEMKIT_EXTENSION_VERSION "1.0"

/* The layout of a row that this library writes and understands. */
#define IDEMKIT_SCHEMA_VERSION 1

/* Limits of design and of the functions' documentation. */
#define IDEMKIT_MAX_KEY_BYTES		 1024
#define IDEMKIT_MAX_TABLE_NAME_BYTES 46
#define IDEMKIT_MAX_DURATION_SECONDS (10 * 365.25 * 86400) /* ten years */

/* How often a call looks again after losing a race before it gives up. */
#define IDEMKIT_MAX_LOOKS 1000

#define IDEMKIT_NOTIFY_CHANNEL "idemkit_completions"

/* Errors a caller can cause.  Any other is the server's own. */
#define IDEMKIT_ERRCODE_NULL_ARGUMENT  ERRCODE_NULL_VALUE_NOT_ALLOWED			/* 22004 */
#define IDEMKIT_ERRCODE_BAD_ARGUMENT   ERRCODE_INVALID_PARAMETER_VALUE			/* 22023 */
#define IDEMKIT_ERRCODE_BAD_NAME	   ERRCODE_INVALID_NAME						/* 42602 */
#define IDEMKIT_ERRCODE_NO_TABLE	   ERRCODE_UNDEFINED_TABLE					/* 42P01 */
#define IDEMKIT_ERRCODE_TABLE_EXISTS   ERRCODE_DUPLICATE_TABLE					/* 42P07 */
#define IDEMKIT_ERRCODE_NO_SCHEMA	   ERRCODE_UNDEFINED_SCHEMA					/* 3F000 */
#define IDEMKIT_ERRCODE_NOT_RECORDS	   ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE /* 55000 */
#define IDEMKIT_ERRCODE_UNSETTLED	   ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE /* 55000 */
#define IDEMKIT_ERRCODE_WRONG_VERSION  ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE /* 55000 */
#define IDEMKIT_ERRCODE_TOO_LARGE	   ERRCODE_PROGRAM_LIMIT_EXCEEDED			/* 54000 */
#define IDEMKIT_ERRCODE_IN_TRANSACTION ERRCODE_ACTIVE_SQL_TRANSACTION			/* 25001 */
#define IDEMKIT_ERRCODE_REPLICATED	   ERRCODE_FEATURE_NOT_SUPPORTED			/* 0A000 */
#define IDEMKIT_ERRCODE_SHARD_FAILED   ERRCODE_EXTERNAL_ROUTINE_EXCEPTION		/* 38000 */
#define IDEMKIT_ERRCODE_CLAIM_LOST	   MAKE_SQLSTATE('I', 'K', '0', '0', '1')	/* IK001 */

/* module.c: settings */
typedef enum IdemkitNotify
{
	IDEMKIT_NOTIFY_NEVER,
	IDEMKIT_NOTIFY_AWAITED,
	IDEMKIT_NOTIFY_ALWAYS
} IdemkitNotify;

extern int idemkit_notify;
extern int idemkit_max_response_bytes;

/* arguments.c: what a caller passed, checked */
extern text *idemkit_text_argument(FunctionCallInfo fcinfo, int argno, const char *name);
extern text *idemkit_key_argument(FunctionCallInfo fcinfo, int argno);
extern int32 idemkit_int_argument(FunctionCallInfo fcinfo, int argno, const char *name);
extern bool	 idemkit_bool_argument(FunctionCallInfo fcinfo, int argno, const char *name);
extern int64 idemkit_duration_argument(FunctionCallInfo fcinfo, int argno, const char *name);
extern int64 idemkit_lease_argument(FunctionCallInfo fcinfo, int argno);

/* key.c: effective keys and claim tokens */
extern void	 idemkit_check_key(const text *key);
extern text *idemkit_fresh_token(void);

/* clock.c: the database's clock */
extern TimestampTz idemkit_clock(void);
extern bool		   idemkit_waited(TimestampTz clock, int64 duration, TimestampTz *later);
extern void		   idemkit_sleep(int64 usecs);
extern double	   idemkit_seconds_until(TimestampTz end, TimestampTz clock);

/*
 * Columns of the composite type idemkit_record, in its order.
 */
typedef enum IdemkitColumn
{
	IDEMKIT_EFFECTIVE_KEY,
	IDEMKIT_STATE,
	IDEMKIT_FINGERPRINT,
	IDEMKIT_FINGERPRINT_VERSION,
	IDEMKIT_CLAIM_TOKEN,
	IDEMKIT_CLAIMED_AT,
	IDEMKIT_LEASE_UNTIL,
	IDEMKIT_COMPLETED_AT,
	IDEMKIT_RESPONSE_STATUS,
	IDEMKIT_RESPONSE_HEADERS,
	IDEMKIT_RESPONSE_BODY,
	IDEMKIT_ATTEMPTS,
	IDEMKIT_REMAINING_SECONDS,
	IDEMKIT_FENCE
} IdemkitColumn;

#define IDEMKIT_RECORD_COLUMNS (IDEMKIT_FENCE + 1)

/* What is read of a row: the columns before those computed, then schema_version. */
#define IDEMKIT_READ_COLUMNS (IDEMKIT_ATTEMPTS + 2)

/*
 * statements.c: the SQL of the verbs.  The texts, argument types and result
 * columns are listed there in this order.
 */
typedef enum IdemkitStatement
{
	IDEMKIT_READ,
	IDEMKIT_INSERT_CLAIM,
	IDEMKIT_TAKE_OVER,
	IDEMKIT_RESTAMP_CLAIM,
	IDEMKIT_COMPLETE,
	IDEMKIT_RESTAMP_RESULT,
	IDEMKIT_RELEASE,
	IDEMKIT_RELEASE_KEEPING,
	IDEMKIT_RENEW,
	IDEMKIT_GUARD,
	IDEMKIT_VACUUM,
	IDEMKIT_VACUUM_BY_AGE,
	IDEMKIT_MARK_AWAITED,
	IDEMKIT_READ_MANY,
	IDEMKIT_INSERT_CLAIMS,
	IDEMKIT_TAKE_OVER_MANY,
	IDEMKIT_RESTAMP_CLAIMS,
	IDEMKIT_COMPLETE_MANY,
	IDEMKIT_RESTAMP_RESULTS,
	IDEMKIT_COUNT_RECORDS,
	IDEMKIT_CALL_ON_SHARDS
} IdemkitStatement;

#define IDEMKIT_STATEMENT_COUNT (IDEMKIT_CALL_ON_SHARDS + 1)

/*
 * distributed.c: tables that Citus keeps.  A replicated one has the same rows
 * on several servers.
 */
typedef enum IdemkitPlacement
{
	IDEMKIT_HERE,
	IDEMKIT_SHARDED,
	IDEMKIT_REPLICATED
} IdemkitPlacement;

/*
 * records.c: a records table as this backend knows it.  It lives as long as
 * the backend; name and plans are made anew when the catalogue changes.
 */
typedef struct IdemkitTable
{
	Oid				 relid;		/* hash key */
	bool			 checked;	/* nothing changed since the last check */
	IdemkitPlacement placement; /* see distributed.c */
	char			*name;		/* qualified and quoted, or NULL */
	Oid				 key_index; /* for direct.c, or InvalidOid */
	Oid				 key_collation;
	Oid				 expiry_index; /* likewise */
	AttrNumber		 columns[IDEMKIT_READ_COLUMNS];
	AttrNumber		 awaited_column;
	bool			 more_unique;					 /* more than keys is kept apart */
	bool			 plain;							 /* see idemkit_is_plain() */
	SPIPlanPtr		 plans[IDEMKIT_STATEMENT_COUNT]; /* NULL until first used */
} IdemkitTable;

extern IdemkitTable	   *idemkit_open_table(FunctionCallInfo fcinfo, int argno);
extern IdemkitTable	   *idemkit_check_table(Oid relid);
extern Oid				idemkit_table_argument(FunctionCallInfo fcinfo, int argno);
pg_noreturn extern void idemkit_refuse_missing_table(Oid relid);
extern void				idemkit_watch_tables(void);

/* statements.c, continued */
typedef struct IdemkitResult
{
	uint64	   count; /* rows read or changed */
	HeapTuple *rows;  /* as many, if the statement returns rows */
	TupleDesc  rowdesc;
} IdemkitResult;

extern IdemkitResult idemkit_execute(IdemkitTable *table, IdemkitStatement statement,
									 const Datum *values, const char *nulls);
extern Datum		 idemkit_result_value(const IdemkitResult *result, uint64 row, int column);
extern void			 idemkit_execute_definition(const char *command);
extern void			 idemkit_begin_batches(FunctionCallInfo fcinfo);
extern void			 idemkit_commit_batch(void);
extern void			 idemkit_end_batches(void);
extern Oid			 idemkit_find_extension(char **version);

/*
 * layout.c: what makes a table a records table, and how one is made.
 */
typedef struct IdemkitFault
{
	char *what; /* a sentence, or NULL if there is no fault */
	char *mend; /* the statement that mends it, or NULL */
} IdemkitFault;

extern IdemkitFault idemkit_layout_fault(Relation table);
extern IdemkitFault idemkit_schema_fault(Relation table);
extern IdemkitFault idemkit_adoption_fault(Relation table);
extern char		   *idemkit_quoted_name(Relation table);
extern bool			idemkit_is_plain(Relation table);
extern AttrNumber	idemkit_column_number(Relation table, const char *name);
extern Oid			idemkit_key_index(Relation table);
extern bool			idemkit_keeps_more_unique(Relation table);
extern bool			idemkit_has_c_collation(Relation table);
extern Oid			idemkit_expiry_index(Relation table);
extern bool			idemkit_is_partial_index(Relation table, Oid index);
extern char		   *idemkit_create_table_command(const char *table, bool unlogged);
extern char		   *idemkit_add_columns_command(const char *table);
extern char		   *idemkit_create_index_command(const char *table, const char *name);
extern char		   *idemkit_set_parameters_command(const char *table);
extern char		   *idemkit_set_collation_command(const char *table);

/*
 * record.c: one stored row, read.  The values live as long as the memory
 * context they were read in.
 */
typedef struct IdemkitRecord
{
	Datum values[IDEMKIT_RECORD_COLUMNS];
	bool  nulls[IDEMKIT_RECORD_COLUMNS];
	int32 schema_version;
} IdemkitRecord;

extern bool	 idemkit_read_record(IdemkitTable *table, const text *key, IdemkitRecord *record);
extern void	 idemkit_load_record(IdemkitRecord *record, const IdemkitResult *result, uint64 row);
extern bool	 idemkit_has_fence(TimestampTz claimed_at);
extern void	 idemkit_set_clock(IdemkitRecord *record, TimestampTz clock);
extern Datum idemkit_form_result(FunctionCallInfo fcinfo, const Datum *values, const bool *nulls);

/* direct.c: what is done without the executor, where that is the same */
typedef struct IdemkitRemoval
{
	TimestampTz clock;
	int64		grace;	/* of claims whose lease has run out */
	bool		by_age; /* also results completed longer ago than "age" */
	int64		age;
	bool		limited; /* at most max_rows */
	int64		max_rows;
	TimestampTz begin; /* lease_until to begin with; moved to the last removed */
} IdemkitRemoval;

extern bool idemkit_insert_directly(const IdemkitTable *table, const IdemkitRecord *record);
extern bool
idemkit_remove_directly(const IdemkitTable *table, IdemkitRemoval *removal, int64 *removed);
extern void idemkit_prepare_direct(IdemkitTable *table, Relation relation);
extern bool
idemkit_look_up(const IdemkitTable *table, const text *key, IdemkitRecord *record, bool *found);

/* pace.c: how a sweep gives way to other sessions */
typedef struct IdemkitPace
{
	int32		rows; /* of the batch to come or going on */
	int32		most_rows;
	TimestampTz began;
	uint64		next_xid; /* when the batch before ended */
} IdemkitPace;

extern void idemkit_begin_pace(IdemkitPace *pace, int32 most_rows);
extern void idemkit_give_way(IdemkitPace *pace);

/* distributed.c, continued */
#define IDEMKIT_STATS_COLUMNS 15

extern IdemkitPlacement idemkit_placement(Oid relid);
extern int64			idemkit_remove_from_shards(FunctionCallInfo fcinfo, IdemkitTable *table,
												   const IdemkitRemoval *removal);
extern void
idemkit_stats_of_shards(FunctionCallInfo fcinfo, IdemkitTable *table, Datum *values, bool *nulls);

/* Rows of a function that returns a set */
typedef struct IdemkitRows
{
	Tuplestorestate *store;
	TupleDesc		 tupdesc;
} IdemkitRows;

extern void idemkit_begin_rows(FunctionCallInfo fcinfo, IdemkitRows *rows);
extern void idemkit_put_row(IdemkitRows *rows, const Datum *values, const bool *nulls);

/* verdict.c: the state a stored row is in */
typedef enum IdemkitCondition
{
	IDEMKIT_LIVE_CLAIM,
	IDEMKIT_LAPSED_CLAIM,
	IDEMKIT_LIVE_RESULT,
	IDEMKIT_EXPIRED_RESULT,
	IDEMKIT_CORRUPT
} IdemkitCondition;

extern IdemkitCondition idemkit_judge(const IdemkitRecord *record, TimestampTz clock);
extern bool				idemkit_is_object(Datum headers);
extern bool				idemkit_is_claimed(const IdemkitRecord *record);
extern bool				idemkit_is_completed(const IdemkitRecord *record);

/*
 * claim.c: one key's claim, from the question to the answer.  The functions
 * below are the rules that single and batched claims share.
 */
typedef struct IdemkitClaimTerms
{
	int32 fingerprint_version;
	int64 lease;
	bool  reclaim;
} IdemkitClaimTerms;

typedef struct IdemkitClaim
{
	text *key;
	text *fingerprint;

	/* the answer */
	const char	 *result;
	text		 *token; /* ours if we won, else NULL */
	bool		  recovered;
	bool		  fingerprint_matches;
	IdemkitRecord record;
} IdemkitClaim;

typedef enum IdemkitClaimStep
{
	IDEMKIT_ANSWERED,	  /* nothing to be won: the answer is complete */
	IDEMKIT_TRY_INSERT,	  /* no row */
	IDEMKIT_TRY_TAKE_OVER /* a row that is over, in claim->record */
} IdemkitClaimStep;

extern void idemkit_claim_terms(FunctionCallInfo fcinfo, int first_argno, IdemkitClaimTerms *terms);
extern IdemkitClaimStep idemkit_weigh_claim(IdemkitClaim *claim, const IdemkitClaimTerms *terms,
											bool found, TimestampTz clock);
extern void				idemkit_prepare_win(IdemkitClaim *claim, const IdemkitClaimTerms *terms,
											IdemkitClaimStep step, TimestampTz clock);
extern void
idemkit_stamp_win(IdemkitClaim *claim, const IdemkitClaimTerms *terms, TimestampTz clock);
pg_noreturn extern void idemkit_refuse_race(IdemkitTable *table);

extern void idemkit_claim_columns(const IdemkitClaim *claim, Datum *values, bool *nulls);
extern bool idemkit_fingerprint_matches(const IdemkitClaim *claim, const IdemkitClaimTerms *terms);

#define IDEMKIT_CLAIM_COLUMNS (4 + IDEMKIT_RECORD_COLUMNS)

/* settle.c: rules that single and batched completions share */
extern void idemkit_check_response(Datum headers, bool headers_null, Datum body, bool body_null);

/*
 * array.c: array arguments, and arrays as parameters.
 */
typedef struct IdemkitArray
{
	int	   count;
	Datum *values;
	bool  *nulls;
} IdemkitArray;

extern IdemkitArray idemkit_array_argument(FunctionCallInfo fcinfo, int argno, Oid type);
extern IdemkitArray idemkit_texts_argument(FunctionCallInfo fcinfo, int argno, const char *name);
extern IdemkitArray idemkit_keys_argument(FunctionCallInfo fcinfo, int argno);
extern void
idemkit_check_lengths(const IdemkitArray *array, const char *name, const IdemkitArray *keys);
extern int	*idemkit_key_order(const IdemkitArray *keys, const IdemkitArray *tokens);
extern int	 idemkit_compare_keys(Datum a, Datum b);
extern Datum idemkit_form_array(const Datum *values, const bool *nulls, int count, Oid type);

/* notify.c: announcing the end of a claim */
extern void idemkit_announce(const text *key, bool awaited);

#endif /* IDEMKIT_H */
