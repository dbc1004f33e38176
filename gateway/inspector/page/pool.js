// A pool as its Watch stream tells it. Pure: a message in, arrays changed, and a note of what there is to draw.
import { Reader } from "./wire.js";
import { BlockState, PreemptionMode, SequenceEventType, SequenceState } from "./messages.js";

// What a block is doing, as it is drawn. A referenced block that several table entries name is a kind of its own:
// sharing is the point of paging.
export const FREE = 0, CACHED = 1, REFERENCED = 2, SHARED = 3, FENCED = 4, NULL = 5;
export const KINDS = 6;
const KIND_OF = { [BlockState.NULL]: NULL, [BlockState.FREE]: FREE, [BlockState.CACHED]: CACHED,
  [BlockState.REFERENCED]: REFERENCED, [BlockState.FENCED]: FENCED };

const DIGEST_BYTES = 32;
const GONE = new Set([SequenceEventType.RELEASED, SequenceEventType.REJECTED]);

export class Pool {
  constructor(numBlocks) {
    this.numBlocks = numBlocks;
    this.kind = new Uint8Array(numBlocks + 1);
    this.refs = new Uint32Array(numBlocks + 1);
    this.fence = new Float64Array(numBlocks + 1);
    this.since = new Float64Array(numBlocks + 1);  // when it became what it is, in ms; 0 for before anybody looked
    this.digests = new Uint8Array(DIGEST_BYTES * (numBlocks + 1));
    this.digested = new Uint8Array(numBlocks + 1);
    this.counts = new Uint32Array(KINDS);
    this.tables = new Map();
    this.sequences = new Map();
    this.parked = new Map();  // device blocks that a parked sequence was swapped out of, where they were heard
    this.dirty = new Dirty(numBlocks + 1);
    this.moments = [];  // copies, swaps, forks, preemptions, since they were last taken
    this.counts[FREE] = numBlocks + 1;
    this.#become(0, NULL, 0);
  }

  copy() {
    const copy = new Pool(this.numBlocks);
    for (const name of ["kind", "refs", "fence", "since", "digests", "digested", "counts"]) copy[name].set(this[name]);
    copy.tables = new Map([...this.tables].map(([seq, table]) => [seq, table.slice()]));
    copy.sequences = new Map(this.sequences);
    copy.parked = new Map(this.parked);
    return copy;
  }

  digest(block) {
    if (!this.digested[block]) return "";
    const bytes = this.digests.subarray(DIGEST_BYTES * block, DIGEST_BYTES * (block + 1));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  // Whoever's table names a block. The tables know, so nobody keeps it per block.
  owners(block) {
    return [...this.tables].filter(([, table]) => table.includes(block)).map(([seq]) => seq).sort((a, b) => a - b);
  }

  // How many entries at the start of a table others name as well.
  sharedPrefix(seq) {
    const table = this.tables.get(seq) ?? [];
    const own = table.findIndex((block) => block !== 0 && this.kind[block] !== SHARED);
    return own < 0 ? table.length : own;
  }

  // One event that is not a snapshot's. `at` is when it was heard, in ms.
  hear(event, at) {
    if (event.blocks) this.readBlocks(event.blocks.blocks, at);
    else if (event.table) this.setTable(event.table, event.header.step);
    else if (event.sequenceEvent) this.#setSequence(event.sequenceEvent, event.header.step);
  }

  readBlocks(infos, at) {
    for (const bytes of infos) this.#readBlock(bytes, at);
  }

  #readBlock(bytes, at) {
    const from = new Reader(bytes);
    let block = 0, state = 0, refs = 0, fence = 0, digest = null;
    while (!from.done) {
      const tag = from.varint();
      if (tag === 8) block = from.varint();
      else if (tag === 16) state = from.varint();
      else if (tag === 24) refs = from.varint();
      else if (tag === 34) digest = from.raw();
      else if (tag === 40) fence = from.varint();
      else from.skip(tag & 7);
    }
    this.refs[block] = refs;
    this.fence[block] = fence;
    this.digested[block] = digest === null ? 0 : 1;
    if (digest !== null) this.digests.set(digest, DIGEST_BYTES * block);
    this.#become(block, refs > 1 ? SHARED : KIND_OF[state], at);
    this.dirty.add(block);
  }

  #become(block, kind, at) {
    if (this.kind[block] === kind) return;
    this.counts[this.kind[block]]--;
    this.counts[kind]++;
    this.kind[block] = kind;
    this.since[block] = at;
  }

  // A table from its first changed entry on. An entry that is replaced by another block is a copy on write.
  setTable({ seq, firstIndex, blocks }, step) {
    const table = this.tables.get(seq) ?? [];
    for (let index = firstIndex; index < table.length && step; index++) {
      const source = table[index], target = blocks[index - firstIndex];
      if (source && target && source !== target) this.moments.push({ what: "copy", seq, step, source, target });
    }
    table.length = Math.min(table.length, firstIndex);
    for (const block of blocks) table.push(block);
    if (table.length) this.tables.set(seq, table);
    else this.tables.delete(seq);
  }

  // Events about a sequence come before those about its table: the table is still what it was.
  #setSequence({ summary, type, cachedTokens, preempted }, step) {
    const { seq } = summary, table = (this.tables.get(seq) ?? []).filter(Boolean);
    if (type === SequenceEventType.PREEMPTED) {
      this.moments.push({ what: "preempted", seq, step, preempted, blocks: table });
    } else if (type === SequenceEventType.RESUMED) {
      this.moments.push({ what: "resumed", seq, step, blocks: this.parked.get(seq) ?? [] });
    } else if (type === SequenceEventType.FORKED) {
      this.moments.push({ what: "forked", seq, step });
    } else if (type === SequenceEventType.ADMITTED || type === SequenceEventType.READMITTED) {
      this.moments.push({ what: "admitted", seq, step, cachedTokens, tokens: summary.committedTokens });
    } else if (type === SequenceEventType.RELEASED) {
      this.moments.push({ what: "released", seq, step });
    }
    this.parked.delete(seq);
    if (GONE.has(type) || preempted?.mode === PreemptionMode.RECOMPUTE) {
      this.sequences.delete(seq);
      return;
    }
    this.sequences.set(seq, summary);
    if (summary.state === SequenceState.SWAPPED) this.parked.set(seq, table);
  }

  takeMoments() {
    const taken = this.moments;
    this.moments = [];
    return taken;
  }
}

// Blocks that changed since they were last drawn; each once.
class Dirty {
  constructor(size) {
    this.marked = new Uint8Array(size);
    this.blocks = [];
  }

  add(block) {
    if (this.marked[block]) return;
    this.marked[block] = 1;
    this.blocks.push(block);
  }

  take() {
    const taken = this.blocks;
    for (const block of taken) this.marked[block] = 0;
    this.blocks = [];
    return taken;
  }
}
