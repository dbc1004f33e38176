// The block map: a pixel per block in an image of its own, of which only changed pixels are written, shown through a
// camera. Where cells are large enough they are drawn one by one, with their patterns.
import { drawCell, toneOf } from "./palette.js";

const LARGEST_CELL = 60, LARGEST_ZOOMED = 72, SMALLEST_PATTERN = 9, SMALLEST_GRID = 4;  // CSS pixels
const COLUMN_STEP = 8;  // round numbers of blocks to a row, where rows are long

export class BlockMap {
  constructor(canvas, palette) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.palette = palette;
    this.cells = document.createElement("canvas");  // a pixel per block
    this.pool = null;
    this.columns = this.rows = 1;
    this.fit = this.scale = 1;  // device pixels per cell
    this.left = this.top = 0;  // the camera's corner, in cells
    this.whole = true;  // everything has to be drawn, not just what changed
    this.sprites = new Map();
  }

  setPool(pool) {
    const same = this.pool?.numBlocks === pool.numBlocks;
    this.pool = pool;
    if (same) this.#paintAll();
    else this.layout();
    this.whole = true;
  }

  // The canvas has another size, or the pool has.
  layout() {
    const { canvas } = this, ratio = devicePixelRatio;
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    this.whole = true;
    this.sprites.clear();
    if (!this.pool) return;
    const count = this.pool.numBlocks + 1;
    [this.columns, this.fit] = fitting(count, canvas.width, canvas.height, Math.round(LARGEST_CELL * ratio));
    this.rows = Math.ceil(count / this.columns);
    this.scale = this.fit;
    this.left = this.top = 0;
    this.cells.width = this.columns;
    this.cells.height = this.rows;
    this.cellContext = this.cells.getContext("2d", { alpha: false });
    this.image = this.cellContext.createImageData(this.columns, this.rows);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.#paintAll();
  }

  recolour() {
    this.sprites.clear();
    if (this.pool) this.#paintAll();
    this.whole = true;
  }

  #paintAll() {
    const { kind, refs } = this.pool, { pixels } = this.palette;
    this.pixels.fill(this.palette.groundPixel);
    for (let block = 0; block < kind.length; block++) this.pixels[block] = pixels[toneOf(kind[block], refs[block])];
    this.cellContext.putImageData(this.image, 0, 0);
  }

  // Draw what changed; everything when the camera moved.
  draw(changed) {
    if (!this.pool) return;
    this.#paint(changed);
    if (this.patterned) this.#drawCells(this.whole ? this.#visible() : changed);
    else this.#drawImage();
    this.whole = false;
  }

  get patterned() {
    return this.scale >= SMALLEST_PATTERN * devicePixelRatio;
  }

  #paint(changed) {
    if (!changed.length) return;
    const { kind, refs } = this.pool, { pixels } = this.palette;
    let first = Infinity, last = 0;
    for (const block of changed) {
      this.pixels[block] = pixels[toneOf(kind[block], refs[block])];
      first = Math.min(first, block);
      last = Math.max(last, block);
    }
    const top = Math.floor(first / this.columns), rows = Math.floor(last / this.columns) - top + 1;
    this.cellContext.putImageData(this.image, 0, 0, 0, top, this.columns, rows);
  }

  #drawImage() {
    const { canvas, context, scale } = this, { width, height } = canvas;
    context.fillStyle = this.palette.ground;
    context.fillRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.cells, -this.left * scale, -this.top * scale, this.columns * scale, this.rows * scale);
    if (scale < SMALLEST_GRID * devicePixelRatio) return;
    context.fillStyle = this.palette.ground;
    const right = Math.min(width, (this.columns - this.left) * scale);
    const bottom = Math.min(height, (this.rows - this.top) * scale);
    for (let x = (Math.floor(this.left) + 1 - this.left) * scale; x <= right; x += scale) {
      context.fillRect(Math.round(x) - 1, 0, 1, bottom);
    }
    for (let y = (Math.floor(this.top) + 1 - this.top) * scale; y <= bottom; y += scale) {
      context.fillRect(0, Math.round(y) - 1, right, 1);
    }
  }

  #drawCells(blocks) {
    const { canvas, context, columns, scale, pool } = this;
    if (this.whole) {
      context.fillStyle = this.palette.ground;
      context.fillRect(0, 0, canvas.width, canvas.height);
    }
    const offsetX = Math.round(this.left * scale), offsetY = Math.round(this.top * scale);
    for (const block of blocks) {
      const x = (block % columns) * scale - offsetX, y = Math.floor(block / columns) * scale - offsetY;
      if (x <= -scale || y <= -scale || x >= canvas.width || y >= canvas.height) continue;
      context.drawImage(this.#sprite(pool.kind[block], pool.refs[block]), x, y);
    }
  }

  *#visible() {
    const { canvas, columns, scale, pool } = this;
    const last = Math.min(this.rows - 1, Math.floor(this.top + canvas.height / scale));
    const right = Math.min(columns - 1, Math.floor(this.left + canvas.width / scale));
    for (let row = Math.max(0, Math.floor(this.top)); row <= last; row++) {
      for (let column = Math.max(0, Math.floor(this.left)); column <= right; column++) {
        const block = row * columns + column;
        if (block <= pool.numBlocks) yield block;
      }
    }
  }

  #sprite(kind, refs) {
    const name = 16 * kind + Math.min(10, refs);
    let sprite = this.sprites.get(name);
    if (!sprite) {
      sprite = document.createElement("canvas");
      sprite.width = sprite.height = this.scale;
      drawCell(sprite.getContext("2d", { alpha: false }), this.palette, 0, 0, this.scale, kind, refs);
      this.sprites.set(name, sprite);
    }
    return sprite;
  }

  // --- the camera; points are CSS pixels from the canvas's corner

  blockAt(x, y) {
    if (!this.pool || x < 0 || y < 0) return -1;
    const ratio = devicePixelRatio / this.scale;
    const column = Math.floor(this.left + x * ratio), row = Math.floor(this.top + y * ratio);
    if (column < 0 || row < 0 || column >= this.columns) return -1;
    const block = row * this.columns + column;
    return block <= this.pool.numBlocks ? block : -1;
  }

  // The middle of a block's cell and the cell's width.
  place(block) {
    const ratio = this.scale / devicePixelRatio;
    return {
      x: ((block % this.columns) + 0.5 - this.left) * ratio,
      y: (Math.floor(block / this.columns) + 0.5 - this.top) * ratio,
      size: ratio,
    };
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const ratio = devicePixelRatio, pattern = SMALLEST_PATTERN * ratio;
    const atX = this.left + (x * ratio) / this.scale, atY = this.top + (y * ratio) / this.scale;
    let scale = Math.min(Math.max(LARGEST_ZOOMED * ratio, this.fit), Math.max(this.fit, this.scale * factor));
    if (scale >= pattern && scale !== this.fit) scale = factor > 1 ? Math.ceil(scale) : Math.floor(scale);
    this.scale = Math.max(this.fit, scale);
    this.sprites.clear();
    this.#moveTo(atX - (x * ratio) / this.scale, atY - (y * ratio) / this.scale);
  }

  pan(x, y) {
    const ratio = devicePixelRatio / this.scale;
    this.#moveTo(this.left + x * ratio, this.top + y * ratio);
  }

  showAll() {
    this.scale = this.fit;
    this.sprites.clear();
    this.#moveTo(0, 0);
  }

  // Bring a block into view.
  reveal(block) {
    const { x, y, size } = this.place(block), { clientWidth, clientHeight } = this.canvas;
    const out = (at, most) => (at < size ? at - size : at > most - size ? at - most + size : 0);
    const moveX = out(x, clientWidth), moveY = out(y, clientHeight);
    if (moveX || moveY) this.pan(moveX, moveY);
  }

  #moveTo(left, top) {
    const { canvas, scale } = this;
    this.left = Math.max(0, Math.min(left, this.columns - canvas.width / scale));
    this.top = Math.max(0, Math.min(top, this.rows - canvas.height / scale));
    this.whole = true;
  }
}

// Columns, and the largest cell with which everything fits; less than a pixel where it must be.
function fitting(count, width, height, largest) {
  for (let size = largest; size >= 1; size--) {
    let columns = Math.floor(width / size);
    if (columns > 2 * COLUMN_STEP) columns -= columns % COLUMN_STEP;
    columns = Math.min(columns, count);
    if (columns && Math.ceil(count / columns) * size <= height) return [columns, size];
  }
  const columns = Math.ceil(Math.sqrt((count * width) / height));
  return [columns, width / columns];
}
