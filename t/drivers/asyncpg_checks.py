"""Checks of idemkit through asyncpg, by name: asyncpg_checks.py NAME...

Prints the names of those that passed. Run by t/066_drivers.pl, and through a pooler by
t/068_pooler.pl. PREPARE=none: nothing is prepared on the server under a name.
"""
import asyncio
import datetime
import json
import os
import sys
import uuid

import asyncpg

PREPARE = os.environ.get("PREPARE") != "none"
RUN = str(uuid.uuid4())
EVERY_BYTE = bytes(range(256))
TRICKY = [b"", b"\\", b"\\101", b"\\x4142", b"'\"\r\n", EVERY_BYTE, EVERY_BYTE * 4096]


async def connect():
    return await asyncpg.connect(statement_cache_size=100 if PREPARE else 0)


async def with_json(conn):
    await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)


async def token_of(conn, key):
    return (await conn.fetchrow("SELECT * FROM idemkit_claim($1)", key))["our_claim_token"]


async def types(conn):
    key = RUN + " types"
    claim = await conn.fetchrow("SELECT * FROM idemkit_claim($1, $2, 1, $3, true)", key, "print", 60.5)
    assert (claim["result"], claim["effective_key"], claim["fingerprint"]) == ("new_claimed", key, "print")
    assert claim["recovered_from_corrupt"] is False and claim["fingerprint_matches"] is True
    assert len(claim["our_claim_token"]) == 32 and claim["our_claim_token"] == claim["claim_token"]
    assert claim["lease_until"] - claim["claimed_at"] == datetime.timedelta(seconds=60.5)
    since = claim["claimed_at"] - datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    assert claim["fence"] == since // datetime.timedelta(microseconds=1)
    assert 59 < claim["remaining_seconds"] <= 60.5 and claim["attempts"] == 1
    assert claim["completed_at"] is None and claim["response_body"] is None and claim["response_headers"] is None
    headers = {"content-type": "text/plain", "x": ["\u00e4\u20ac", None, 1.5, {"y": True}]}
    complete = "SELECT idemkit_complete($1, $2, $3, $4, $5)"
    assert await conn.fetchval(complete, key, claim["our_claim_token"], -1, json.dumps(headers), EVERY_BYTE) is True
    record = await conn.fetchrow("SELECT * FROM idemkit_get($1)", key)
    assert json.loads(record["response_headers"]) == headers, "jsonb is text until asyncpg is told otherwise"
    await with_json(conn)
    record = await conn.fetchrow("SELECT * FROM idemkit_get($1)", key)
    assert record["response_headers"] == headers
    assert (record["response_status"], record["response_body"]) == (-1, EVERY_BYTE)
    assert record["state"] == "COMPLETED" and record["completed_at"] >= record["claimed_at"]


async def composite(conn):
    key = RUN + " composite"
    claim = await conn.fetchval("SELECT idemkit_claim($1, $2)", key, "a,b (\"c\")")
    assert claim["result"] == "new_claimed" and claim["fingerprint"] == "a,b (\"c\")"
    assert claim["claimed_at"].tzinfo is not None and claim["completed_at"] is None
    await conn.execute("SELECT idemkit_complete($1, $2, 200, $3, $4)", key, claim["our_claim_token"], "{}", b"\x00,\"")
    waited = await conn.fetchval("SELECT idemkit_wait($1, $2)", key, 1)
    assert (waited["outcome"], waited["response_headers"], waited["response_body"]) == ("completed", "{}", b"\x00,\"")


async def bodies(conn):
    for number, body in enumerate([None] + TRICKY):
        key = f"{RUN} bodies {number}"
        token = await token_of(conn, key)
        assert await conn.fetchval("SELECT idemkit_complete($1, $2, response_body => $3)", key, token, body)
        again = await conn.fetchrow("SELECT * FROM idemkit_claim($1)", key)
        assert again["result"] == "already_completed" and again["response_body"] == body, number


async def unknown(conn):
    """The server says the types: whole numbers do for seconds, a regclass is text, and NULL anything."""
    claim = await conn.fetchrow("SELECT * FROM idemkit_claim($1, $2, $3, $4, $5, $6)", RUN + " unknown", "", 1, 30,
                                True, None)
    assert claim["result"] == "new_claimed"
    assert await conn.fetchval("SELECT idemkit_complete($1, $2, $3, $4, $5, $6, $7)", claim["effective_key"],
                               claim["claim_token"], None, None, None, 60, "idemkit_records")
    assert await conn.fetch("SELECT * FROM idemkit_get($1)", RUN + " none") == []


async def prepared(conn):
    """More often than it takes until the server plans for good; by the cache, and by hand."""
    claim_it = "SELECT * FROM idemkit_claim($1, lease_ttl_seconds => $2)"
    by_hand = await conn.prepare(claim_it) if PREPARE else None
    for number in range(20):
        key = f"{RUN} prepared {number}"
        claim = await conn.fetchrow(claim_it, key, 60)
        assert claim["result"] == "new_claimed"
        again = await (by_hand.fetchrow(key, 60) if PREPARE else conn.fetchrow(claim_it, key, 60))
        assert again["result"] == "already_claimed"
        assert await conn.fetchval("SELECT idemkit_renew($1, $2)", key, claim["our_claim_token"])
        body = EVERY_BYTE[number:]
        assert await conn.fetchval("SELECT idemkit_complete($1, $2, response_body => $3)", key,
                                   claim["our_claim_token"], body)
        assert (await conn.fetchrow("SELECT * FROM idemkit_get($1)", key))["response_body"] == body
        async with conn.transaction():
            token = await token_of(conn, key + " released")
            await conn.execute("SELECT idemkit_guard($1, $2)", key + " released", token)
            assert await conn.fetchval("SELECT idemkit_release($1, $2)", key + " released", token)


async def arrays(conn):
    await with_json(conn)
    keys = [f"{RUN} arrays {number}" for number in range(len(TRICKY) + 1)]
    claims = await conn.fetch("SELECT * FROM idemkit_claim_many($1, $2)", keys, ["f"] * len(keys))
    assert [claim["result"] for claim in claims] == ["new_claimed"] * len(keys)
    stored = await conn.fetch(
        "SELECT * FROM idemkit_complete_many($1, $2, $3, $4, $5)", keys,
        [claim["our_claim_token"] for claim in claims], [None] + [200] * len(TRICKY),
        [None] + [{"n": number, "s": "\",{}\\"} for number in range(len(TRICKY))], [None] + TRICKY)
    assert [row[0] for row in stored] == [True] * len(keys)
    records = await conn.fetch("SELECT * FROM idemkit_subscribe($1)", keys)
    assert [record["response_body"] for record in records] == [None] + TRICKY
    assert [record["response_headers"] for record in records[:2]] == [None, {"n": 0, "s": "\",{}\\"}]
    assert await conn.fetch("SELECT * FROM idemkit_claim_many($1)", []) == []
    assert await conn.fetch("SELECT * FROM idemkit_complete_many($1, $2)", [], []) == []


async def errors(conn):
    for state, query, parameters in (
            ("IK001", "SELECT idemkit_guard($1, $2)", [RUN, "no token"]),
            ("22004", "SELECT idemkit_claim($1)", [None]),
            ("22023", "SELECT idemkit_claim($1, lease_ttl_seconds => $2)", [RUN, -1]),
            ("22023", "SELECT idemkit_complete($1, 'token', response_headers => $2)", [RUN, "[1]"])):
        try:
            await conn.execute(query, *parameters)
        except asyncpg.PostgresError as error:
            assert error.sqlstate == state, error.sqlstate
        else:
            raise AssertionError(query)


async def transaction(conn):
    key = RUN + " transaction"
    undone = conn.transaction()
    await undone.start()
    await token_of(conn, key)
    await undone.rollback()
    assert await conn.fetchrow("SELECT * FROM idemkit_get($1)", key) is None
    async with conn.transaction():
        await conn.execute("SELECT idemkit_complete($1, $2)", key, await token_of(conn, key))
    assert (await conn.fetchrow("SELECT * FROM idemkit_get($1)", key))["state"] == "COMPLETED"


async def sweep(conn):
    key = RUN + " sweep"
    await conn.execute("SELECT idemkit_complete($1, $2, expires_after_seconds => 0)", key, await token_of(conn, key))
    assert await conn.fetchval("CALL idemkit_sweep(batch_rows => $1)", 10) >= 1
    assert await conn.fetchrow("SELECT * FROM idemkit_get($1)", key) is None
    assert await conn.fetchval("SELECT idemkit_vacuum()") == 0


async def main():
    for check in sys.argv[1:]:
        conn = await connect()
        await globals()[check](conn)
        await conn.close()
        print(check, flush=True)


asyncio.run(main())
