/*
 * json.c - writing JSON objects
 *
 * Text is UTF-8 that the server has checked, or was given by the user and is
 * written as it is. Errors of the stream are for whoever closes it to find.
 */
#include "command.h"

#include <string.h>

static void
write_text(FILE *to, const char *text)
{
	fputc('"', to);
	for (const unsigned char *c = (const unsigned char *) text; *c != '\0'; c++)
	{
		if (*c == '"' || *c == '\\')
			fprintf(to, "\\%c", *c);
		else if (*c < 0x20 || *c == 0x7F)
			fprintf(to, "\\u%04x", *c);
		else
			fputc(*c, to);
	}
	fputc('"', to);
}

/*
 * Begin a member: what follows is its value.
 */
static void
member(Json *json, const char *name)
{
	if (json->begun)
		fputs(", ", json->to);
	json->begun = true;
	write_text(json->to, name);
	fputs(": ", json->to);
}

void
json_begin(Json *json, FILE *to)
{
	json->to = to;
	json->begun = false;
	fputc('{', to);
}

void
json_end(Json *json)
{
	fputs("}\n", json->to);
}

void
json_text(Json *json, const char *name, const char *value)
{
	if (value == NULL)
	{
		json_null(json, name);
		return;
	}
	member(json, name);
	write_text(json->to, value);
}

void
json_int(Json *json, const char *name, int64_t value)
{
	member(json, name);
	fprintf(json->to, "%lld", (long long) value);
}

void
json_double(Json *json, const char *name, double value)
{
	member(json, name);
	fprintf(json->to, "%.6f", value);
}

void
json_bool(Json *json, const char *name, bool value)
{
	member(json, name);
	fputs(value ? "true" : "false", json->to);
}

void
json_null(Json *json, const char *name)
{
	member(json, name);
	fputs("null", json->to);
}

void
json_raw(Json *json, const char *name, const char *value)
{
	if (value == NULL)
	{
		json_null(json, name);
		return;
	}
	member(json, name);
	fputs(value, json->to);
}

void
json_base64(Json *json, const char *name, const void *data, size_t length)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *from = data;

	if (data == NULL)
	{
		json_null(json, name);
		return;
	}
	member(json, name);
	fputc('"', json->to);
	for (size_t i = 0; i < length; i += 3)
	{
		unsigned group = (unsigned) from[i] << 16;

		if (i + 1 < length)
			group |= (unsigned) from[i + 1] << 8;
		if (i + 2 < length)
			group |= from[i + 2];
		fputc(digits[group >> 18], json->to);
		fputc(digits[(group >> 12) & 63], json->to);
		fputc(i + 1 < length ? digits[(group >> 6) & 63] : '=', json->to);
		fputc(i + 2 < length ? digits[group & 63] : '=', json->to);
	}
	fputc('"', json->to);
}
