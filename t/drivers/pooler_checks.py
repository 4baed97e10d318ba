"""Checks of idemkit by many clients through a pooler, by name: pooler_checks.py NAME...

Prints the names of those that passed. Run by t/068_pooler.pl, with a pool of fewer
server connections than there are clients here. PREPARE as in psycopg_checks.py.
"""
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from psycopg_checks import RUN, connect, one, rows

CLIENTS = 12
TURNS = 15
PATIENCE = 60


def together(work):
    """Runs work(conn, number) for each client at once; the results in order."""
    barrier = threading.Barrier(CLIENTS)

    def client(number):
        with connect() as conn:
            barrier.wait(PATIENCE)
            return work(conn, number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(client, range(CLIENTS)))


def race(conn):
    """Each claim, renewal and completion may be on another server connection."""
    def work(conn, number):
        won = 0
        for turn in range(TURNS):
            key = f"{RUN} race {turn}"
            claim = one(conn, "SELECT * FROM idemkit_claim(%s, lease_ttl_seconds => %s)", key, 600)
            if claim.our_claim_token is not None:
                won += 1
                assert one(conn, "SELECT idemkit_renew(%s, %s)", key, claim.our_claim_token)[0]
                assert one(conn, "SELECT idemkit_complete(%s, %s, %s)", key, claim.our_claim_token, number)[0]
            else:
                # idemkit_wait would keep a server connection, and the owner may need it.
                end = time.monotonic() + PATIENCE
                while one(conn, "SELECT * FROM idemkit_get(%s)", key).response_status is None:
                    assert time.monotonic() < end
                    time.sleep(0.01)
        return won

    assert sum(together(work)) == TURNS


def wait(conn):
    """idemkit_wait, with one server connection left for the owner."""
    key = RUN + " wait"
    token = one(conn, "SELECT * FROM idemkit_claim(%s)", key).our_claim_token

    def waiter(number):
        with connect() as waiting:
            return one(waiting, "SELECT * FROM idemkit_wait(%s, %s)", key, PATIENCE)

    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(waiter, number) for number in range(2)]
        assert one(conn, "SELECT idemkit_complete(%s, %s, 200)", key, token)[0]
        assert [wait.result().outcome for wait in waits] == ["completed"] * 2


def transactions(conn):
    """Claim, work and completion in transactions, of which some are rolled back."""
    rows_before = one(conn, "SELECT count(*) FROM pooler_work").count

    def work(conn, number):
        for turn in range(TURNS):
            key = f"{RUN} transactions {turn}"
            while True:
                with conn.transaction(force_rollback=random.random() < 0.5):
                    claim = one(conn, "SELECT * FROM idemkit_claim(%s)", key)
                    assert claim.result in ("new_claimed", "already_completed"), claim.result
                    if claim.our_claim_token is not None:
                        conn.execute("SELECT idemkit_guard(%s, %s)", [key, claim.our_claim_token])
                        conn.execute("INSERT INTO pooler_work VALUES (%s)", [key])
                        assert one(conn, "SELECT idemkit_complete(%s, %s, response_body => %s)", key,
                                   claim.our_claim_token, b"done")[0]
                if claim.result == "already_completed":
                    assert claim.response_body == b"done"
                    break

    together(work)
    assert one(conn, "SELECT count(*) FROM pooler_work").count == rows_before + TURNS


def batches(conn):
    """Batches that cross each other: every key is won once, and has its winner's result."""
    keys = [f"{RUN} batches {number}" for number in range(40)]

    def work(conn, number):
        mine = random.sample(keys, len(keys))
        claims = rows(conn, "SELECT * FROM idemkit_claim_many(%s, lease_ttl_seconds => %s)", mine, 600)
        assert [claim.effective_key for claim in claims] == mine
        won = [claim for claim in claims if claim.our_claim_token is not None]
        stored = rows(conn, "SELECT * FROM idemkit_complete_many(%s, %s, %s)",
                      [claim.effective_key for claim in won], [claim.our_claim_token for claim in won],
                      [number] * len(won))
        assert [row[0] for row in stored] == [True] * len(won)
        return {claim.effective_key: number for claim in won}

    results = together(work)
    winners = {key: number for result in results for key, number in result.items()}
    assert sum(len(result) for result in results) == len(winners) == len(keys)
    stored = rows(conn, "SELECT * FROM idemkit_subscribe(%s)", keys)
    assert {record.effective_key: record.response_status for record in stored} == winners


def sweep(conn):
    """Procedures that commit, several at once: together they remove each record once."""
    expired = 2000
    one(conn, "SELECT count(idemkit_complete(c.effective_key, c.our_claim_token, expires_after_seconds => 0)) FROM"
        " idemkit_claim_many((SELECT array_agg(%s || i) FROM generate_series(1, %s) i)) c", RUN + " sweep ", expired)
    together(lambda conn, number: one(conn, "CALL idemkit_sweep(batch_rows => %s)", 100).removed)
    left = "SELECT count(*) FROM idemkit_records WHERE starts_with(effective_key, %s)"
    assert one(conn, left, RUN + " sweep").count == 0


def settings(conn):
    """What is set for a transaction ends with it, on whatever connection that was."""
    def work(conn, number):
        for turn in range(TURNS):
            with conn.transaction():
                one(conn, "SELECT idemkit_effective_key('x')")  # the library, and with it the setting, is there
                if number % 2:
                    conn.execute("SET LOCAL idemkit.max_response_bytes = '1kB'")
                assert one(conn, "SHOW idemkit.max_response_bytes")[0] == ("1kB" if number % 2 else "0")

    together(work)


if __name__ == "__main__":
    for check in sys.argv[1:]:
        with connect() as connection:
            globals()[check](connection)
        print(check, flush=True)
