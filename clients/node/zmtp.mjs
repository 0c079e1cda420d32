// The client's end of ZMTP 3.x (NULL mechanism, DEALER socket) on a plain stream: bytes in, whole messages out.
// No input or output of its own: `write` is given, what arrives goes into `feed`, in pieces of any size.

const MORE = 1;
const LONG = 2;
const COMMAND = 4;
const GREETING_BYTES = 64;
const MAX_FRAME_BYTES = 16 * 1024 * 1024;

/** One link. `onReady()` once the peer is ready, then `onMessage(frame)` for each message of one frame. */
export class ZmtpLink {
  constructor({ write, onReady, onMessage }) {
    this.write = write;
    this.onReady = onReady;
    this.onMessage = onMessage;
    this.ready = false;
    this.greeted = false;
    this.pieces = [];
    this.waiting = 0;
    this.needed = GREETING_BYTES;
    this.frames = [];
  }

  /** Greeting and READY may leave at once; messages only after the peer's READY. */
  start() {
    const greeting = Buffer.alloc(GREETING_BYTES);
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting.write('NULL', 12, 'ascii');
    const ready = Buffer.concat([Buffer.from('\x05READY'), property('Socket-Type', 'DEALER'), property('Identity', '')]);
    this.write(Buffer.concat([greeting, frame(ready, COMMAND)]));
  }

  /** Send one message. */
  send(body) {
    if (!this.ready) throw new Error('zmtp: the peer is not ready yet');
    this.write(frame(body, 0));
  }

  /** Take bytes from the stream. Throws where they are not ZMTP. */
  feed(bytes) {
    this.pieces.push(bytes);
    this.waiting += bytes.length;
    // Nothing is joined before enough is there: a large frame in many small reads is copied once.
    while (this.waiting >= this.needed) {
      const data = this.pieces.length === 1 ? this.pieces[0] : Buffer.concat(this.pieces);
      const used = this.greeted ? this.readFrame(data) : this.readGreeting(data);
      this.pieces = used < data.length ? [data.subarray(used)] : [];
      this.waiting -= used;
    }
  }

  readGreeting(data) {
    const fits = data[0] === 0xff && data[9] === 0x7f && data[10] >= 3 && data.toString('latin1', 12, 17) === 'NULL\0';
    if (!fits) throw new Error('zmtp: the other side does not speak ZMTP 3 without encryption; is this the right port?');
    this.greeted = true;
    this.needed = 2;
    return GREETING_BYTES;
  }

  // The number of bytes used: 0 where the frame is not complete; `needed` then says how many bytes it takes.
  readFrame(data) {
    const flags = data[0];
    const head = flags & LONG ? 9 : 2;
    if (data.length < head) return this.waitFor(head);
    const size = flags & LONG ? Number(data.readBigUInt64BE(1)) : data[1];
    if (size > MAX_FRAME_BYTES) throw new Error(`zmtp: a frame of ${size} bytes; allowed are ${MAX_FRAME_BYTES}`);
    if (data.length < head + size) return this.waitFor(head + size);
    this.needed = 2;
    const body = data.subarray(head, head + size);
    if (flags & COMMAND) this.onCommand(body);
    else this.onFrame(body, (flags & MORE) !== 0);
    return head + size;
  }

  waitFor(bytes) {
    this.needed = bytes;
    return 0;
  }

  onCommand(body) {
    const name = body.toString('latin1', 1, 1 + body[0]);
    const rest = body.subarray(1 + body[0]);
    if (name === 'READY' && !this.ready) {
      this.ready = true;
      this.onReady();
    } else if (name === 'PING') {
      // After a time-to-live of two bytes comes a context that the answer repeats.
      this.write(frame(Buffer.concat([Buffer.from('\x04PONG'), rest.subarray(2)]), COMMAND));
    } else if (name === 'ERROR') {
      throw new Error(`zmtp: the other side refused: ${rest.toString('utf8', 1)}`);
    }
  }

  onFrame(body, more) {
    this.frames.push(body);
    if (more) return;
    const message = this.frames;
    this.frames = [];
    this.onMessage(message[message.length - 1]);
  }
}

function frame(body, flags) {
  if (body.length < 256) return Buffer.concat([Buffer.of(flags, body.length), body]);
  const head = Buffer.alloc(9);
  head[0] = flags | LONG;
  head.writeBigUInt64BE(BigInt(body.length), 1);
  return Buffer.concat([head, body]);
}

function property(name, value) {
  const size = Buffer.alloc(4);
  size.writeUInt32BE(value.length);
  return Buffer.concat([Buffer.of(name.length), Buffer.from(name), size, Buffer.from(value)]);
}
