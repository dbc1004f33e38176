// What is known at a moment: the pool, and what its manager last said of it. Pure: a record in, state changed.
import { Pool } from "./pool.js";
import { usage } from "./usage.js";

const REMEMBERED_PREEMPTIONS = 64;

export class Model {
  constructor() {
    this.pool = null;  // null until a snapshot is complete
    this.look = null;  // the last InspectPoolResponse
    this.step = 0;
    this.sequence = 0;  // the number of the last event
    this.at = 0;
    this.preemptions = [];  // { step, preempted }, newest last
    this.dropped = "";
    this.renewed = 0;  // snapshots so far: whoever draws starts anew
    this.coming = null;
  }

  copy() {
    const copy = Object.assign(new Model(), this);
    copy.pool = this.pool?.copy() ?? null;
    copy.preemptions = this.preemptions.slice();
    copy.coming = null;
    return copy;
  }

  // One decoded Record. Returns what it was: "look", "events", "snapshot" when one ended, or "" for a part of one.
  hear(record) {
    if (record.looked) return this.#see(record.looked);
    if (!record.watched) return "";
    const { atMs, response } = record.watched;
    this.at = atMs;
    let heard = "";
    for (const event of response.batch ? response.batch.events : [response]) heard = this.#hear(event, atMs) || heard;
    return heard;
  }

  #see({ atMs, response }) {
    this.at = Math.max(this.at, atMs);
    this.look = response;
    if (!this.preemptions.length) this.preemptions = response.recentPreemptions.slice();
    // No event tells how far a sequence has come since it was admitted; a look does.
    for (const summary of response.sequences) {
      if (this.pool?.sequences.get(summary.seq)?.state === summary.state) this.pool.sequences.set(summary.seq, summary);
    }
    return "look";
  }

  #hear(event, at) {
    this.step = event.header.step;
    this.sequence = event.sequence;
    if (event.poolDropped) {
      this.dropped = event.poolDropped.reason;
      return "events";
    }
    if (event.snapshot || this.coming) return this.#takeSnapshot(event);
    if (!this.pool) return "";
    this.pool.hear(event, at);
    const preempted = event.sequenceEvent?.preempted;
    if (preempted) {
      this.preemptions.push({ step: event.header.step, preempted });
      this.preemptions.splice(0, this.preemptions.length - REMEMBERED_PREEMPTIONS);
    }
    return "events";
  }

  #takeSnapshot({ snapshot, table }) {
    this.coming ??= new Pool(this.look.summary.spec.numBlocks);
    if (table) this.coming.setTable(table, 0);
    if (!snapshot) return "";
    this.coming.readBlocks(snapshot.blocks, 0);
    for (const summary of snapshot.sequences) this.coming.sequences.set(summary.seq, summary);
    if (!snapshot.last) return "";
    this.pool = this.coming;
    this.coming = null;
    this.dropped = "";
    this.renewed++;
    return "snapshot";
  }

  // What the timelines show of this moment; null before the first snapshot.
  sample() {
    if (!this.pool || !this.look) return null;
    const { summary, sequences } = this.look;
    const { totals, spec, stats } = summary;
    return {
      at: this.at,
      step: summary.header.step,
      counts: Array.from(this.pool.counts),
      host: stats.hostBlocks - stats.hostFreeBlocks,
      running: stats.runningSequences,
      hitTokens: totals.hitTokens,
      lookupTokens: totals.lookupTokens,
      recompute: totals.recomputePreemptions,
      swap: totals.swapPreemptions,
      ...usage(this.pool, sequences, spec.blockSize),
    };
  }
}
