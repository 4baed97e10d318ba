/*
 * charge.c - claim a key, do the work once, store its result
 *
 *	   charge ORDER AMOUNT
 *
 * Run it twice, or twice at once: the card is charged once and both print the same
 * receipt. Connects by libpq's environment (PGHOST, PGDATABASE, ...).
 *
 *	   cc charge.c $(pkg-config --cflags --libs libidemkit)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <idemkit.h>

static int
fail(const char *what, const IdemkitError *error)
{
	fprintf(stderr, "charge: %s: %s\n", what, idemkit_error_message(error));
	return EXIT_FAILURE;
}

/*
 * The work that must not be done twice.
 */
static void
charge_card(const char *order, const char *amount, char *receipt, size_t size)
{
	fprintf(stderr, "charging %s for order %s\n", amount, order);
	snprintf(receipt, size, "{\"order\": \"%s\", \"charged\": \"%s\"}", order, amount);
}

/*
 * The claim is ours: work, then complete it.
 */
static int
charge(PGconn *conn, const char *key, const char *token, const char *order, const char *amount,
	   IdemkitError *error)
{
	const int32_t status = 201;
	char		  receipt[256];
	bool		  completed;

	charge_card(order, amount, receipt, sizeof(receipt));
	if (idemkit_complete(conn, key, token, &status, NULL, receipt, strlen(receipt), 86400.0, NULL,
						 &completed, error) != IDEMKIT_OK)
		return fail("could not store the receipt", error);
	if (!completed)
	{
		fprintf(stderr, "charge: took longer than the lease, somebody else took over\n");
		return EXIT_FAILURE;
	}
	puts(receipt);
	return EXIT_SUCCESS;
}

/*
 * What the claim's verdict asks for.
 */
static int
act(PGconn *conn, const char *key, const IdemkitClaim *claim, const char *order, const char *amount,
	IdemkitError *error)
{
	const void *body;
	size_t		length;

	if (!idemkit_claim_fingerprint_matches(claim) && idemkit_claim_our_token(claim) == NULL)
	{
		fprintf(stderr, "charge: order %s was sent with another amount\n", order);
		return EXIT_FAILURE;
	}
	switch (idemkit_claim_verdict(claim))
	{
		case IDEMKIT_NEW_CLAIMED:
		case IDEMKIT_LEASE_RECLAIMED:
			return charge(conn, key, idemkit_claim_our_token(claim), order, amount, error);
		case IDEMKIT_ALREADY_COMPLETED:
			body = idemkit_record_response_body(idemkit_claim_record(claim), &length);
			if (body != NULL)
				fwrite(body, 1, length, stdout);
			putchar('\n');
			return EXIT_SUCCESS;
		default:
			fprintf(stderr, "charge: order %s is being charged, try again\n", order);
			return EXIT_FAILURE;
	}
}

int
main(int argc, char **argv)
{
	IdemkitError *error = idemkit_error_create();
	IdemkitClaim *claim = NULL;
	PGconn		 *conn = PQconnectdb("");
	char		  key[256];
	int			  status;

	if (argc != 3 || error == NULL)
	{
		fprintf(stderr, "usage: charge ORDER AMOUNT\n");
		status = EXIT_FAILURE;
	}
	else
	{
		snprintf(key, sizeof(key), "charge:%s", argv[1]);
		if (idemkit_claim(conn, key, argv[2], 1, 30.0, true, NULL, &claim, error) == IDEMKIT_OK)
			status = act(conn, key, claim, argv[1], argv[2], error);
		else
			status = fail("could not claim", error);
	}
	idemkit_claim_free(claim);
	idemkit_error_free(error);
	PQfinish(conn);
	return status;
}
