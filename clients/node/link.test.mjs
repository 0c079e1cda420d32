// Without a daemon: the bytes of a link in every split, and msgpack's forms. Run: node --test clients/node/link.test.mjs

import assert from 'node:assert/strict';
import test from 'node:test';

import { decode, encode } from './msgpack.mjs';
import { ZmtpLink } from './zmtp.mjs';

const GREETING = Buffer.concat([
  Buffer.from('ff00000000000000017f0301', 'hex'), Buffer.from('NULL'), Buffer.alloc(16 + 1 + 31),
]);
const READY = Buffer.concat([
  Buffer.from('0429055245414459', 'hex'),
  Buffer.from('\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00', 'latin1'),
]);
const SHORT = Buffer.from('000161', 'hex');
const EMPTY = Buffer.from('0000', 'hex');
const LONG = Buffer.concat([Buffer.from('020000000000000190', 'hex'), Buffer.alloc(400, 'b')]);
const LONG_FORM_OF_SHORT = Buffer.from('02000000000000000163', 'hex');
const PING = Buffer.from('04090450494e470012' + '7879', 'hex');
const TWO_FRAMES = Buffer.from('0100' + '000164', 'hex');
const STREAM = Buffer.concat([GREETING, READY, SHORT, EMPTY, PING, LONG, LONG_FORM_OF_SHORT, TWO_FRAMES]);

function play(chunks) {
  const written = [];
  const messages = [];
  let readyAfter = null;
  const link = new ZmtpLink({
    write: (bytes) => written.push(bytes),
    onReady: () => { readyAfter = messages.length; },
    onMessage: (body) => messages.push(body.toString()),
  });
  link.start();
  for (const chunk of chunks) link.feed(chunk);
  return { written, messages, readyAfter };
}

function check({ written, messages, readyAfter }) {
  assert.equal(readyAfter, 0);
  assert.deepEqual(messages, ['a', '', 'b'.repeat(400), 'c', 'd']);
  assert.equal(written.length, 2);
  assert.equal(written[1].toString('hex'), '0407' + '04504f4e47' + '7879');
}

test('what the client sends first is the greeting and its READY', () => {
  const sent = play([]).written[0].toString('hex');
  assert.equal(sent.slice(0, 128), ('ff00000000000000007f0300' + '4e554c4c').padEnd(128, '0'));
  assert.equal(sent.slice(128), '0429' + '055245414459' + '0b536f636b65742d54797065' + '00000006' + '4445414c4552'
    + '084964656e74697479' + '00000000');
});

test('everything in one read', () => check(play([STREAM])));

test('one byte at a time', () => check(play([...STREAM].map((byte) => Buffer.of(byte)))));

test('split in two at every place', () => {
  for (let at = 0; at <= STREAM.length; at++) check(play([STREAM.subarray(0, at), STREAM.subarray(at)]));
});

test('another protocol on the port is refused with words', () => {
  assert.throws(() => play([Buffer.from('HTTP/1.1 400 Bad Request\r\n'.padEnd(80))]), /does not speak ZMTP/);
});

test('a size that nobody means is refused', () => {
  assert.throws(() => play([GREETING, READY, Buffer.from('02ffffffffffffffff', 'hex')]), /allowed are/);
});

test('msgpack writes the shortest form and reads it back', () => {
  const cases = [
    [0, '00'], [127, '7f'], [128, 'cc80'], [256, 'cd0100'], [65536, 'ce00010000'], [2 ** 32, 'cf0000000100000000'],
    [-1, 'ff'], [-32, 'e0'], [-33, 'd0df'], [-129, 'd1ff7f'], [-32769, 'd2ffff7fff'], [-(2 ** 31) - 1, 'd3ffffffff7fffffff'],
    [0.5, 'cb3fe0000000000000'], [null, 'c0'], [true, 'c3'], [false, 'c2'], ['é', 'a2c3a9'], [[], '90'], [{}, '80'],
    [{ a: [1] }, '81a16191' + '01'], ['x'.repeat(32), 'd920' + '78'.repeat(32)], ['x'.repeat(256), 'da0100' + '78'.repeat(256)],
    [Buffer.from('ff', 'hex'), 'c401ff'], [2n ** 64n - 1n, 'cf' + 'f'.repeat(16)], [-(2n ** 63n), 'd38000000000000000'],
  ];
  for (const [value, hex] of cases) {
    assert.equal(encode(value).toString('hex'), hex);
    assert.deepEqual(decode(Buffer.from(hex, 'hex')), value);
  }
  for (const length of [16, 70_000]) {
    const list = Array(length).fill(null);
    const map = Object.fromEntries(list.map((item, index) => [`k${index}`, item]));
    assert.deepEqual(decode(encode(list)), list);
    assert.deepEqual(decode(encode(map)), map);
  }
  assert.equal(decode(encode('x'.repeat(70_000))).length, 70_000);
  assert.equal(decode(Buffer.from('ca3f000000', 'hex')), 0.5);
});

test('msgpack refuses what is not one value of this protocol', () => {
  for (const hex of ['', 'c1', '81', 'dcffff', 'd4' + '0700', '0000', '8101' + '02', '91'.repeat(40) + '00']) {
    assert.throws(() => decode(Buffer.from(hex, 'hex')), /msgpack/);
  }
  assert.throws(() => encode(2n ** 64n), /64 bits/);
  assert.throws(() => encode(() => 0), /cannot be sent/);
});

test('a field with an odd name is a field', () => {
  const fields = decode(encode(JSON.parse('{"__proto__": 1, "x": 2}')));
  assert.deepEqual(Object.entries(fields), [['__proto__', 1], ['x', 2]]);
});
