#!/usr/bin/env python3
"""Takes payments over HTTP, each of them once.

    python3 server.py [PORT]
    curl -i -H 'Idempotency-Key: "8e03978e"' -d '{"order": 1001, "cents": 4990}' localhost:8080/payments

The Idempotency-Key is that of the IETF's draft-ietf-httpapi-idempotency-key-header:

    none, or a malformed one              400
    its request is still being worked on  409, with Retry-After
    it was used with another payload      422
    its request has been answered         that answer: status, headers and body

Connects to PostgreSQL as libpq does (PGHOST, PGDATABASE, ...), for each request anew;
a real service has a pool (psycopg_pool).
"""
import hashlib
import json
import re
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

LEASE = 10  # seconds until another may take over; renewed while the work goes on
KEPT = 24 * 3600  # seconds that an answer is replayed
SOON = {"Retry-After": "1"}
DOCUMENTATION = "https://developer.example.com/idempotency"


def connect():
    return psycopg.connect(autocommit=True, row_factory=namedtuple_row)


def one(conn, query, *parameters):
    return conn.execute(query, parameters).fetchone()


def charge_card(payment, key, fence):
    """Stands for a call of the card processor: slow, and it may fail. It is given our key,
    so that it charges once too, and the fence, so that it can refuse an owner that is late."""
    return f"receipt {uuid.uuid4()}"


class Declined(Exception):
    """The answer is no: an answer like any other, to be replayed."""


class Renewal:
    """Renews the claim while the work goes on. If that fails, the guard will say so."""

    def __init__(self, claim):
        self.claim = claim
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.renew)

    def renew(self):
        held = True
        while held and not self.over.wait(LEASE / 3):
            with connect() as conn:  # the worker's own may be busy
                held = one(conn, "SELECT idemkit_renew(%s, %s, %s) AS held", self.claim.effective_key,
                           self.claim.our_claim_token, LEASE).held

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *exception):
        self.over.set()
        self.thread.join()


def problem(status, title, headers={}):
    body = {"type": DOCUMENTATION, "status": status, "title": title}
    return status, {"Content-Type": "application/problem+json", **headers}, json.dumps(body).encode()


def answer_once(client, key, payload, payment):
    """The answer to a request: status, headers, body."""
    with connect() as conn:
        # Each client has keys of its own. What the key stands for is the payload.
        claim = one(conn, """SELECT * FROM idemkit_claim(
                                 idemkit_effective_key(%s, 'POST /payments', %s),
                                 fingerprint => %s, lease_ttl_seconds => %s)""",
                    client, key, hashlib.sha256(payload).hexdigest(), LEASE)
        if claim.our_claim_token is not None:
            return work(conn, claim, payment)
        if not claim.fingerprint_matches:
            return problem(422, "Idempotency-Key was used with another payload")
        if claim.result == "already_completed":
            return claim.response_status, claim.response_headers, claim.response_body
        return problem(409, "A request with this Idempotency-Key is being worked on", SOON)


def work(conn, claim, payment):
    held = (claim.effective_key, claim.our_claim_token)
    try:
        with Renewal(claim):
            receipt = charge_card(payment, claim.effective_key, claim.fence)
        with conn.transaction():
            # From here on nobody can take over: the row and the answer are ours, or neither.
            conn.execute("SELECT idemkit_guard(%s, %s)", held)
            row = one(conn, """INSERT INTO payment (order_no, cents, receipt)
                               VALUES (%s, %s, %s) RETURNING id""",
                      payment["order"], payment["cents"], receipt)
            headers = {"Content-Type": "application/json", "Location": f"/payments/{row.id}"}
            body = json.dumps({"payment": row.id, **payment}).encode()
            return complete(conn, held, (201, headers, body))
    except Declined as reason:
        return complete(conn, held, problem(402, str(reason)))
    except psycopg.Error as error:
        if error.sqlstate != "IK001":
            raise  # the database fails: when it is back the lease will be over
        return problem(409, "This took too long, another has taken over", SOON)
    except Exception:
        # The next request may try at once, and need not wait for the end of the lease.
        one(conn, "SELECT idemkit_release(%s, %s)", *held)
        raise


def complete(conn, held, answer):
    status, headers, body = answer
    one(conn, "SELECT idemkit_complete(%s, %s, %s, %s, %s, %s)",
        *held, status, Jsonb(headers), body, KEPT)
    return answer


def key_of(fields):
    """The key, or None. The draft's syntax is one string as RFC 9651 has it, in quotes."""
    item = re.fullmatch(r' *"((?:[ !#-\[\]-~]|\\["\\])+)" *(?:;.*)?', ", ".join(fields))
    return re.sub(r"\\(.)", r"\1", item[1]) if item else None


def payment_of(payload):
    payment = json.loads(payload)
    return {"order": int(payment["order"]), "cents": int(payment["cents"])}


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        status, headers, body = self.answer()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self):
        payload = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = key_of(self.headers.get_all("Idempotency-Key", []))
        if self.path != "/payments":
            return problem(404, "There is nothing here")
        if key is None:
            return problem(400, "Idempotency-Key is missing or malformed")
        try:
            payment = payment_of(payload)
        except (ValueError, KeyError, TypeError):
            return problem(400, "The payload is no payment")
        try:
            return answer_once(self.headers.get("Authorization", ""), key, payload, payment)
        except Exception as error:
            self.log_error("%s", error)
            return problem(503, "Something went wrong; send the request again", SOON)


class Server(ThreadingHTTPServer):
    request_queue_size = 128


def create_server(port):
    with connect() as conn:
        conn.execute("""CREATE TABLE IF NOT EXISTS payment (
                            id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                            order_no bigint, cents bigint, receipt text)""")
    return Server(("localhost", port), Payments)


if __name__ == "__main__":
    server = create_server(int(sys.argv[1]) if len(sys.argv) > 1 else 8080)
    print(f"listening on port {server.server_port}", flush=True)
    server.serve_forever()
