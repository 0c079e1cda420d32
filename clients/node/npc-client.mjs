// A client for NPC Runtime with no dependency: Node, Electron, NW.js (RPG Maker MV/MZ). See README.md.
//
// One NpcClient is one connection. Requests may overlap; answers find their request by id.

import { randomUUID } from 'node:crypto';
import net from 'node:net';

import { decode, encode } from './msgpack.mjs';
import { ZmtpLink } from './zmtp.mjs';

export const PROTOCOL_VERSION = 1;

const LAST = new Set([
  'welcome', 'session_opened', 'session_closed', 'turn_finished', 'turn_cancelled', 'personas', 'persona_added',
  'persona_removed', 'adapter_scales_set', 'status', 'pong', 'error',
]);

/** What the daemon answered, or that it cannot be reached (code `connection_lost`). */
export class NpcError extends Error {
  constructor({ code, message, fault = 'runtime', retryable = false, reply_to = null, turn_id = null }) {
    super(message);
    this.name = 'NpcError';
    Object.assign(this, { code, fault, retryable, replyTo: reply_to, turnId: turn_id });
  }
}

function connectionLost(message) {
  return new NpcError({ code: 'connection_lost', message, retryable: true });
}

/** A connected client that has not said hello yet. Rejects with NpcError `connection_lost`. */
export function connect(host, port, { timeoutMs = 10_000, requestTimeoutMs = 60_000 } = {}) {
  return new Promise((resolve, reject) => {
    const client = new NpcClient(net.connect({ host, port, noDelay: true }), requestTimeoutMs);
    const timer = setTimeout(() => client.fail(`no daemon answers at ${host}:${port} within ${timeoutMs} ms`), timeoutMs);
    client.link.onReady = () => {
      clearTimeout(timer);
      resolve(client);
    };
    client.onClose = (error) => {
      clearTimeout(timer);
      reject(error);
    };
  });
}

/** One connection; made by `connect`. `onClose(error)` may be set: the connection has ended, for whatever reason. */
export class NpcClient {
  constructor(socket, requestTimeoutMs) {
    this.requestTimeoutMs = requestTimeoutMs;
    this.onClose = () => {};
    /** An answer that belongs to no request: an error about a message whose id could not be read. */
    this.onStray = () => {};
    this.welcome = null;
    this.error = null;
    this.pending = new Map();
    this.lastId = 0;
    this.socket = socket;
    this.link = new ZmtpLink({
      write: (bytes) => socket.write(bytes),
      onReady: () => {},
      onMessage: (body) => this.receive(body),
    });
    socket.on('connect', () => this.link.start());
    socket.on('data', (bytes) => {
      try {
        this.link.feed(bytes);
      } catch (error) {
        this.fail(error.message);
      }
    });
    socket.on('error', (error) => this.fail(error.message));
    socket.on('close', () => this.fail('the daemon closed the connection; it may have been stopped'));
  }

  /** First of all. The answer's `daemon_id` tells a restarted daemon: its sessions are gone. */
  async hello(client = 'npc-client.mjs') {
    this.welcome = await this.request({ type: 'hello', protocol: PROTOCOL_VERSION, client });
    return this.welcome;
  }

  /** A conversation with one persona. `sessionId` takes an earlier one up again. */
  async openSession(persona, { sessionId = null, player = 'Player' } = {}) {
    return new Session(this, await this.request({ type: 'open_session', persona, session_id: sessionId, player }));
  }

  async listPersonas() {
    return (await this.request({ type: 'list_personas' })).personas;
  }

  /** Stop a turn; its own promise still ends, with finish reason `cancelled`. */
  cancel(turnId, keep = false) {
    return this.request({ type: 'cancel_turn', turn_id: turnId, keep });
  }

  ping() {
    return this.request({ type: 'ping' });
  }

  /**
   * Send any request of docs/protocol.md (without `id`); resolves with its last answer, `onPart` gets those before.
   * A turn has no time limit here (the daemon has one); all else rejects with `connection_lost` after a while.
   */
  async request(fields, onPart = () => {}) {
    if (this.error) throw this.error;
    const id = ++this.lastId;
    const bytes = encode({ ...fields, id });
    return new Promise((resolve, reject) => {
      const timer = fields.type === 'start_turn' ? undefined : setTimeout(() => {
        this.pending.delete(id);
        reject(connectionLost(`no answer to ${fields.type} within ${this.requestTimeoutMs} ms`));
      }, this.requestTimeoutMs);
      this.pending.set(id, { resolve, reject, onPart, timer });
      this.link.send(bytes);
    });
  }

  /** Bytes as they are, for tests. */
  sendRaw(bytes) {
    this.link.send(bytes);
  }

  receive(body) {
    const answer = decode(body);
    const waiting = this.pending.get(answer.reply_to);
    if (!waiting) return this.onStray(answer);
    if (!LAST.has(answer.type)) {
      try {
        return waiting.onPart(answer);
      } catch (error) {
        // A game's callback failed: its own request ends with that, the connection lives.
        this.pending.delete(answer.reply_to);
        return waiting.reject(error);
      }
    }
    this.pending.delete(answer.reply_to);
    clearTimeout(waiting.timer);
    if (answer.type === 'error') waiting.reject(new NpcError(answer));
    else waiting.resolve(answer);
  }

  /** Every waiting request is rejected; the connection is over. */
  fail(message) {
    if (this.error) return;
    this.error = connectionLost(message);
    this.socket.destroy();
    for (const { reject, timer } of this.pending.values()) {
      clearTimeout(timer);
      reject(this.error);
    }
    this.pending.clear();
    this.onClose(this.error);
  }

  close() {
    this.fail('the connection was closed by this client');
  }
}

/** One conversation. `greeting` is the character's first line. */
export class Session {
  constructor(client, opened) {
    this.client = client;
    this.id = opened.session_id;
    this.persona = opened.persona;
    this.name = opened.name;
    this.greeting = opened.greeting;
    this.resumed = opened.resumed;
    this.turnId = null;
  }

  /**
   * The player says `text`. `onDelta(text, delta)` gets each piece of the reply; resolves with `turn_finished`.
   * `options` are more fields of start_turn (`max_tokens`, `sampling`, `adapters`, …) and `onStarted(message)`.
   */
  say(text, onDelta = () => {}, { onStarted = () => {}, ...options } = {}) {
    const fields = { type: 'start_turn', session_id: this.id, turn_id: randomUUID(), text, ...options };
    this.turnId = fields.turn_id;
    return this.client.request(fields, (part) => {
      if (part.type === 'turn_delta') onDelta(part.text, part);
      else if (part.type === 'turn_started') onStarted(part);
    });
  }

  /** Stop the turn that was started last. */
  cancel(keep = false) {
    return this.client.cancel(this.turnId, keep);
  }

  close() {
    return this.client.request({ type: 'close_session', session_id: this.id });
  }
}
