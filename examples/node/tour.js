#!/usr/bin/env node
// What idemkit does, step by step, with pg (node-postgres).
//
// Connects by PGHOST, PGDATABASE, ... Exits non-zero where a promise does not hold.
'use strict';
const { randomUUID } = require('crypto');
const { setTimeout: sleep } = require('timers/promises');
const { isDeepStrictEqual: same } = require('util');
const { Client } = require('pg');

async function connect() {
  const client = new Client();
  await client.connect();
  return client;
}

async function one(client, text, ...values) {
  return (await client.query(text, values)).rows[0];
}

function check(holds, promise) {
  if (!holds) throw new Error(`broken promise: ${promise}`);
}

async function claimAndComplete(client, key) {
  const claim = await one(client, 'SELECT * FROM idemkit_claim($1, $2, lease_ttl_seconds => $3)',
    key, '49.90', 60);
  check(claim.result === 'new_claimed', 'a new key is won');
  console.log('claim:       won, so the card is charged');

  const body = Buffer.from('receipt 17'); // a body is a Buffer, never a string
  const complete = 'SELECT idemkit_complete($1, $2, $3, $4, $5) AS stored';
  const result = [key, claim.our_claim_token, 201, { 'content-type': 'text/plain' }, body];
  check((await one(client, complete, ...result)).stored, 'the owner completes its claim');
  check(!(await one(client, complete, ...result)).stored, 'a claim is completed once');
  console.log('complete:    status, headers and body are stored, once');
}

async function replay(client, key) {
  const again = await one(client, 'SELECT * FROM idemkit_claim($1, $2)', key, '49.90');
  check(again.result === 'already_completed' && again.our_claim_token === null,
    'a duplicate does no work');
  check(same(again.response_headers, { 'content-type': 'text/plain' }), 'headers are replayed');
  check(again.completed_at >= again.claimed_at, 'times are times');
  console.log(`replay:      ${again.response_status} ${again.response_body}`);

  const other = await one(client, 'SELECT * FROM idemkit_claim($1, $2)', key, '99.90');
  check(!other.fingerprint_matches, 'a key used for something else is noticed');
  console.log('replay:      the same key with another amount is noticed');
}

// Waits until the claim of key has ended. Returns its record: COMPLETED, or still CLAIMED
// (the lease is over, or the timeout); undefined if there is none: claim again.
async function wait(client, key, timeout) {
  const deadline = performance.now() / 1000 + timeout;
  let wake;
  const notified = (notification) => notification.payload === key && wake();
  let woken = new Promise((resolve) => { wake = resolve; });
  client.on('notification', notified);
  await client.query('LISTEN idemkit_completions'); // listen first, then look
  try {
    for (;;) {
      woken = new Promise((resolve) => { wake = resolve; });
      const record = await one(client, 'SELECT * FROM idemkit_subscribe($1)', [key]);
      if (!record || record.state === 'COMPLETED') return record;
      const left = Math.min(deadline - performance.now() / 1000, record.remaining_seconds);
      if (left <= 0) return record;
      // A notification makes it quick, looking again every second makes it certain.
      await Promise.race([woken, sleep(Math.min(left, 1) * 1000, undefined, { ref: false })]);
    }
  } finally {
    client.off('notification', notified);
    await client.query('UNLISTEN idemkit_completions');
  }
}

async function waitForAnother(client, key) {
  const owner = await connect();
  const token = (await one(owner, 'SELECT * FROM idemkit_claim($1)', key)).our_claim_token;
  const claim = await one(client, 'SELECT * FROM idemkit_claim($1)', key);
  check(claim.result === 'already_claimed' && claim.remaining_seconds > 0, 'one owner at a time');
  console.log('wait:        another is at work');

  const work = async () => {
    await sleep(200);
    await one(owner, 'SELECT idemkit_complete($1, $2, $3, response_body => $4)',
      key, token, 204, Buffer.alloc(0));
    await owner.end();
  };
  const [record] = await Promise.all([wait(client, key, 10), work()]);
  check(record.response_status === 204 && record.response_body.length === 0,
    'an empty body is not NULL');
  console.log('wait:        woken, 204 with an empty body');
}

// Claim, work and result in one transaction.
async function pay(client, key, cents, fail = false) {
  await client.query('BEGIN');
  try {
    const claim = await one(client, 'SELECT * FROM idemkit_claim($1, $2)', key, `${cents}`);
    if (claim.our_claim_token !== null) {
      await client.query('INSERT INTO tour_charge VALUES ($1, $2)', [key, cents]);
      await client.query('SELECT idemkit_complete($1, $2, response_body => $3)',
        [key, claim.our_claim_token, Buffer.from('charged')]);
      if (fail) throw new Error('no');
    } else {
      check(claim.result === 'already_completed', 'a duplicate waits for the transaction');
    }
    await client.query('COMMIT');
    return claim.our_claim_token !== null ? 'charged' : claim.response_body.toString();
  } catch (error) {
    await client.query('ROLLBACK');
    throw error;
  }
}

async function transactional(client, key) {
  await client.query('CREATE TABLE IF NOT EXISTS tour_charge (key text, cents integer)');
  await pay(client, key, 4990, true).catch((error) => check(error.message === 'no', error));
  check(await one(client, 'SELECT * FROM idemkit_get($1)', key) === undefined,
    'a claim is rolled back with its work');
  console.log('transaction: rolled back, and the claim with it');
  const answers = [await pay(client, key, 4990), await pay(client, key, 4990)];
  check(same(answers, ['charged', 'charged']), 'both get the answer');
  const { count } = await one(client, 'SELECT count(*)::integer FROM tour_charge WHERE key = $1', key);
  check(count === 1, 'one charge');
  console.log('transaction: committed, one row for two requests');
}

async function batch(client, keys) {
  const claims = (await client.query('SELECT * FROM idemkit_claim_many($1)', [keys])).rows;
  check(same(claims.map((claim) => claim.effective_key), keys), 'a row for each key, in order');
  const ours = claims.filter((claim) => claim.our_claim_token !== null);
  check(same(ours.map((claim) => claim.result), ['new_claimed', 'new_claimed']), 'two of them are new');
  const bodies = [Buffer.from([...Array(256).keys()]), null];
  const done = (await client.query('SELECT * FROM idemkit_complete_many($1, $2, $3, $4, $5) AS stored',
    [ours.map((claim) => claim.effective_key), ours.map((claim) => claim.our_claim_token),
      [200, 404], [{ n: 1 }, null], bodies])).rows;
  check(done.every((row) => row.stored), 'both are completed');
  const stored = [];
  for (const claim of ours) {
    stored.push(await one(client, 'SELECT * FROM idemkit_get($1)', claim.effective_key));
  }
  check(same(stored.map((record) => record.response_body), bodies), 'bodies come back as they were');
  check(same(stored.map((record) => record.response_headers), [{ n: 1 }, null]), 'headers too');
  console.log('batch:       two of three were new, all three have results');
}

async function main() {
  const run = `tour ${randomUUID()} `;
  const client = await connect();
  await claimAndComplete(client, `${run}order 1`);
  await replay(client, `${run}order 1`);
  await waitForAnother(client, `${run}order 2`);
  await transactional(client, `${run}order 3`);
  await batch(client, [`${run}order 4`, `${run}order 1`, `${run}order 5`]);
  await client.end();
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
