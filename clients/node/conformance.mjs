// Proves this client against the golden vectors and a running daemon. Prints PASS and exits 0, or says what differs.
//
//   node conformance.mjs HOST PORT VECTORS_DIR PERSONA

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import path from 'node:path';

import { decode, encode } from './msgpack.mjs';
import { connect, PROTOCOL_VERSION } from './npc-client.mjs';

const GREEDY = { sampling: { temperature: 0 }, max_tokens: 12 };
// JavaScript has one kind of number: 1.0 comes back as the integer 1, so the bytes of these may differ.
const HOLDS_FLOATS = new Set([
  'start_turn', 'set_adapter_scales', 'turn_started', 'turn_finished', 'personas', 'persona_added',
  'adapter_scales_set', 'status',
]);

const [host, port, vectorsDir, persona] = process.argv.slice(2);

function vectors(name) {
  return JSON.parse(readFileSync(path.join(vectorsDir, `${name}.json`), 'utf8'));
}

function goldenVectors() {
  let count = 0;
  for (const { name, type, fields, hex } of [...vectors('requests'), ...vectors('answers')]) {
    const bytes = Buffer.from(hex, 'hex');
    assert.deepEqual(decode(bytes), fields, `${name}: the bytes decode to other fields`);
    assert.equal(decode(bytes).type, type, `${name}: type`);
    assert.deepEqual(decode(encode(fields)), fields, `${name}: fields change on their way through bytes`);
    if (!HOLDS_FLOATS.has(type)) assert.equal(encode(fields).toString('hex'), hex, `${name}: other bytes`);
    count++;
  }
  return count;
}

async function refused(promise, code) {
  const error = await promise.then((answer) => assert.fail(`${code} expected, got ${JSON.stringify(answer)}`), (e) => e);
  assert.equal(error.code, code, `${code} expected, got ${error.stack}`);
  return error;
}

async function greeting() {
  const client = await connect(host, Number(port));
  const early = await refused(client.listPersonas(), 'hello_required');
  assert.equal(early.replyTo, client.lastId);
  const other = { type: 'hello', protocol: PROTOCOL_VERSION + 1, client: 'from the future' };
  await refused(client.request(other), 'protocol_mismatch');
  const welcome = await client.hello('conformance.mjs');
  assert.equal(welcome.protocol, PROTOCOL_VERSION);
  assert.match(welcome.daemon_id, /./);
  assert.ok(['loading', 'ready'].includes(welcome.state), `state ${welcome.state}`);
  return client;
}

async function catalog(client) {
  const found = (await client.listPersonas()).find((info) => info.id === persona);
  assert.ok(found, `persona '${persona}' is not in the catalog`);
  assert.equal(found.available, true, found.problem);
  const error = await refused(client.openSession('no-such-persona'), 'unknown_persona');
  assert.equal(error.replyTo, client.lastId);
  assert.equal(error.fault, 'request');
  assert.equal(error.retryable, false);
}

async function turn(client) {
  const session = await client.openSession(persona, { player: 'Zoë' });
  assert.equal(session.persona, persona);
  assert.equal(session.resumed, false);
  const line = 'Good evening! Qui êtes-vous? 🛶';
  const first = await say(session, line, `conformance ${randomUUID()}`);
  assert.ok(first.deltas.length > 0, 'no delta came');
  assert.ok(first.finished.usage.generated_tokens <= 12);
  // The same turn again: the same answers, nothing computed.
  const again = await say(session, line, first.finished.turn_id);
  const withoutIds = ({ reply_to: _, ...fields }) => fields;
  assert.deepEqual(withoutIds(again.finished), withoutIds(first.finished));
  assert.deepEqual(again.deltas.map(withoutIds), first.deltas.map(withoutIds));
  const error = await refused(session.say('Another line', undefined, { turn_id: first.finished.turn_id }), 'turn_conflict');
  assert.equal(error.replyTo, client.lastId);
  assert.equal((await client.cancel(first.finished.turn_id)).was, 'finished');
  assert.equal((await client.cancel(`never started ${randomUUID()}`)).was, 'unknown');
  await refused(session.say('   '), 'invalid_field');
  await session.close();
  await refused(session.say('Hello?'), 'unknown_session');
}

async function cancel(client) {
  const session = await client.openSession(persona);
  let asked = null;
  const finished = await session.say('Tell me a long story.', () => { asked ??= session.cancel(); }, {
    sampling: { temperature: 0 }, min_tokens: 200, max_tokens: 200,
  });
  assert.equal((await asked).was, 'running');
  assert.equal(finished.finish_reason, 'cancelled');
  assert.equal(finished.kept, false);
  assert.equal((await session.cancel()).was, 'finished', 'cancel is idempotent');
  await session.close();
}

async function say(session, text, turnId) {
  const deltas = [];
  let started = null;
  const finished = await session.say(text, (_, delta) => deltas.push(delta), {
    ...GREEDY, turn_id: turnId, onStarted: (message) => { started = message; },
  });
  const id = session.client.lastId;
  assert.ok(started, 'no turn_started');
  deltas.forEach((delta, index) => assert.equal(delta.index, index, 'deltas are numbered from 0'));
  for (const message of [started, ...deltas, finished]) {
    assert.equal(message.turn_id, turnId);
    assert.equal(message.reply_to, id);
  }
  assert.equal(finished.type, 'turn_finished');
  assert.equal(deltas.map((delta) => delta.text).join(''), finished.text, 'the deltas are the text');
  assert.equal(finished.session_id, session.id);
  assert.equal(finished.persona, persona);
  assert.ok(['end', 'stop', 'length', 'loop'].includes(finished.finish_reason), finished.finish_reason);
  const { prompt_tokens, reused_tokens, new_tokens } = finished.usage;
  assert.equal(prompt_tokens, reused_tokens + new_tokens);
  for (const [name, ms] of Object.entries(finished.timings)) assert.ok(ms >= 0, `${name} is ${ms}`);
  assert.deepEqual(finished.adapters, started.adapters);
  for (const adapter of finished.adapters) assert.match(adapter.digest, /^[0-9a-f]{64}$/);
  assert.equal(finished.seed, started.seed);
  return { started, deltas, finished };
}

async function malformed(client) {
  const expected = vectors('malformed');
  for (const { name, hex, code, reply_to: replyTo } of expected) {
    const answer = await new Promise((resolve, reject) => {
      client.onStray = resolve;
      client.onClose = (error) => reject(new Error(`${name}: ${error.message}`));
      client.sendRaw(Buffer.from(hex, 'hex'));
    });
    assert.deepEqual([answer.type, answer.code, answer.reply_to], ['error', code, replyTo], name);
    assert.doesNotMatch(answer.message, /Traceback|\.py/, `${name}: internals in the text`);
  }
  assert.equal((await client.ping()).type, 'pong', 'the connection still works');
  return expected.length;
}

let client = null;
const limit = setTimeout(() => { console.error('no end after 120 s'); process.exit(1); }, 120_000);
try {
  console.log(`golden vectors: ${goldenVectors()}`);
  client = await greeting();
  await catalog(client);
  await turn(client);
  await cancel(client);
  console.log(`malformed messages answered: ${await malformed(client)}`);
  console.log('PASS');
} catch (error) {
  console.error(error.stack);
  process.exitCode = 1;
} finally {
  clearTimeout(limit);
  if (client) {
    client.onClose = () => {};
    client.close();
  }
}
