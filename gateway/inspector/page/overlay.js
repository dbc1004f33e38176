// What is drawn over the map: a picked request's table with its arrows, the cursor, and copies and swaps as they happen.
//
//   logical   [0][1][2][3][4]        the table of the picked request, in its order
//               \  \   \ ...         an arrow per entry; thicker where others name the block too
//   physical  . . . . . . . . . .    the map
import { SHARED } from "./pool.js";

export const STRIP = 88;  // CSS pixels above the map
const ENTRY = { most: 26, least: 7 }, BOX_TOP = 18;
const MOTION_MS = 700, STILL_MS = 1_500, MOST_MOTIONS = 200;

export class Overlay {
  constructor(canvas, map, palette) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.map = map;
    this.palette = palette;
    this.pool = null;
    this.picked = null;
    this.cursor = -1;
    this.entry = -1;  // the logical entry that is pointed at
    this.first = 0;  // the first entry shown, where not all have room
    this.motions = [];
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
  }

  layout() {
    this.canvas.width = Math.round(this.canvas.clientWidth * devicePixelRatio);
    this.canvas.height = Math.round(this.canvas.clientHeight * devicePixelRatio);
  }

  get table() {
    return (this.picked !== null && this.pool?.tables.get(this.picked)) || [];
  }

  // Whether there is something to draw again in the next frame.
  get moving() {
    return this.motions.length > 0;
  }

  // A block's contents go elsewhere; to the host tier, or from it, where one end is null.
  move(source, target, now) {
    if (this.motions.length < MOST_MOTIONS) this.motions.push({ source, target, began: now });
  }

  // The entry of the strip at a point; -1 for none.
  entryAt(x, y) {
    const { size, shown } = this.#strip();
    const index = Math.floor(x / size);
    return y >= BOX_TOP && y < BOX_TOP + size && index >= 0 && index < shown ? this.first + index : -1;
  }

  scroll(entries) {
    const { shown } = this.#strip();
    this.first = Math.max(0, Math.min(this.first + entries, this.table.length - shown));
  }

  #strip() {
    const width = this.canvas.clientWidth, count = this.table.length;
    const size = Math.max(ENTRY.least, Math.min(ENTRY.most, Math.floor(width / Math.max(1, count))));
    return { size, shown: Math.min(count, Math.floor(width / size)) };
  }

  draw(now) {
    const { context, canvas } = this;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    if (!this.pool) return;
    if (this.picked !== null) this.#drawTable();
    else this.#drawTitle("click a block, or press n, to see the table of a request");
    if (this.cursor >= 0) this.#frame(this.cursor, this.palette.ink, 2);
    this.#drawMotions(now);
  }

  #place(block) {
    const { x, y, size } = this.map.place(block);
    return { x, y: y + STRIP, size };
  }

  #frame(block, colour, width) {
    const { x, y, size } = this.#place(block), room = Math.max(size, 6);
    this.context.strokeStyle = colour;
    this.context.lineWidth = width;
    this.context.strokeRect(x - room / 2, y - room / 2, room, room);
  }

  #drawTable() {
    const { context, palette, table, pool } = this, { size, shown } = this.#strip();
    if (!table.length) return this.#drawTitle(`request ${this.picked} has no block in the pool`);
    this.first = Math.max(0, Math.min(this.first, table.length - shown));
    const prefix = pool.sharedPrefix(this.picked), part = shown < table.length;
    const range = part ? `, entries ${this.first} to ${this.first + shown - 1} of ${table.length}` : "";
    const shared = prefix ? `shared prefix: ${prefix} of ${table.length} blocks` : "nothing shared at its start";
    this.#drawTitle(`request ${this.picked}${range}; ${shared}`);
    // Many arrows at full strength would hide the map.
    const alpha = Math.max(0.16, Math.min(0.9, 14 / shown));
    for (let place = 0; place < shown; place++) this.#drawEntry(place, size, alpha);
    if (this.entry >= 0) this.#drawEntry(this.entry - this.first, size, 1);
    const end = Math.min(prefix - this.first, shown);
    if (end > 0) {
      context.fillStyle = palette.tones[SHARED];
      context.fillRect(0, BOX_TOP - 4, end * size - 2, 3);
    }
  }

  #drawTitle(text) {
    const { context } = this;
    context.fillStyle = this.palette.faint;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillText(text, 0, 12);
  }

  #drawEntry(place, size, alpha) {
    const { context, palette, pool } = this, index = this.first + place, block = this.table[index];
    const x = place * size;
    context.globalAlpha = 1;
    context.fillStyle = block ? palette.tones[pool.kind[block]] : palette.tones[5];
    context.fillRect(x, BOX_TOP, size - 2, size - 2);
    if (size >= 16) {
      context.fillStyle = palette.ground;
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(block ? String(index) : "–", x + size / 2 - 1, BOX_TOP + size / 2);
    }
    if (!block) return;
    const to = this.#place(block), shared = pool.kind[block] === SHARED;
    context.globalAlpha = alpha;
    const ends = [x + size / 2 - 1, BOX_TOP + size - 1, to.x, to.y - to.size / 2 + 1];
    if (alpha > 0.5) {  // light under dark, and dark under light: seen on cells of any kind
      context.strokeStyle = context.fillStyle = palette.ground;
      context.lineWidth = shared ? 4.5 : 3;
      arrow(context, ...ends);
    }
    context.strokeStyle = context.fillStyle = shared ? palette.tones[SHARED] : palette.ink;
    context.lineWidth = shared ? 2 : 1.2;
    arrow(context, ...ends);
    if (alpha === 1 || to.size >= 5) this.#frame(block, palette.accent, alpha === 1 ? 2.5 : 1.2);
    context.globalAlpha = 1;
  }

  #drawMotions(now) {
    const { context, palette } = this, lasts = this.still.matches ? STILL_MS : MOTION_MS;
    this.motions = this.motions.filter(({ began }) => now - began < lasts);
    for (const { source, target, began } of this.motions) {
      const from = this.#end(source), to = this.#end(target);
      const swap = source === null || target === null;
      context.strokeStyle = context.fillStyle = swap ? palette.swapped : palette.accent;
      context.globalAlpha = this.still.matches ? 0.9 : 1 - (now - began) / lasts / 2;
      context.lineWidth = 2;
      context.setLineDash(swap ? [5, 4] : []);
      arrow(context, from.x, from.y, to.x, to.y);
      context.setLineDash([]);
      if (!this.still.matches) this.#drawCarried(from, to, (now - began) / lasts);
      context.globalAlpha = 1;
    }
  }

  #drawCarried(from, to, done) {
    const eased = done * done * (3 - 2 * done), size = 9;
    const [x, y] = onCurve(from.x, from.y, to.x, to.y, eased);
    this.context.fillRect(x - size / 2, y - size / 2, size, size);
  }

  // Where a motion begins or ends: a block, or the host tier below the map.
  #end(block) {
    if (block !== null) return this.#place(block);
    return { x: this.canvas.clientWidth / 2, y: this.canvas.clientHeight - 2, size: 0 };
  }
}

function bend(x, y, toX, toY) {
  const middle = (y + toY) / 2;
  return Math.abs(toY - y) > 30 ? [x, middle, toX, middle] : [x, y - 30, toX, toY - 30];
}

function arrow(context, x, y, toX, toY) {
  const [aX, aY, bX, bY] = bend(x, y, toX, toY);
  context.beginPath();
  context.moveTo(x, y);
  context.bezierCurveTo(aX, aY, bX, bY, toX, toY);
  context.stroke();
  const angle = Math.atan2(toY - bY, toX - bX), size = 4 + context.lineWidth;
  context.beginPath();
  context.moveTo(toX, toY);
  context.lineTo(toX - size * Math.cos(angle - 0.45), toY - size * Math.sin(angle - 0.45));
  context.lineTo(toX - size * Math.cos(angle + 0.45), toY - size * Math.sin(angle + 0.45));
  context.fill();
}

function onCurve(x, y, toX, toY, t) {
  const [aX, aY, bX, bY] = bend(x, y, toX, toY), u = 1 - t;
  const at = (p, a, b, q) => u * u * u * p + 3 * u * u * t * a + 3 * u * t * t * b + t * t * t * q;
  return [at(x, aX, bX, toX), at(y, aY, bY, toY)];
}
