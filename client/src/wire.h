/*
 * wire.h - values in PostgreSQL's binary format
 *
 * Parameters go out and results come in as the server's own bytes, so that
 * nothing depends on locale, DateStyle, bytea_output or the like.
 */
#ifndef IDEMKIT_WIRE_H
#define IDEMKIT_WIRE_H

#include "idemkit.h"

/* Object identifiers of types; part of PostgreSQL's protocol, they never change. */
#define IDEMKIT_OID_BOOL	   16
#define IDEMKIT_OID_BYTEA	   17
#define IDEMKIT_OID_INT4	   23
#define IDEMKIT_OID_TEXT	   25
#define IDEMKIT_OID_FLOAT8	   701
#define IDEMKIT_OID_TEXT_ARRAY 1009
#define IDEMKIT_OID_REGCLASS   2205
#define IDEMKIT_OID_JSONB	   3802

#define IDEMKIT_MAX_PARAMS 8

/*
 * The parameters of one statement. Texts and bodies are pointed to, not copied.
 * Start with {0}.
 */
typedef struct IdemkitParams
{
	int			  count;
	Oid			  types[IDEMKIT_MAX_PARAMS];
	const char	 *values[IDEMKIT_MAX_PARAMS];
	int			  lengths[IDEMKIT_MAX_PARAMS];
	int			  formats[IDEMKIT_MAX_PARAMS];
	unsigned char numbers[IDEMKIT_MAX_PARAMS][8];
} IdemkitParams;

/* NULL pointers become SQL's NULL. */
void idemkit_add_text(IdemkitParams *params, Oid type, const char *value);
void idemkit_add_bytes(IdemkitParams *params, Oid type, const void *value, int length);
void idemkit_add_int4(IdemkitParams *params, const int32_t *value);
void idemkit_add_float8(IdemkitParams *params, double value);
void idemkit_add_bool(IdemkitParams *params, bool value);

/* Big-endian numbers. The put functions return the byte after. */
unsigned char *idemkit_put_int4(unsigned char *to, uint32_t value);
uint32_t	   idemkit_take_int4(const void *from);
uint64_t	   idemkit_take_int8(const void *from);
double		   idemkit_take_float8(const void *from);

#endif /* IDEMKIT_WIRE_H */
