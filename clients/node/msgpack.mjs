// msgpack for what this protocol uses: nil, booleans, integers, floats, text, bytes, arrays and maps with text keys.
// Extension types are refused. Integers beyond 2^53 are read as BigInt; a BigInt is written as a 64-bit integer.

const MAX_DEPTH = 32;

/** The bytes of `value` (a Buffer). Whole numbers are written as integers, all others as 64-bit floats. */
export function encode(value) {
  const parts = [];
  write(value, parts, 0);
  return Buffer.concat(parts);
}

function write(value, parts, depth) {
  if (depth > MAX_DEPTH) throw new TypeError(`msgpack: nested deeper than ${MAX_DEPTH} levels`);
  if (value === null || value === undefined) parts.push(Buffer.of(0xc0));
  else if (typeof value === 'boolean') parts.push(Buffer.of(value ? 0xc3 : 0xc2));
  else if (typeof value === 'bigint') parts.push(wholeNumber(value));
  else if (typeof value === 'number') parts.push(Number.isSafeInteger(value) ? wholeNumber(BigInt(value)) : double(value));
  else if (typeof value === 'string') {
    const text = Buffer.from(value, 'utf8');
    parts.push(head(text.length, 0xa0, 32, 0xd9, 0xda, 0xdb), text);
  } else if (value instanceof Uint8Array) {
    parts.push(head(value.length, 0, 0, 0xc4, 0xc5, 0xc6), value);
  } else if (Array.isArray(value)) {
    parts.push(head(value.length, 0x90, 16, 0, 0xdc, 0xdd));
    for (const item of value) write(item, parts, depth + 1);
  } else if (typeof value === 'object') {
    const fields = Object.entries(value).filter(([, item]) => item !== undefined);
    parts.push(head(fields.length, 0x80, 16, 0, 0xde, 0xdf));
    for (const [key, item] of fields) {
      write(key, parts, depth + 1);
      write(item, parts, depth + 1);
    }
  } else throw new TypeError(`msgpack: a ${typeof value} cannot be sent`);
}

// Type byte and length: in the type byte below `few`, else in 1 (where the type has that form), 2 or 4 bytes.
function head(length, fixed, few, one, two, four) {
  if (length < few) return Buffer.of(fixed | length);
  if (one && length < 0x100) return Buffer.of(one, length);
  const bytes = Buffer.alloc(length < 0x10000 ? 3 : 5);
  bytes[0] = length < 0x10000 ? two : four;
  bytes.writeUIntBE(length, 1, bytes.length - 1);
  return bytes;
}

function wholeNumber(value) {
  if (value >= 0n && value < 128n) return Buffer.of(Number(value));
  if (value < 0n && value >= -32n) return Buffer.of(256 + Number(value));
  for (const [power, size] of [[8n, 1], [16n, 2], [32n, 4], [64n, 8]]) {
    const fits = value >= 0n ? value < 1n << power : value >= -(1n << (power - 1n));
    if (!fits) continue;
    const bytes = Buffer.alloc(1 + size);
    bytes[0] = (value >= 0n ? 0xcc : 0xd0) + Math.log2(size);
    const unsigned = BigInt.asUintN(size * 8, value);
    if (size === 8) bytes.writeBigUInt64BE(unsigned, 1);
    else bytes.writeUIntBE(Number(unsigned), 1, size);
    return bytes;
  }
  throw new RangeError(`msgpack: ${value} does not fit into 64 bits`);
}

function double(value) {
  const bytes = Buffer.alloc(9);
  bytes[0] = 0xcb;
  bytes.writeDoubleBE(value, 1);
  return bytes;
}

/** The one value in `data`. Throws on anything else. */
export function decode(data) {
  const reader = new Reader(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  const value = reader.value(0);
  if (reader.at !== data.length) throw new RangeError('msgpack: bytes after the end of the value');
  return value;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(length) {
    if (this.at + length > this.bytes.length) throw new RangeError('msgpack: the data ends too early');
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  unsigned(size) {
    const bytes = this.take(size);
    return size === 8 ? narrow(bytes.readBigUInt64BE(0)) : bytes.readUIntBE(0, size);
  }

  signed(size) {
    const bytes = this.take(size);
    return size === 8 ? narrow(bytes.readBigInt64BE(0)) : bytes.readIntBE(0, size);
  }

  text(length) {
    return this.take(length).toString('utf8');
  }

  array(length, depth) {
    const items = [];
    for (let i = 0; i < length; i++) items.push(this.value(depth + 1));
    return items;
  }

  map(length, depth) {
    const fields = {};
    for (let i = 0; i < length; i++) {
      const key = this.value(depth + 1);
      if (typeof key !== 'string') throw new TypeError('msgpack: a map key is not text');
      // Not fields[key] = …: the key "__proto__" is a field like any other.
      const value = this.value(depth + 1);
      Object.defineProperty(fields, key, { value, writable: true, enumerable: true, configurable: true });
    }
    return fields;
  }

  value(depth) {
    if (depth > MAX_DEPTH) throw new RangeError(`msgpack: nested deeper than ${MAX_DEPTH} levels`);
    const type = this.take(1)[0];
    if (type < 0x80) return type;
    if (type < 0x90) return this.map(type & 15, depth);
    if (type < 0xa0) return this.array(type & 15, depth);
    if (type < 0xc0) return this.text(type & 31);
    if (type >= 0xe0) return type - 256;
    switch (type) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return Buffer.from(this.take(this.unsigned(1 << (type - 0xc4))));
      case 0xca: return this.take(4).readFloatBE(0);
      case 0xcb: return this.take(8).readDoubleBE(0);
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return this.unsigned(1 << (type - 0xcc));
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return this.signed(1 << (type - 0xd0));
      case 0xd9: case 0xda: case 0xdb: return this.text(this.unsigned(1 << (type - 0xd9)));
      case 0xdc: case 0xdd: return this.array(this.unsigned(2 << (type - 0xdc)), depth);
      case 0xde: case 0xdf: return this.map(this.unsigned(2 << (type - 0xde)), depth);
      default: throw new TypeError(`msgpack: type byte 0x${type.toString(16)} is not used by this protocol`);
    }
  }
}

function narrow(value) {
  return value >= BigInt(Number.MIN_SAFE_INTEGER) && value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;
}
