/*
 * wire.c - values in PostgreSQL's binary format
 */
#include <string.h>

#include "wire.h"

static unsigned char *
put_int8(unsigned char *to, uint64_t value)
{
	to = idemkit_put_int4(to, (uint32_t) (value >> 32));
	return idemkit_put_int4(to, (uint32_t) value);
}

unsigned char *
idemkit_put_int4(unsigned char *to, uint32_t value)
{
	to[0] = (unsigned char) (value >> 24);
	to[1] = (unsigned char) (value >> 16);
	to[2] = (unsigned char) (value >> 8);
	to[3] = (unsigned char) value;
	return to + 4;
}

uint32_t
idemkit_take_int4(const void *from)
{
	const unsigned char *bytes = from;

	return ((uint32_t) bytes[0] << 24) | ((uint32_t) bytes[1] << 16) | ((uint32_t) bytes[2] << 8) |
		   bytes[3];
}

uint64_t
idemkit_take_int8(const void *from)
{
	const unsigned char *bytes = from;

	return ((uint64_t) idemkit_take_int4(bytes) << 32) | idemkit_take_int4(bytes + 4);
}

double
idemkit_take_float8(const void *from)
{
	uint64_t bits = idemkit_take_int8(from);
	double	 value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/*
 * Take the next parameter.
 */
static void
add_param(IdemkitParams *params, Oid type, const void *value, int length, int format)
{
	int i = params->count++;

	params->types[i] = type;
	params->values[i] = value;
	params->lengths[i] = length;
	params->formats[i] = format;
}

void
idemkit_add_text(IdemkitParams *params, Oid type, const char *value)
{
	add_param(params, type, value, 0, 0);
}

void
idemkit_add_bytes(IdemkitParams *params, Oid type, const void *value, int length)
{
	add_param(params, type, value, length, 1);
}

void
idemkit_add_int4(IdemkitParams *params, const int32_t *value)
{
	unsigned char *room = params->numbers[params->count];

	if (value != NULL)
		idemkit_put_int4(room, (uint32_t) *value);
	add_param(params, IDEMKIT_OID_INT4, value != NULL ? room : NULL, 4, 1);
}

void
idemkit_add_float8(IdemkitParams *params, double value)
{
	unsigned char *room = params->numbers[params->count];
	uint64_t	   bits;

	memcpy(&bits, &value, sizeof(bits));
	put_int8(room, bits);
	add_param(params, IDEMKIT_OID_FLOAT8, room, 8, 1);
}

void
idemkit_add_bool(IdemkitParams *params, bool value)
{
	unsigned char *room = params->numbers[params->count];

	room[0] = value ? 1 : 0;
	add_param(params, IDEMKIT_OID_BOOL, room, 1, 1);
}
