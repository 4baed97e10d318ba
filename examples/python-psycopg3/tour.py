#!/usr/bin/env python3
"""What idemkit does, step by step, with psycopg 3.

Connects as libpq does (PGHOST, PGDATABASE, ...). Exits non-zero where a promise
does not hold.
"""
import select
import sys
import threading
import time
import uuid

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb


def connect():
    # autocommit: a claim is to be seen by others at once. Without it psycopg keeps
    # a transaction open around everything.
    return psycopg.connect(autocommit=True, row_factory=namedtuple_row)


def one(conn, query, *parameters):
    return conn.execute(query, parameters).fetchone()


def check(holds, promise):
    if not holds:
        sys.exit(f"broken promise: {promise}")


def claim_and_complete(conn, key):
    claim = one(conn, "SELECT * FROM idemkit_claim(%s, %s, lease_ttl_seconds => %s)",
                key, "49.90", 60)
    check(claim.result == "new_claimed", "a new key is won")
    print("claim:       won, so the card is charged")

    body = b"receipt 17"  # a body is bytes, never str
    complete = "SELECT idemkit_complete(%s, %s, %s, %s, %s) AS stored"
    result = (key, claim.our_claim_token, 201, Jsonb({"content-type": "text/plain"}), body)
    check(one(conn, complete, *result).stored, "the owner completes its claim")
    check(not one(conn, complete, *result).stored, "a claim is completed once")
    print("complete:    status, headers and body are stored, once")


def replay(conn, key):
    again = one(conn, "SELECT * FROM idemkit_claim(%s, %s)", key, "49.90")
    check(again.result == "already_completed" and again.our_claim_token is None,
          "a duplicate does no work")
    check(again.response_headers == {"content-type": "text/plain"}, "headers are replayed")
    check(again.completed_at >= again.claimed_at, "times are times")
    print(f"replay:      {again.response_status} {again.response_body.decode()}")

    other = one(conn, "SELECT * FROM idemkit_claim(%s, %s)", key, "99.90")
    check(not other.fingerprint_matches, "a key used for something else is noticed")
    print("replay:      the same key with another amount is noticed")


def wait(conn, key, timeout):
    """Waits until the claim of key has ended. Returns its record: COMPLETED, or still
    CLAIMED (the lease is over, or the timeout); None if there is none: claim again."""
    woken = []
    conn.add_notify_handler(woken.append)
    conn.execute("LISTEN idemkit_completions")  # listen first, then look
    deadline = time.monotonic() + timeout
    while True:
        woken.clear()
        record = one(conn, "SELECT * FROM idemkit_subscribe(%s)", [key])
        if record is None or record.state == "COMPLETED":
            break
        left = min(deadline - time.monotonic(), record.remaining_seconds)
        if left <= 0:
            break
        # A notification makes it quick, looking again every second makes it certain.
        if not woken:
            select.select([conn], [], [], min(left, 1))
    conn.execute("UNLISTEN idemkit_completions")
    conn.remove_notify_handler(woken.append)
    return record


def wait_for_another(conn, key):
    with connect() as owner:
        token = one(owner, "SELECT * FROM idemkit_claim(%s)", key).our_claim_token
        claim = one(conn, "SELECT * FROM idemkit_claim(%s)", key)
        check(claim.result == "already_claimed" and claim.remaining_seconds > 0,
              "one owner at a time")
        print("wait:        another is at work")
        complete = "SELECT idemkit_complete(%s, %s, %s, response_body => %s)"
        work = threading.Timer(0.2, one, [owner, complete, key, token, 204, b""])
        work.start()
        record = wait(conn, key, 10)
        work.join()
    check(record.response_status == 204 and record.response_body == b"",
          "an empty body is not NULL")
    print("wait:        woken, 204 with an empty body")


def pay(conn, key, cents, fail=False):
    """Claim, work and result in one transaction."""
    with conn.transaction():
        claim = one(conn, "SELECT * FROM idemkit_claim(%s, %s)", key, str(cents))
        if claim.our_claim_token is None:
            check(claim.result == "already_completed", "a duplicate waits for the transaction")
            return claim.response_body.decode()
        conn.execute("INSERT INTO tour_charge VALUES (%s, %s)", [key, cents])
        one(conn, "SELECT idemkit_complete(%s, %s, response_body => %s)",
            key, claim.our_claim_token, b"charged")
        if fail:
            raise psycopg.Rollback
        return "charged"


def transactional(conn, key):
    conn.execute("CREATE TABLE IF NOT EXISTS tour_charge (key text, cents integer)")
    pay(conn, key, 4990, fail=True)
    check(one(conn, "SELECT * FROM idemkit_get(%s)", key) is None,
          "a claim is rolled back with its work")
    print("transaction: rolled back, and the claim with it")
    check([pay(conn, key, 4990), pay(conn, key, 4990)] == ["charged"] * 2, "both get the answer")
    check(one(conn, "SELECT count(*) FROM tour_charge WHERE key = %s", key).count == 1, "one charge")
    print("transaction: committed, one row for two requests")


def batch(conn, keys):
    claims = conn.execute("SELECT * FROM idemkit_claim_many(%s)", [keys]).fetchall()
    check([claim.effective_key for claim in claims] == keys, "a row for each key, in order")
    ours = [claim for claim in claims if claim.our_claim_token is not None]
    check([claim.result for claim in ours] == ["new_claimed"] * 2, "two of them are new")
    bodies = [bytes(range(256)), None]
    done = conn.execute(
        "SELECT * FROM idemkit_complete_many(%s, %s, %s, %s, %s) AS stored",
        [[c.effective_key for c in ours], [c.our_claim_token for c in ours],
         [200, 404], [Jsonb({"n": 1}), None], bodies]).fetchall()
    check(all(row.stored for row in done), "both are completed")
    stored = [one(conn, "SELECT * FROM idemkit_get(%s)", claim.effective_key) for claim in ours]
    check([record.response_body for record in stored] == bodies, "bodies come back as they were")
    check([record.response_headers for record in stored] == [{"n": 1}, None], "headers too")
    print("batch:       two of three were new, all three have results")


def main():
    run = f"tour {uuid.uuid4()} "
    with connect() as conn:
        claim_and_complete(conn, run + "order 1")
        replay(conn, run + "order 1")
        wait_for_another(conn, run + "order 2")
        transactional(conn, run + "order 3")
        batch(conn, [run + "order 4", run + "order 1", run + "order 5"])


main()
