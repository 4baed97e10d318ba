// Checks of idemkit through pg (node-postgres), by name: pg_checks.js NAME...
//
// Prints the names of those that passed. Run by t/066_drivers.pl, and through a pooler by
// t/068_pooler.pl. With PREPARE=all every query is prepared on the server under a name.
'use strict';
const assert = require('assert').strict;
const { createHash, randomUUID } = require('crypto');
const { Client } = require('pg');

const RUN = randomUUID();
const EVERY_BYTE = Buffer.from([...Array(256).keys()]);
const TRICKY = [...['', '\\', '\\101', '\\x4142', '\'"\r\n'].map((text) => Buffer.from(text)), EVERY_BYTE,
  Buffer.concat(Array(4096).fill(EVERY_BYTE))];

async function rows(client, text, ...values) {
  const query = { text, values };
  if (process.env.PREPARE === 'all') query.name = createHash('md5').update(text).digest('hex');
  return (await client.query(query)).rows;
}

async function one(client, text, ...values) {
  const [row, ...more] = await rows(client, text, ...values);
  assert.equal(more.length, 0);
  return row;
}

async function tokenOf(client, key) {
  return (await one(client, 'SELECT * FROM idemkit_claim($1)', key)).our_claim_token;
}

const checks = {
  async types(client) {
    const key = `${RUN} types`;
    const claim = await one(client, 'SELECT * FROM idemkit_claim($1, $2, 1, $3, true)', key, 'print', 60.5);
    assert.deepEqual([claim.result, claim.effective_key, claim.fingerprint], ['new_claimed', key, 'print']);
    assert.deepEqual([claim.recovered_from_corrupt, claim.fingerprint_matches], [false, true]);
    assert.equal(claim.our_claim_token.length, 32);
    assert.equal(claim.our_claim_token, claim.claim_token);
    assert.ok(Math.abs(claim.lease_until - claim.claimed_at - 60500) <= 1, 'a Date has milliseconds only');
    assert.equal(typeof claim.fence, 'string', 'a bigint comes as text');
    assert.equal(Number(BigInt(claim.fence) / 1000n), claim.claimed_at.getTime());
    assert.ok(claim.remaining_seconds > 59 && claim.remaining_seconds <= 60.5 && claim.attempts === 1);
    assert.deepEqual([claim.completed_at, claim.response_body, claim.response_headers], [null, null, null]);
    const headers = { 'content-type': 'text/plain', x: ['\u00e4\u20ac', null, 1.5, { y: true }] };
    assert.equal((await one(client, 'SELECT idemkit_complete($1, $2, $3, $4, $5) AS stored', key, claim.our_claim_token,
      -1, headers, EVERY_BYTE)).stored, true);
    const record = await one(client, 'SELECT * FROM idemkit_get($1)', key);
    assert.deepEqual([record.response_status, record.response_headers], [-1, headers]);
    assert.ok(record.response_body.equals(EVERY_BYTE));
    assert.ok(record.state === 'COMPLETED' && record.completed_at >= record.claimed_at);
  },

  async composite(client) {
    const { claim } = await one(client, 'SELECT idemkit_claim($1) AS claim', `${RUN} composite`);
    assert.match(claim, /^\(new_claimed,[0-9a-f]{32},f,t,/, 'text, as the server sends it');
    const { json } = await one(client, 'SELECT to_json(idemkit_claim($1)) AS json', `${RUN} composite`);
    assert.equal(json.result, 'already_claimed');
  },

  async bodies(client) {
    for (const [number, body] of [null, ...TRICKY].entries()) {
      const key = `${RUN} bodies ${number}`;
      const token = await tokenOf(client, key);
      assert.ok((await one(client, 'SELECT idemkit_complete($1, $2, response_body => $3) AS stored', key, token, body)).stored);
      const again = await one(client, 'SELECT * FROM idemkit_claim($1)', key);
      assert.equal(again.result, 'already_completed');
      assert.ok(body === null ? again.response_body === null : again.response_body.equals(body), `${number}`);
    }
  },

  // All parameters are of no type and sent as text.
  async unknown(client) {
    for (const [number, [version, lease, reclaim]] of [['1', '30', 'true'], [1, 30, true], [1, 1e3, false]].entries()) {
      const key = `${RUN} unknown ${number}`;
      const claim = await one(client, 'SELECT * FROM idemkit_claim($1, $2, $3, $4, $5, $6)', key, '', version, lease,
        reclaim, null);
      assert.equal(claim.result, 'new_claimed');
      const complete = 'SELECT idemkit_complete($1, $2, $3, $4, $5, $6, $7) AS stored';
      const result = [null, null, null, 60, 'idemkit_records'];
      assert.equal((await one(client, complete, key, claim.claim_token, ...result)).stored, true);
      result.splice(0, 2, '200', '{"a": 1}');
      assert.equal((await one(client, complete, key, claim.claim_token, ...result)).stored, false);
    }
    assert.deepEqual(await rows(client, 'SELECT * FROM idemkit_get($1)', `${RUN} none`), []);
  },

  // More often than it takes until the server plans for good.
  async prepared(client) {
    for (let number = 0; number < 20; number++) {
      const key = `${RUN} prepared ${number}`;
      const claim = await one(client, 'SELECT * FROM idemkit_claim($1, lease_ttl_seconds => $2)', key, 60);
      assert.equal(claim.result, 'new_claimed');
      const again = await one(client, 'SELECT * FROM idemkit_claim($1, lease_ttl_seconds => $2)', key, 60);
      assert.equal(again.result, 'already_claimed');
      assert.ok((await one(client, 'SELECT idemkit_renew($1, $2) AS held', key, claim.claim_token)).held);
      const body = EVERY_BYTE.subarray(number);
      assert.ok((await one(client, 'SELECT idemkit_complete($1, $2, response_body => $3) AS stored', key,
        claim.claim_token, body)).stored);
      assert.ok((await one(client, 'SELECT * FROM idemkit_get($1)', key)).response_body.equals(body));
      await client.query('BEGIN');
      const token = await tokenOf(client, `${key} released`);
      await rows(client, 'SELECT idemkit_guard($1, $2)', `${key} released`, token);
      assert.ok((await one(client, 'SELECT idemkit_release($1, $2) AS held', `${key} released`, token)).held);
      await client.query('COMMIT');
    }
  },

  async arrays(client) {
    const keys = [null, ...TRICKY].map((_, number) => `${RUN} arrays ${number}`);
    const claims = await rows(client, 'SELECT * FROM idemkit_claim_many($1, $2)', keys, keys.map(() => 'f'));
    assert.deepEqual(claims.map((claim) => claim.result), keys.map(() => 'new_claimed'));
    const stored = await rows(client, 'SELECT * FROM idemkit_complete_many($1, $2, $3, $4, $5) AS stored', keys,
      claims.map((claim) => claim.our_claim_token), [null, ...TRICKY.map(() => 200)],
      [null, ...TRICKY.map((_, n) => ({ n, s: '",{}\\' }))], [null, ...TRICKY]);
    assert.deepEqual(stored.map((row) => row.stored), keys.map(() => true));
    const records = await rows(client, 'SELECT * FROM idemkit_subscribe($1)', keys);
    assert.deepEqual(records.map((record) => record.response_body), [null, ...TRICKY]);
    assert.deepEqual(records.slice(0, 2).map((record) => record.response_headers), [null, { n: 0, s: '",{}\\' }]);
    assert.deepEqual(await rows(client, 'SELECT * FROM idemkit_claim_many($1)', []), []);
    assert.deepEqual(await rows(client, 'SELECT * FROM idemkit_complete_many($1, $2)', [], []), []);
  },

  async errors(client) {
    for (const [code, text, ...values] of [
      ['IK001', 'SELECT idemkit_guard($1, $2)', RUN, 'no token'],
      ['22004', 'SELECT idemkit_claim($1)', null],
      ['22023', 'SELECT idemkit_claim($1, lease_ttl_seconds => $2)', RUN, -1],
      ['22023', "SELECT idemkit_complete($1, 'token', response_headers => $2)", RUN, '[1]']]) {
      await assert.rejects(rows(client, text, ...values), { code });
    }
  },

  async transaction(client) {
    const key = `${RUN} transaction`;
    await client.query('BEGIN');
    await tokenOf(client, key);
    await client.query('ROLLBACK');
    assert.deepEqual(await rows(client, 'SELECT * FROM idemkit_get($1)', key), []);
    await client.query('BEGIN');
    await rows(client, 'SELECT idemkit_complete($1, $2)', key, await tokenOf(client, key));
    await client.query('COMMIT');
    assert.equal((await one(client, 'SELECT * FROM idemkit_get($1)', key)).state, 'COMPLETED');
  },

  async sweep(client) {
    const key = `${RUN} sweep`;
    await rows(client, 'SELECT idemkit_complete($1, $2, expires_after_seconds => 0)', key, await tokenOf(client, key));
    assert.ok((await one(client, 'CALL idemkit_sweep(batch_rows => $1)', 10)).removed >= 1);
    assert.deepEqual(await rows(client, 'SELECT * FROM idemkit_get($1)', key), []);
    assert.equal((await one(client, 'SELECT idemkit_vacuum() AS removed')).removed, '0');
  },
};

async function main() {
  for (const check of process.argv.slice(2)) {
    const client = new Client();
    await client.connect();
    await checks[check](client);
    await client.end();
    console.log(check);
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
