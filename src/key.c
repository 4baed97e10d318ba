/*
 * key.c
 *		Effective keys and claim tokens.
 */
#include "idemkit.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "port/pg_bswap.h"
#include "utils/array.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(idemkit_effective_key);

#define TOKEN_BYTES	 16
#define TOKEN_STOCK	 16 /* tokens whose bytes are drawn at once */
#define SHA256_BYTES 32

/*
 * Raises 22023 unless the key has 1 to 1024 bytes.
 *
 * The message names the length and not the key: keys may be personal data.
 */
void
idemkit_check_key(const text *key)
{
	Size length = VARSIZE_ANY_EXHDR(key);

	if (length == 0)
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT), errmsg("effective_key must not be empty")));
	if (length > IDEMKIT_MAX_KEY_BYTES)
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT),
				 errmsg("effective_key must not be longer than %d bytes", IDEMKIT_MAX_KEY_BYTES),
				 errdetail("It has %zu bytes.", length),
				 errhint("idemkit_effective_key() makes a short key of any number of parts.")));
}

/*
 * Lower-case hexadecimal digits of some bytes, as a new text.
 */
static text *
hex_text(const uint8 *bytes, int count)
{
	static const char digits[] = "0123456789abcdef";
	text			 *result = palloc(VARHDRSZ + 2 * count);
	char			 *out = VARDATA(result);

	SET_VARSIZE(result, VARHDRSZ + 2 * count);
	for (int i = 0; i < count; i++)
	{
		*out++ = digits[bytes[i] >> 4];
		*out++ = digits[bytes[i] & 0xf];
	}
	return result;
}

/*
 * A claim token nobody can guess: 128 bits of the server's strong generator.
 *
 * Asking it costs as much for many bytes as for few, and more than the rest of
 * a claim's own work; so bytes are drawn in stock, used once and wiped.
 */
text *
idemkit_fresh_token(void)
{
	static uint8 stock[TOKEN_STOCK][TOKEN_BYTES];
	static int	 left = 0;
	text		*token;

	if (left == 0)
	{
		if (!pg_strong_random(stock, sizeof(stock)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate random values")));
		left = TOKEN_STOCK;
	}
	left--;
	token = hex_text(stock[left], TOKEN_BYTES);
	memset(stock[left], 0, TOKEN_BYTES);
	return token;
}

/*
 * Appends a component's length, 4 bytes big-endian, and its UTF-8 bytes.
 */
static void
append_component(StringInfo message, Datum component)
{
	text  *value = DatumGetTextPP(component);
	int	   length = VARSIZE_ANY_EXHDR(value);
	char  *bytes = pg_server_to_any(VARDATA_ANY(value), length, PG_UTF8);
	uint32 prefix;

	/* A converted string is a new one and ends with a zero byte. */
	if (bytes != VARDATA_ANY(value))
		length = strlen(bytes);
	prefix = pg_hton32((uint32) length);
	appendBinaryStringInfo(message, (char *) &prefix, sizeof(prefix));
	appendBinaryStringInfo(message, bytes, length);
}

/*
 * idemkit_effective_key(VARIADIC components text[]) RETURNS text
 *
 * Hexadecimal SHA-256 over the components, each behind its length, so that
 * ('ab','c') and ('a','bc') differ.  The same digest as the Python package's
 * compose_key().  Raises 22004 for a null array or component, 22023 for none.
 */
Datum
idemkit_effective_key(PG_FUNCTION_ARGS)
{
	Datum		  *components;
	bool		  *nulls;
	int			   count;
	StringInfoData message;
	bytea		  *hashed;
	bytea		  *digest;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(IDEMKIT_ERRCODE_NULL_ARGUMENT), errmsg("components must not be null")));
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT, &components,
					  &nulls, &count);
	if (count == 0)
		ereport(ERROR, (errcode(IDEMKIT_ERRCODE_BAD_ARGUMENT),
						errmsg("at least one component is needed")));

	initStringInfo(&message);
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR, (errcode(IDEMKIT_ERRCODE_NULL_ARGUMENT),
							errmsg("component %d must not be null", i + 1)));
		append_component(&message, components[i]);
	}

	hashed = palloc(VARHDRSZ + message.len);
	SET_VARSIZE(hashed, VARHDRSZ + message.len);
	memcpy(VARDATA(hashed), message.data, message.len);
	digest = DatumGetByteaPP(DirectFunctionCall1(sha256_bytea, PointerGetDatum(hashed)));
	Assert(VARSIZE_ANY_EXHDR(digest) == SHA256_BYTES);
	PG_RETURN_TEXT_P(hex_text((uint8 *) VARDATA_ANY(digest), SHA256_BYTES));
}
