// The last minutes: moments to start from, every few seconds, and every record between them. Any moment in between is
// made again by hearing the records behind the last moment before it.
import { Record } from "./messages.js";
import { recording } from "./records.js";

const MOMENT_MS = 10_000;
export const KEPT_MS = 10 * 60_000;
const MOST_BYTES = 96 * 1024 * 1024;
const BYTES_PER_BLOCK = 60;  // of a moment

export class History {
  constructor({ keptMs = KEPT_MS, mostBytes = MOST_BYTES } = {}) {
    this.keptMs = keptMs;
    this.mostBytes = mostBytes;
    this.stretches = [];  // { model, records: [{ at, bytes }], bytes }, oldest first
    this.marks = [];  // times at which something was heard
  }

  get first() {
    return this.stretches[0]?.model.at ?? 0;
  }

  get last() {
    const stretch = this.stretches.at(-1);
    return stretch?.records.at(-1)?.at ?? stretch?.model.at ?? 0;
  }

  // A record was heard, which made the model what it is. A moment is kept only where nothing is half told.
  add(bytes, model, heard) {
    const stretch = this.stretches.at(-1), at = model.at;
    stretch?.records.push({ at, bytes });
    if (stretch) stretch.bytes += bytes.length;
    if (heard === "events" || heard === "snapshot") this.marks.push(at);
    if (!model.pool || model.coming) return;
    if (!stretch || at - stretch.model.at >= MOMENT_MS) {
      const size = BYTES_PER_BLOCK * model.pool.numBlocks;
      this.stretches.push({ model: model.copy(), records: [], bytes: size });
      this.#forget(at);
    }
  }

  #forget(now) {
    const size = () => this.stretches.reduce((sum, stretch) => sum + stretch.bytes, 0);
    while (this.stretches.length > 1 && (this.stretches[1].model.at < now - this.keptMs || size() > this.mostBytes)) {
      this.stretches.shift();
    }
    const first = this.first;
    this.marks = this.marks.slice(this.marks.findIndex((mark) => mark >= first));
  }

  // The moment at a time, as it was behind everything heard until then.
  at(time) {
    let index = this.stretches.length - 1;
    while (index > 0 && this.stretches[index].model.at > time) index--;
    const { model, records } = this.stretches[index], moment = model.copy();
    for (const record of records) {
      if (record.at > time) break;
      moment.hear(Record.decode(record.bytes));
    }
    moment.pool?.takeMoments();
    return moment;
  }

  // The last time before, or the first after, at which something was heard; the ends where there is none.
  before(time) {
    return this.marks.findLast((mark) => mark < time) ?? this.first;
  }

  after(time) {
    return this.marks.find((mark) => mark > time) ?? this.last;
  }

  // Everything kept, as a record file; null while there is nothing.
  export() {
    if (!this.stretches.length) return null;
    const later = this.stretches.flatMap((stretch) => stretch.records.map((record) => record.bytes));
    return recording(this.stretches[0].model, later);
  }
}
