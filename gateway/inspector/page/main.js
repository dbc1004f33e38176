// The inspector: a stream heard into a model, a history of it, and what is drawn of either.
import { Charts } from "./charts.js";
import { Controls, restoreTheme } from "./controls.js";
import { History } from "./history.js";
import { BlockMap } from "./map.js";
import { Record } from "./messages.js";
import { Model } from "./model.js";
import { Overlay } from "./overlay.js";
import { Palette } from "./palette.js";
import { Panels } from "./panels.js";
import { recordsOf } from "./records.js";
import { Refused, Stream, ask } from "./stream.js";
import { blockLine } from "./words.js";

const PANELS_MS = 250;
const STALE_MS = 4_000;  // a glance comes every second
const REMEMBERED_FRAMES = 2_000;

const byId = (id) => document.getElementById(id);

class Inspector {
  constructor() {
    this.palette = new Palette();
    this.map = new BlockMap(byId("map"), this.palette);
    this.overlay = new Overlay(byId("overlay"), this.map, this.palette);
    this.panels = new Panels(this.palette, (seq) => this.pick(seq));
    this.charts = new Charts(byId("timelines"), this.palette, (ms) => this.seek(ms));
    this.model = new Model();  // live
    this.shown = this.model;  // what is drawn: the live one, or a moment of the past
    this.history = new History();
    this.stream = null;
    this.picked = null;
    this.pointed = -1;
    this.tokensAllowed = false;
    this.trouble = "connecting";
    this.heardAt = 0;
    this.frames = [];  // { ms, blocks }: what each frame cost, hearing included
    this.hearingMs = 0;
    this.panelsAt = 0;
    this.panelsStale = true;
    this.controls = new Controls(this);
    new ResizeObserver(() => this.layout()).observe(byId("canvases"));
    requestAnimationFrame((now) => this.#frame(now));
    this.list();
  }

  get live() {
    return this.shown === this.model;
  }

  // --- where the records come from

  get key() {
    return sessionStorage.getItem("octavo.key") ?? "";
  }

  // The pools there are; the one named in the address, or the first one, is looked at.
  async list() {
    try {
      const { pools, tokens } = await (await ask("pools", this.key)).json();
      this.tokensAllowed = tokens;
      this.places = pools;
      this.controls.showPools(pools);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.#setTrouble(error.message);
      if (error.needsKey) this.controls.askForKey(error.message);
      else setTimeout(() => this.list(), STALE_MS);
    }
  }

  watch({ manager, pool }) {
    this.stream?.close();
    this.#forget();
    this.place = { manager, pool };
    this.stream = new Stream(`watch?${new URLSearchParams(this.place)}`, this.key, {
      hear: (bytes) => this.hear(bytes),
      opened: () => this.#setTrouble("reading the pool"),
      trouble: (message) => this.#setTrouble(message),
      refused: (error) => this.controls.askForKey(error.message),
    });
  }

  // Show a recording instead of a stream.
  open(bytes) {
    this.stream?.close();
    this.stream = null;
    this.place = null;
    this.#forget();
    this.history.keptMs = Infinity;
    for (const record of recordsOf(bytes)) this.hear(record);
    if (!this.model.pool) throw new Error("this is no recording of the inspector's");
    this.seek(this.history.first);
  }

  hear(bytes) {
    const began = performance.now();
    const heard = this.model.hear(Record.decode(bytes));
    this.history.add(bytes, this.model, heard);
    this.heardAt = began;
    this.trouble = this.model.dropped ? `the pool is gone: ${this.model.dropped}` : "";
    if (heard === "snapshot" && this.live) this.#show(this.model);
    // The first one is of the snapshot: what happens before the next look shows against it.
    if (heard === "look" || heard === "snapshot") {
      const sample = this.model.sample();
      if (sample) this.charts.add(sample, this.history.keptMs);
    }
    this.panelsStale = true;
    this.hearingMs += performance.now() - began;
  }

  #forget() {
    this.model = new Model();
    this.history = new History();
    this.charts.clear();
    this.pick(null);
    this.pointed = this.overlay.cursor = -1;
    this.#show(this.model);
    this.#setTrouble("connecting");
  }

  #setTrouble(message) {
    this.trouble = message;
    this.panelsStale = true;
  }

  // --- which moment is drawn

  #show(model) {
    this.shown = model;
    this.overlay.pool = model.pool;
    if (model.pool) {
      model.pool.dirty.take();
      this.map.setPool(model.pool);
    }
    this.panelsStale = true;
    this.controls.showMoment();
  }

  pause() {
    if (this.live && this.model.pool) this.#show(this.model.copy());
    else this.goLive();
  }

  goLive() {
    this.#show(this.model);
  }

  seek(ms) {
    if (!this.history.stretches.length) return;
    const at = Math.max(this.history.first, Math.min(ms, this.history.last));
    const moment = this.history.at(at);
    moment.at = at;
    this.#show(moment);
  }

  step(forward) {
    this.seek(forward ? this.history.after(this.shown.at) : this.history.before(this.shown.at));
  }

  // --- what is looked at

  pick(seq) {
    this.picked = this.overlay.picked = seq;
    this.overlay.first = 0;
    this.overlay.entry = -1;
    this.panelsStale = true;
    this.overlayStale = true;
  }

  pickNext(by) {
    const seqs = [...(this.shown.pool?.sequences.keys() ?? [])].sort((a, b) => a - b);
    if (!seqs.length) return;
    const index = seqs.indexOf(this.picked);
    this.pick(seqs[index < 0 ? (by > 0 ? 0 : seqs.length - 1) : (index + by + seqs.length) % seqs.length]);
  }

  point(block) {
    if (block === this.pointed) return;
    this.pointed = block;
    this.panels.showBlock(this.shown, block, "");
    this.#askForTokens(block);
  }

  // The cursor of the keyboard.
  moveCursor(block) {
    const pool = this.shown.pool;
    if (!pool) return;
    this.overlay.cursor = Math.max(0, Math.min(block, pool.numBlocks));
    this.map.reveal(this.overlay.cursor);
    this.overlayStale = true;
    this.point(this.overlay.cursor);
    byId("said").textContent = blockLine(pool, this.overlay.cursor);
  }

  pickAt(block) {
    if (block < 0 || !this.shown.pool) return;
    const owners = this.shown.pool.owners(block);
    if (owners.length) this.pick(owners[(owners.indexOf(this.picked) + 1) % owners.length]);
  }

  async #askForTokens(block) {
    const digest = block > 0 && this.shown.pool ? this.shown.pool.digest(block) : "";
    if (!this.tokensAllowed || !this.place || !digest) return;
    const query = new URLSearchParams({ ...this.place, digest });
    let words;
    try {
      const { ids, text } = await (await ask(`tokens?${query}`, this.key)).json();
      words = ids ? text ?? ids.join(" ") : "not known: filled before anybody looked";
    } catch (error) {
      words = error.message;
    }
    if (this.pointed === block) this.panels.showBlock(this.shown, block, words);
  }

  export() {
    return this.history.export();
  }

  // --- drawing

  layout() {
    this.map.layout();
    this.overlay.layout();
    this.charts.layout();
    this.panels.hostStale = true;
    this.overlayStale = true;
  }

  recolour() {
    this.palette.read();
    this.map.recolour();
    this.panels.recolour();
    this.overlayStale = this.panelsStale = true;
    this.charts.stale = true;
  }

  #frame(now) {
    requestAnimationFrame((next) => this.#frame(next));
    const began = performance.now(), { pool } = this.shown;
    const changed = pool ? pool.dirty.take() : [];
    const moved = this.map.whole;
    if (changed.length || moved) this.map.draw(changed);
    this.#noteMoments(pool, now);
    if (changed.length || moved || this.overlay.moving || this.overlayStale) this.overlay.draw(now);
    this.overlayStale = this.overlay.moving;
    // Lists can wait for a frame in which the map has nothing to draw, though not for ever.
    const due = now - this.panelsAt, busy = changed.length > 0 && due < 2 * PANELS_MS;
    if (this.panelsStale && due >= PANELS_MS && !busy) this.#showPanels(now);
    else if (now - this.panelsAt >= STALE_MS) this.panelsStale = true;
    if (changed.length || this.hearingMs) this.#noteFrame(performance.now() - began + this.hearingMs, changed.length);
    this.hearingMs = 0;
  }

  #noteMoments(pool, now) {
    if (!this.live) this.model.pool?.takeMoments();  // nobody sees them
    const moments = pool ? pool.takeMoments() : [];
    if (!moments.length) return;
    this.panels.log(moments);
    for (const { what, source, target, preempted, blocks, seq } of moments) {
      if (what === "copy") this.overlay.move(source, target, now);
      else if (what === "preempted" && preempted.mode === 2) for (const block of blocks) this.overlay.move(block, null, now);
      else if (what === "resumed") for (const block of pool.tables.get(seq) ?? []) this.overlay.move(null, block, now);
    }
  }

  #noteFrame(ms, blocks) {
    this.frames.push({ ms, blocks });
    if (this.frames.length > REMEMBERED_FRAMES) this.frames.shift();
  }

  #showPanels(now) {
    this.panelsAt = now;
    this.panelsStale = false;
    const quiet = this.stream && !this.trouble && now - this.heardAt > STALE_MS;
    this.controls.showStatus(quiet ? "nothing is heard any more" : this.trouble);
    this.controls.showMoment();
    if (!this.shown.pool || !this.shown.look) return;
    this.panels.show(this.shown, this.picked, this.shown.at);
    if (this.pointed >= 0 && !this.tokensAllowed) this.panels.showBlock(this.shown, this.pointed, "");
    this.charts.draw(this.live ? null : this.shown.at);
  }
}

restoreTheme();
export const inspector = new Inspector();
