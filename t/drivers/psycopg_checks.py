"""Checks of idemkit through psycopg 3, by name: psycopg_checks.py NAME...

Prints the names of those that passed. Run by t/066_drivers.pl, and through a pooler by
t/068_pooler.pl. The environment variable PREPARE says after how many executions psycopg
prepares a statement on the server; none: never. BINARY=1 asks for binary results.
"""
import datetime
import decimal
import os
import sys
import uuid

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.composite import CompositeInfo, register_composite
from psycopg.types.json import Jsonb

BINARY = os.environ.get("BINARY") == "1"
PREPARE = os.environ.get("PREPARE", "5")
RUN = str(uuid.uuid4())
EVERY_BYTE = bytes(range(256))
# As text these would be something else: octal escapes, and hexadecimal digits.
TRICKY = [b"", b"\\", b"\\101", b"\\x4142", b"'\"\r\n", EVERY_BYTE, EVERY_BYTE * 4096]


def connect(**options):
    conn = psycopg.connect(autocommit=True, row_factory=namedtuple_row, **options)
    conn.prepare_threshold = None if PREPARE == "none" else int(PREPARE)
    return conn


def rows(conn, query, *parameters):
    return conn.execute(query, parameters, binary=BINARY).fetchall()


def one(conn, query, *parameters):
    row, = rows(conn, query, *parameters)
    return row


def token_of(conn, key):
    return one(conn, "SELECT * FROM idemkit_claim(%s)", key).our_claim_token


def types(conn):
    key = RUN + " types"
    claim = one(conn, "SELECT * FROM idemkit_claim(%s, %s, 1, %s, true)", key, "print", 60.5)
    assert (claim.result, claim.effective_key, claim.fingerprint) == ("new_claimed", key, "print")
    assert claim.recovered_from_corrupt is False and claim.fingerprint_matches is True
    assert len(claim.our_claim_token) == 32 and claim.our_claim_token == claim.claim_token
    assert claim.lease_until - claim.claimed_at == datetime.timedelta(seconds=60.5)
    assert claim.claimed_at.tzinfo is not None
    microseconds = (claim.claimed_at - datetime.datetime.fromtimestamp(0, datetime.timezone.utc))
    assert claim.fence == microseconds // datetime.timedelta(microseconds=1)
    assert 59 < claim.remaining_seconds <= 60.5 and claim.attempts == 1
    assert claim.completed_at is None and claim.response_body is None and claim.response_headers is None
    headers = {"content-type": "text/plain", "x": ["\u00e4\u20ac", None, 1.5, {"y": True}]}
    assert one(conn, "SELECT idemkit_complete(%s, %s, %s, %s, %s)", key, claim.our_claim_token, -1,
               Jsonb(headers), EVERY_BYTE)[0] is True
    record = one(conn, "SELECT * FROM idemkit_get(%s)", key)
    assert (record.response_status, record.response_headers, record.response_body) == (-1, headers, EVERY_BYTE)
    assert record.state == "COMPLETED" and record.completed_at >= record.claimed_at


def composite(conn):
    key = RUN + " composite"
    plain = one(conn, "SELECT idemkit_claim(%s, %s) AS claim", key, "a,b (\"c\")").claim
    assert isinstance(plain, bytes if BINARY else str), "as the server sends what psycopg does not know"
    for name in ("idemkit_claim_result", "idemkit_record", "idemkit_wait_result"):
        register_composite(CompositeInfo.fetch(conn, name), conn)
    claim = one(conn, "SELECT idemkit_claim(%s, %s) AS claim", key, "a,b (\"c\")").claim
    assert claim.result == "already_claimed" and claim.fingerprint == "a,b (\"c\")" and claim.fingerprint_matches
    assert claim.our_claim_token is None and claim.claimed_at.tzinfo is not None
    one(conn, "SELECT idemkit_complete(%s, %s, 200, %s, %s)", key, claim.claim_token, Jsonb({}), b"\x00,\"")
    waited = one(conn, "SELECT idemkit_wait(%s, %s) AS w", key, 1).w
    assert waited.outcome == "completed" and waited.response_headers == {} and waited.response_body == b"\x00,\""


def bodies(conn):
    for number, body in enumerate([None] + TRICKY):
        key = f"{RUN} bodies {number}"
        assert one(conn, "SELECT idemkit_complete(%s, %s, response_body => %s)", key, token_of(conn, key), body)[0]
        again = one(conn, "SELECT * FROM idemkit_claim(%s)", key)
        assert again.result == "already_completed" and again.response_body == body, number


def unknown(conn):
    """Parameters of no type, of a smaller or another one than the function's, and NULLs."""
    for number, (version, lease, reclaim) in enumerate(
            [("1", "30", "true"), (1, 30, True), (1, decimal.Decimal("30.25"), True), (1, 1e3, False)]):
        claim = one(conn, "SELECT * FROM idemkit_claim(%s, %s, %s, %s, %s, %s)", f"{RUN} unknown {number}", "",
                    version, lease, reclaim, None)
        assert claim.result == "new_claimed"
        assert one(conn, "SELECT idemkit_renew(%s, %s, %s)", claim.effective_key, claim.claim_token, lease)[0]
        for status, headers, body in ((None, None, None), ("200", '{"a": 1}', None)):
            stored = one(conn, "SELECT idemkit_complete(%s, %s, %s, %s, %s, %s, %s)", claim.effective_key,
                         claim.claim_token, status, headers, body, 60, "idemkit_records")[0]
            assert stored is (status is None)
    assert rows(conn, "SELECT * FROM idemkit_get(%s)", RUN + " none") == []


def prepared(conn):
    """More often than it takes until psycopg prepares, and the server plans for good."""
    for number in range(20):
        key = f"{RUN} prepared {number}"
        claim = one(conn, "SELECT * FROM idemkit_claim(%s, lease_ttl_seconds => %s)", key, 60)
        assert claim.result == "new_claimed"
        assert one(conn, "SELECT * FROM idemkit_claim(%s, lease_ttl_seconds => %s)", key, 60).result == "already_claimed"
        assert one(conn, "SELECT idemkit_renew(%s, %s)", key, claim.our_claim_token)[0]
        body = EVERY_BYTE[number:]
        assert one(conn, "SELECT idemkit_complete(%s, %s, response_body => %s)", key, claim.our_claim_token, body)[0]
        assert one(conn, "SELECT * FROM idemkit_get(%s)", key).response_body == body
        with conn.transaction():
            token = token_of(conn, key + " released")
            conn.execute("SELECT idemkit_guard(%s, %s)", [key + " released", token])
            assert one(conn, "SELECT idemkit_release(%s, %s)", key + " released", token)[0]
    count = one(conn, "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE '\\_pg3\\_%%'").count
    if PREPARE == "none":
        assert count == 0, count
    elif not os.environ.get("POOLER"):
        assert count >= 5, count


def arrays(conn):
    keys = [f"{RUN} arrays {number}" for number in range(len(TRICKY) + 1)]
    claims = rows(conn, "SELECT * FROM idemkit_claim_many(%s, %s)", keys, ["f"] * len(keys))
    assert [claim.result for claim in claims] == ["new_claimed"] * len(keys)
    stored = rows(conn, "SELECT * FROM idemkit_complete_many(%s, %s, %s, %s, %s)", keys,
                  [claim.our_claim_token for claim in claims], [None] + [200] * len(TRICKY),
                  [None] + [Jsonb({"n": number, "s": "\",{}\\"}) for number in range(len(TRICKY))], [None] + TRICKY)
    assert [row[0] for row in stored] == [True] * len(keys)
    records = rows(conn, "SELECT * FROM idemkit_subscribe(%s)", keys)
    assert [record.response_body for record in records] == [None] + TRICKY
    assert records[0].response_headers is None and records[1].response_headers == {"n": 0, "s": "\",{}\\"}
    assert rows(conn, "SELECT * FROM idemkit_claim_many(%s)", []) == []
    assert rows(conn, "SELECT * FROM idemkit_complete_many(%s, %s)", [], []) == []


def errors(conn):
    for state, query, parameters in (
            ("IK001", "SELECT idemkit_guard(%s, %s)", [RUN, "no token"]),
            ("22004", "SELECT idemkit_claim(%s)", [None]),
            ("22023", "SELECT idemkit_claim(%s, lease_ttl_seconds => %s)", [RUN, -1]),
            ("22023", "SELECT idemkit_complete(%s, 'token', response_headers => %s)", [RUN, Jsonb([1])])):
        try:
            one(conn, query, *parameters)
        except psycopg.Error as error:
            assert error.sqlstate == state, error.sqlstate
        else:
            raise AssertionError(query)
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def transaction(conn):
    """Claim and completion are the transaction's; without autocommit it opens by itself."""
    key = RUN + " transaction"
    try:
        with conn.transaction():
            token_of(conn, key)
            raise psycopg.Rollback
    except psycopg.Rollback:
        pass
    assert rows(conn, "SELECT * FROM idemkit_get(%s)", key) == []
    with psycopg.connect(row_factory=namedtuple_row) as other:
        token = token_of(other, key)
        assert rows(conn, "SELECT * FROM idemkit_get(%s)", key) == [], "not yet committed"
        one(other, "SELECT idemkit_complete(%s, %s)", key, token)
    assert one(conn, "SELECT * FROM idemkit_get(%s)", key).state == "COMPLETED"


def sweep(conn):
    key = RUN + " sweep"
    one(conn, "SELECT idemkit_complete(%s, %s, expires_after_seconds => 0)", key, token_of(conn, key))
    assert one(conn, "CALL idemkit_sweep(batch_rows => %s)", 10).removed >= 1
    assert rows(conn, "SELECT * FROM idemkit_get(%s)", key) == []
    assert one(conn, "SELECT * FROM idemkit_vacuum()")[0] == 0


if __name__ == "__main__":
    for check in sys.argv[1:]:
        with connect() as connection:
            globals()[check](connection)
        print(check, flush=True)
