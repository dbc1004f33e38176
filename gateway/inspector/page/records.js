// Record files: messages of octavo/kv/v1/record.proto, each behind its length. The stream that feeds the page is one.
import { BlockInfo, BlockState, Record } from "./messages.js";
import { FREE } from "./pool.js";
import { Writer } from "./wire.js";

const FORMAT_VERSION = 1;
const PIECE_BLOCKS = 512;

// Cuts bytes, as they come in pieces, into the bytes of single records.
export class Cutter {
  constructor() {
    this.rest = new Uint8Array(0);
  }

  *cut(chunk) {
    let bytes = chunk;
    if (this.rest.length) {
      bytes = new Uint8Array(this.rest.length + chunk.length);
      bytes.set(this.rest);
      bytes.set(chunk, this.rest.length);
    }
    let start = 0;
    for (;;) {
      const [length, body] = lengthAt(bytes, start);
      if (body === 0 || body + length > bytes.length) break;
      yield bytes.subarray(body, body + length);
      start = body + length;
    }
    this.rest = bytes.slice(start);
  }
}

// A record's length and where its body begins; 0 when the length is not whole yet.
function lengthAt(bytes, start) {
  let length = 0, weight = 1;
  for (let at = start; at < bytes.length; at++) {
    length += (bytes[at] & 127) * weight;
    weight *= 128;
    if (bytes[at] < 128) return [length, at + 1];
  }
  return [0, 0];
}

// The records of a whole file, as bytes.
export function* recordsOf(bytes) {
  const cutter = new Cutter();
  yield* cutter.cut(bytes);
  if (cutter.rest.length) throw new Error("the recording is cut off");
}

// A recording that begins with a moment and goes on with records that came behind it.
export function recording(start, later) {
  const to = new Writer();
  const header = { formatVersion: FORMAT_VERSION, managerId: start.look.summary.header.managerId,
    program: "octavo inspector page" };
  to.raw(Record.encode({ header }));
  to.raw(Record.encode({ looked: { atMs: start.at, response: start.look } }));
  for (const event of snapshotOf(start)) {
    to.raw(Record.encode({ watched: { atMs: start.at, response: event } }));
  }
  for (const bytes of later) to.raw(bytes);
  return to.taken();
}

// As the manager's own snapshot: blocks that are not free, sequences, tables, the end; all with one number.
function* snapshotOf({ pool, look, step, sequence }) {
  const told = (event) => ({ header: { ...look.summary.header, step }, sequence, ...event });
  let blocks = [];
  for (let block = 1; block <= pool.numBlocks; block++) {
    if (pool.kind[block] === FREE) continue;
    blocks.push(blockInfo(pool, block));
    if (blocks.length === PIECE_BLOCKS) {
      yield told({ snapshot: { blocks } });
      blocks = [];
    }
  }
  yield told({ snapshot: { blocks, sequences: [...pool.sequences.values()] } });
  for (const [seq, table] of pool.tables) yield told({ table: { seq, firstIndex: 0, blocks: table } });
  yield told({ snapshot: { last: true } });
}

const STATES = [BlockState.FREE, BlockState.CACHED, BlockState.REFERENCED, BlockState.REFERENCED, BlockState.FENCED];

function blockInfo(pool, block) {
  const digest = pool.digested[block] ? pool.digests.subarray(32 * block, 32 * (block + 1)) : null;
  return BlockInfo.encode({ block, state: STATES[pool.kind[block]], refCount: pool.refs[block], digest,
    fence: pool.fence[block] });
}
