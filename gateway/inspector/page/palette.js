// How what a block is doing looks: a colour, a pattern where there is room for one, and a word.
import { CACHED, FENCED, FREE, NULL, REFERENCED, SHARED } from "./pool.js";

// Tones: kinds, and sharing in three steps.
const SHARED_3 = 6, SHARED_8 = 7;
const VARIABLES = ["--free", "--cached", "--referenced", "--shared-2", "--fenced", "--null", "--shared-3", "--shared-8"];
export const NAMES = ["free", "cached", "referenced", "shared", "fenced", "null"];
export const LEGEND = [FREE, CACHED, REFERENCED, SHARED, FENCED, NULL];

export function toneOf(kind, refs) {
  if (kind !== SHARED || refs < 3) return kind;
  return refs < 8 ? SHARED_3 : SHARED_8;
}

export class Palette {
  constructor() {
    this.read();
  }

  // The colours of the theme as it is now.
  read() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.tones = VARIABLES.map(colour);
    for (const name of ["ground", "ink", "faint", "line", "accent", "swapped"]) this[name] = colour(`--${name}`);
    this.pixels = Uint32Array.from(this.tones, pixelOf);
    this.groundPixel = pixelOf(this.ground);
    this.version = (this.version ?? 0) + 1;
  }
}

// A colour as the four bytes of an ImageData, read as one little-endian number.
function pixelOf(colour) {
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return new Uint32Array(context.getImageData(0, 0, 1, 1).data.buffer)[0];
}

// One block, `size` pixels wide with its gap. The pattern alone tells the kind:
//   free: an outline   cached: stripes   referenced: solid   shared: solid, with its count   fenced: a cross   null: a ring
export function drawCell(context, palette, x, y, size, kind, refs) {
  const gap = size >= 6 ? Math.max(1, Math.round(size / 12)) : 0, inner = size - gap;
  const colour = palette.tones[toneOf(kind, refs)];
  context.fillStyle = palette.ground;
  context.fillRect(x, y, size, size);
  context.fillStyle = kind === CACHED || kind === FENCED || kind === NULL ? palette.tones[FREE] : colour;
  context.fillRect(x, y, inner, inner);
  if (size < 8) {
    context.fillStyle = colour;
    context.fillRect(x, y, inner, inner);
    return;
  }
  context.strokeStyle = colour;
  context.lineWidth = Math.max(1, size / 9);
  if (kind === FREE) {
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
  } else if (kind === CACHED) stripes(context, x, y, inner, palette.tones[CACHED]);
  else if (kind === FENCED) lines(context, [[x, y, x + inner, y + inner], [x + inner, y, x, y + inner]]);
  else if (kind === NULL) ring(context, x + inner / 2, y + inner / 2, inner / 3);
  else if (kind === SHARED) count(context, palette, x, y, inner, refs);
}

function stripes(context, x, y, size, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, size, size);
  context.clip();
  context.fillStyle = colour;
  context.globalAlpha = 0.45;
  context.fillRect(x, y, size, size);
  context.globalAlpha = 1;
  context.lineWidth = Math.max(1.5, size / 6);
  const apart = size / 2;
  lines(context, [-1, 0, 1, 2].map((index) => [x + index * apart - apart, y + size, x + index * apart + apart, y]));
  context.restore();
}

function lines(context, segments) {
  context.beginPath();
  for (const [x, y, toX, toY] of segments) {
    context.moveTo(x, y);
    context.lineTo(toX, toY);
  }
  context.stroke();
}

function ring(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
}

function count(context, palette, x, y, size, refs) {
  context.fillStyle = palette.ground;
  if (size < 12) {
    context.fillRect(x + size / 3, y + size / 3, size / 3, size / 3);
    return;
  }
  context.font = `600 ${Math.round(size * 0.62)}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(refs > 9 ? "+" : String(refs), x + size / 2, y + size / 2 + size * 0.05);
}

