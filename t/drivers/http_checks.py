"""Checks of examples/http/server.py by real, concurrent requests: http_checks.py NAME...

Prints the names of those that passed. Run by t/067_http.pl. The server runs in this
process, on a free port; charge_card() is replaced by one that the checks can count,
hold up and let fail.
"""
import http.client
import json
import pathlib
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg

HTTP = pathlib.Path(__file__).resolve().parents[2] / "examples" / "http"
sys.path.insert(0, str(HTTP))
sys.dont_write_bytecode = True
import server  # noqa: E402

PATIENCE = 60


class Card:
    """A card processor: counts its calls, and can be held up."""

    def __init__(self):
        self.calls = []
        self.open = threading.Event()
        self.open.set()
        self.fail = None
        server.charge_card = self.charge

    def charge(self, payment, key, fence):
        self.calls.append((payment, key, fence))
        assert self.open.wait(PATIENCE), "held up for too long"
        if self.fail is not None:
            raise self.fail
        return f"receipt {len(self.calls)}"


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.body = response.read()
        self.headers = {name: value for name, value in response.getheaders() if name not in ("Date", "Server")}

    def __eq__(self, other):
        return (self.status, self.headers, self.body) == (other.status, other.headers, other.body)

    def problem(self):
        assert self.headers["Content-Type"] == "application/problem+json"
        problem = json.loads(self.body)
        assert problem["status"] == self.status and problem["title"] and problem["type"].startswith("https://")
        return problem


def post(port, order, key=None, client=None, cents=4990, path="/payments", body=None, keys=()):
    connection = http.client.HTTPConnection("localhost", port, timeout=PATIENCE)
    payload = (body if body is not None else json.dumps({"order": order, "cents": cents})).encode()
    connection.putrequest("POST", path)
    for value in ([f'"{key}"'] if key is not None else []) + list(keys):
        connection.putheader("Idempotency-Key", value)
    if client is not None:
        connection.putheader("Authorization", client)
    connection.putheader("Content-Length", str(len(payload)))
    connection.endheaders(payload)
    answer = Answer(connection.getresponse())
    connection.close()
    return answer


def insist(port, *arguments, **options):
    """As a client does: again as long as the answer is 409 or 503."""
    end = time.monotonic() + PATIENCE
    while True:
        answer = post(port, *arguments, **options)
        if answer.status not in (409, 503):
            return answer
        assert answer.headers["Retry-After"] == "1" and time.monotonic() < end
        time.sleep(0.05)  # a client in a hurry


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def query(text, *parameters):
    with psycopg.connect(autocommit=True) as conn:
        return conn.execute(text, parameters).fetchall()


def payments(order):
    return query("SELECT count(*) FROM payment WHERE order_no = %s", order)[0][0]


def header(port, card):
    """400 for a key that is missing or no string as the draft wants it; 404; no payment."""
    for keys in ([], ["bare"], ['""'], ['"open'], ['"a", "b"'], ['"a"', '"b"'], ['"a" "b"'], ['"\\n"'], ['1'], ['"\u00e4"']):
        answer = post(port, 1, keys=[key.encode("latin-1") for key in keys])
        assert answer.status == 400 and "Idempotency-Key" in answer.problem()["title"], keys
    for body in ("", "[]", "{}", '{"order": "x", "cents": 1}', "not JSON"):
        assert post(port, 1, "key", body=body).status == 400 and card.calls == []
    assert post(port, 1, "key", path="/").status == 404
    # Well-formed: escapes are undone, parameters ignored.
    first = post(port, 1, keys=['"with \\"quotes\\" and \\\\"'])
    assert first.status == 201
    assert post(port, 1, keys=['  "with \\"quotes\\" and \\\\";p=1']) == first and len(card.calls) == 1


def replay(port, card):
    """The same request has the same status, headers and body, and no other effect."""
    key = str(uuid.uuid4())
    first = post(port, 2, key)
    assert first.status == 201 and first.headers["Content-Type"] == "application/json"
    assert first.headers["Location"] == f"/payments/{json.loads(first.body)['payment']}"
    assert json.loads(first.body)["order"] == 2
    assert [post(port, 2, key) == first for _ in range(3)] == [True] * 3
    assert len(card.calls) == 1 and payments(2) == 1
    assert post(port, 2, str(uuid.uuid4())) != first and payments(2) == 2, "another key is another payment"


def payload(port, card):
    """422 for another payload, while the first is in flight and after it."""
    key = str(uuid.uuid4())
    card.open.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, port, 3, key)
        until(lambda: card.calls)
        assert post(port, 3, key, cents=9990).status == 422
        card.open.set()
        assert first.result().status == 201
    answer = post(port, 3, key, cents=9990)
    assert answer.status == 422 and "payload" in answer.problem()["title"]
    assert post(port, 3, key) == first.result() and payments(3) == 1


def in_flight(port, card):
    """20 at once: one is served, 19 are told to come back, then have the same answer."""
    key = str(uuid.uuid4())
    card.open.clear()
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(post, port, 4, key) for _ in range(20)]
        until(lambda: sum(answer.done() for answer in answers) == 19)
        refused = [answer.result() for answer in answers if answer.done()]
        assert all(answer.status == 409 and answer.headers["Retry-After"] == "1" for answer in refused)
        refused[0].problem()
        card.open.set()
    served = [answer.result() for answer in answers if answer.result() not in refused]
    assert len(served) == 1 and served[0].status == 201
    assert post(port, 4, key) == served[0]
    assert len(card.calls) == 1 and payments(4) == 1


def race(port, card):
    """20 clients that insist, all on five keys: five charges, five answers."""
    keys = [str(uuid.uuid4()) for _ in range(5)]
    barrier = threading.Barrier(20)

    def client(number):
        barrier.wait(PATIENCE)
        return [insist(port, 500 + (number + turn) % 5, keys[(number + turn) % 5]) for turn in range(5)]

    with ThreadPoolExecutor(20) as pool:
        answers = sum(pool.map(client, range(20)), [])
    assert len(answers) == 100 and {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 5
    assert len(card.calls) == 5 and [payments(500 + n) for n in range(5)] == [1] * 5


def scope(port, card):
    """Clients do not share keys."""
    answers = [post(port, 6, "mine", client=client) for client in ("Bearer a", "Bearer b", "Bearer a")]
    assert answers[0] == answers[2] != answers[1] and len(card.calls) == 2 and payments(6) == 2


def declined(port, card):
    """A refusal is an answer: stored and replayed."""
    card.fail = server.Declined("The card is over its limit")
    first = post(port, 7, "declined")
    card.fail = None
    assert first.status == 402 and first.problem()["title"] == "The card is over its limit"
    assert post(port, 7, "declined") == first and len(card.calls) == 1 and payments(7) == 0


def failure(port, card):
    """A failure is none: the next request does the work, at once, and with the same key."""
    card.fail = OSError("the line is dead")
    answer = post(port, 8, "failure")
    assert answer.status == 503 and answer.headers["Retry-After"] == "1" and "dead" not in answer.problem()["title"]
    card.fail = None
    assert post(port, 8, "failure").status == 201 and payments(8) == 1
    assert card.calls[0][1] == card.calls[1][1] and card.calls[0][2] < card.calls[1][2]


def renewal(port, card):
    """Work that takes longer than the lease keeps it."""
    server.LEASE = 0.5
    card.open.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, port, 9, "renewal")
        until(lambda: card.calls)
        renewed = "SELECT lease_until > claimed_at + interval '2 s' FROM idemkit_get(%s)"
        until(lambda: query(renewed, card.calls[0][1])[0][0])
        assert post(port, 9, "renewal").status == 409
        card.open.set()
        assert first.result().status == 201
    assert post(port, 9, "renewal") == first.result() and len(card.calls) == 1 and payments(9) == 1


def lost(port, card):
    """Who lost the claim writes nothing, says so, and leaves the other's result alone."""
    card.open.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, port, 10, "lost")
        until(lambda: card.calls)
        query("UPDATE idemkit_records SET lease_until = clock_timestamp() - interval '1 s' WHERE effective_key = %s"
              " RETURNING 1", card.calls[0][1])
        second = pool.submit(post, port, 10, "lost")
        until(lambda: len(card.calls) == 2)
        assert card.calls[0][1] == card.calls[1][1] and card.calls[0][2] < card.calls[1][2]
        card.open.set()
    assert sorted([first.result().status, second.result().status]) == [201, 409]
    assert first.result().headers["Retry-After"] == "1"
    assert post(port, 10, "lost") == second.result() and payments(10) == 1


def dead_owner(port, card):
    """An owner that died, as by kill -9, blocks its key until its lease is over, and no longer."""
    key, = query("SELECT idemkit_effective_key('', 'POST /payments', 'dead')")[0]
    query("SELECT idemkit_claim(%s, encode(sha256(%s), 'hex'), lease_ttl_seconds => 600)", key,
          json.dumps({"order": 11, "cents": 4990}).encode())
    assert post(port, 11, "dead").status == 409
    query("UPDATE idemkit_records SET lease_until = clock_timestamp() WHERE effective_key = %s RETURNING 1", key)
    assert post(port, 11, "dead").status == 201 and payments(11) == 1 and card.calls[0][1] == key


def program(port, card):
    """Started as its head says, it listens."""
    with subprocess.Popen([sys.executable, str(HTTP / "server.py"), "0"], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as process:
        try:
            other = int(process.stdout.readline().split()[-1])
            assert post(other, 12, "program").status == 201 and payments(12) == 1
            assert post(port, 12, "program").status == 201 and payments(12) == 1, "any server answers"
        finally:
            process.kill()


def main():
    service = server.create_server(0)
    server.Payments.log_message = lambda *arguments: None
    threading.Thread(target=service.serve_forever, daemon=True).start()
    lease = server.LEASE
    for name in sys.argv[1:]:
        server.LEASE = lease
        globals()[name](service.server_port, Card())
        print(name, flush=True)
    service.shutdown()


main()
