#!/usr/bin/env python3
"""What idemkit does, step by step, with asyncpg.

Connects by PGHOST, PGDATABASE, ... Exits non-zero where a promise does not hold.
"""
import asyncio
import json
import sys
import uuid

import asyncpg


async def connect():
    conn = await asyncpg.connect()
    # asyncpg takes and gives jsonb as text unless it is told otherwise.
    await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    return conn


def check(holds, promise):
    if not holds:
        sys.exit(f"broken promise: {promise}")


async def claim_and_complete(conn, key):
    claim = await conn.fetchrow("SELECT * FROM idemkit_claim($1, $2, lease_ttl_seconds => $3)",
                                key, "49.90", 60)
    check(claim["result"] == "new_claimed", "a new key is won")
    print("claim:       won, so the card is charged")

    body = b"receipt 17"
    complete = "SELECT idemkit_complete($1, $2, $3, $4, $5)"
    result = (key, claim["our_claim_token"], 201, {"content-type": "text/plain"}, body)
    check(await conn.fetchval(complete, *result), "the owner completes its claim")
    check(not await conn.fetchval(complete, *result), "a claim is completed once")
    print("complete:    status, headers and body are stored, once")


async def replay(conn, key):
    again = await conn.fetchrow("SELECT * FROM idemkit_claim($1, $2)", key, "49.90")
    check(again["result"] == "already_completed" and again["our_claim_token"] is None,
          "a duplicate does no work")
    check(again["response_headers"] == {"content-type": "text/plain"}, "headers are replayed")
    check(again["completed_at"] >= again["claimed_at"], "times are times")
    print(f"replay:      {again['response_status']} {again['response_body'].decode()}")

    other = await conn.fetchrow("SELECT * FROM idemkit_claim($1, $2)", key, "99.90")
    check(not other["fingerprint_matches"], "a key used for something else is noticed")
    print("replay:      the same key with another amount is noticed")


async def wait(conn, key, timeout):
    """Waits until the claim of key has ended. Returns its record: COMPLETED, or still
    CLAIMED (the lease is over, or the timeout); None if there is none: claim again."""
    woken = asyncio.Event()
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout

    def notified(conn, pid, channel, payload):
        if payload == key:
            woken.set()

    await conn.add_listener("idemkit_completions", notified)  # listen first, then look
    try:
        while True:
            woken.clear()
            record = await conn.fetchrow("SELECT * FROM idemkit_subscribe($1)", [key])
            if record is None or record["state"] == "COMPLETED":
                return record
            left = min(deadline - clock(), record["remaining_seconds"])
            if left <= 0:
                return record
            # A notification makes it quick, looking again every second makes it certain.
            try:
                await asyncio.wait_for(woken.wait(), min(left, 1))
            except asyncio.TimeoutError:
                pass
    finally:
        await conn.remove_listener("idemkit_completions", notified)


async def wait_for_another(conn, key):
    owner = await connect()
    token = (await owner.fetchrow("SELECT * FROM idemkit_claim($1)", key))["our_claim_token"]
    claim = await conn.fetchrow("SELECT * FROM idemkit_claim($1)", key)
    check(claim["result"] == "already_claimed" and claim["remaining_seconds"] > 0,
          "one owner at a time")
    print("wait:        another is at work")

    async def work():
        await asyncio.sleep(0.2)
        await owner.execute("SELECT idemkit_complete($1, $2, $3, response_body => $4)",
                            key, token, 204, b"")

    record, _ = await asyncio.gather(wait(conn, key, 10), work())
    await owner.close()
    check(record["response_status"] == 204 and record["response_body"] == b"",
          "an empty body is not NULL")
    print("wait:        woken, 204 with an empty body")


class RolledBack(Exception):
    pass


async def pay(conn, key, cents, fail=False):
    """Claim, work and result in one transaction."""
    async with conn.transaction():
        claim = await conn.fetchrow("SELECT * FROM idemkit_claim($1, $2)", key, str(cents))
        if claim["our_claim_token"] is None:
            check(claim["result"] == "already_completed", "a duplicate waits for the transaction")
            return claim["response_body"].decode()
        await conn.execute("INSERT INTO tour_charge VALUES ($1, $2)", key, cents)
        await conn.execute("SELECT idemkit_complete($1, $2, response_body => $3)",
                           key, claim["our_claim_token"], b"charged")
        if fail:
            raise RolledBack
        return "charged"


async def transactional(conn, key):
    await conn.execute("CREATE TABLE IF NOT EXISTS tour_charge (key text, cents integer)")
    try:
        await pay(conn, key, 4990, fail=True)
    except RolledBack:
        pass
    check(await conn.fetchrow("SELECT * FROM idemkit_get($1)", key) is None,
          "a claim is rolled back with its work")
    print("transaction: rolled back, and the claim with it")
    answers = [await pay(conn, key, 4990), await pay(conn, key, 4990)]
    check(answers == ["charged", "charged"], "both get the answer")
    charges = await conn.fetchval("SELECT count(*) FROM tour_charge WHERE key = $1", key)
    check(charges == 1, "one charge")
    print("transaction: committed, one row for two requests")


async def batch(conn, keys):
    claims = await conn.fetch("SELECT * FROM idemkit_claim_many($1)", keys)
    check([claim["effective_key"] for claim in claims] == keys, "a row for each key, in order")
    ours = [claim for claim in claims if claim["our_claim_token"] is not None]
    check([claim["result"] for claim in ours] == ["new_claimed"] * 2, "two of them are new")
    bodies = [bytes(range(256)), None]
    done = await conn.fetch(
        "SELECT * FROM idemkit_complete_many($1, $2, $3, $4, $5) AS stored",
        [claim["effective_key"] for claim in ours],
        [claim["our_claim_token"] for claim in ours],
        [200, 404], [{"n": 1}, None], bodies)
    check(all(row["stored"] for row in done), "both are completed")
    stored = [await conn.fetchrow("SELECT * FROM idemkit_get($1)", claim["effective_key"])
              for claim in ours]
    check([record["response_body"] for record in stored] == bodies, "bodies come back as they were")
    check([record["response_headers"] for record in stored] == [{"n": 1}, None], "headers too")
    print("batch:       two of three were new, all three have results")


async def main():
    run = f"tour {uuid.uuid4()} "
    conn = await connect()
    await claim_and_complete(conn, run + "order 1")
    await replay(conn, run + "order 1")
    await wait_for_another(conn, run + "order 2")
    await transactional(conn, run + "order 3")
    await batch(conn, [run + "order 4", run + "order 1", run + "order 5"])
    await conn.close()


asyncio.run(main())
