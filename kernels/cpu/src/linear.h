// y = x W^T + b with W packed into panels of 16 output columns: [panel][in][16], read front to back.
#pragma once

#include "calls.h"
#include "int4.h"
#include "matrix.h"
#include "rows.h"
#include "scratch.h"

namespace OCTAVO_ISA {

constexpr int64_t ROW_BLOCK = 96;  // rows of x per task: with IN_BLOCK of their columns they stay in the L2 cache
constexpr int64_t IN_BLOCK = 256;  // columns of x per pass: a panel's slice stays in the L1 cache
constexpr int64_t FEW_TILES = 6;   // up to here the weights are read front to back, each slice for all rows
constexpr int64_t MAX_PANELS = 16;  // panels per task
constexpr int64_t TASKS_PER_THREAD = 6;  // so that a thread that lost its core to somebody else does not hold up the rest

static thread_local Scratch linear_input, linear_tile, int4_slice;

template <typename V>
static void finish(const Linear& call, const float* sums, int64_t stride, int64_t first_row, int64_t rows,
                   int64_t first_panel, int64_t panels) {
  const int64_t step = call.gating ? 2 : 1;
  auto finished = [&](const float* from, int64_t panel, int v) __attribute__((always_inline)) {
    F value = load(from + v);
    if (call.scales) value *= load(call.scales + panel * PANEL + v);
    if (call.bias) value += load(call.bias + panel * PANEL + v);
    return value;
  };
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t p = 0; p < panels; p += step) {
      const float* from = sums + r * stride + p * PANEL;
      const int64_t column = (first_panel + p) / step * PANEL;
      V* to = (V*)call.output + (first_row + r) * call.out + column;
      float row[PANEL];
      for (int v = 0; v < PANEL; v += LANES) {
        F value = finished(from, first_panel + p, v);
        if (call.gating) value = gated(value, call.gating) * finished(from + PANEL, first_panel + p + 1, v);
        if (column + PANEL <= call.out)
          store(to + v, value);
        else
          store(row + v, value);
      }
      if (column + PANEL > call.out)
        for (int64_t c = 0; column + c < call.out; ++c) narrow(to + c, row[c]);
    }
}

// Rows of x against columns [k, k + width) of `panels` neighbouring panels, of which `slice` holds the first.
struct Slice {
  const float* input;  // of the first row, from column k on
  int64_t in, rows, width;
  const char* weights;
  const char* next;  // what will be read after this slice
  float* sums;
  int64_t stride;
  bool fresh;
};

template <typename W>
INLINE void all_tiles(const Slice& s, const W* weights, int64_t next_bytes) {
  const int64_t tiles = (s.rows + TILE_ROWS - 1) / TILE_ROWS;
  for (int64_t t = 0, row = 0; t < tiles; ++t) {
    const int64_t end = s.rows * (t + 1) / tiles;
    // The tiles fetch the next slice between them.
    const Ahead ahead = {s.next + s.width * next_bytes * t / tiles, next_bytes / tiles};
    tile_of<W, true>((int)(end - row), s.width, s.input + row * s.in, s.in, weights, PANEL, s.sums + row * s.stride,
                     s.stride, s.fresh, ahead);
    row = end;
  }
}

// One panel.
template <typename W>
INLINE void multiply(const Slice& s) {
  if constexpr (__is_same(W, int4)) {
    const uint32_t* words = (const uint32_t*)s.weights;
    if (s.rows == 1) return int4_tile<1, 1>(s.width, s.input, s.in, words, 0, s.sums, s.stride, s.fresh, s.next);
    if (s.rows == 2) return int4_tile<2, 1>(s.width, s.input, s.in, words, 0, s.sums, s.stride, s.fresh, s.next);
    float* weights = int4_slice.floats(IN_BLOCK * PANEL);  // taken before: it is there
    unpack_int4(s.width, words, weights);
    all_tiles(s, weights, row_bytes<int4>());
  } else {
    all_tiles(s, (const W*)s.weights, row_bytes<W>());
  }
}

// PANELS panels side by side: with one or two rows, the additions to one sum would wait for each other.
template <typename W, int ROWS, int PANELS>
INLINE void multiply_beside(const Slice& s) {
  if constexpr (__is_same(W, int4)) {
    const int64_t panel = s.in / INT4_GROUP * INT4_WORDS;
    int4_tile<ROWS, PANELS>(s.width, s.input, s.in, (const uint32_t*)s.weights, panel, s.sums, s.stride, s.fresh, s.next);
  } else {
    tile<W, ROWS, PANELS, true>(s.width, s.input, s.in, (const W*)s.weights, PANEL, s.in * PANEL, s.sums, s.stride,
                                s.fresh, {s.next, row_bytes<W>()});
  }
}

// False without memory.
template <typename V, typename W>
static bool linear_task(const Linear& call, const float* input, int64_t first_row, int64_t rows, int64_t first_panel,
                        int64_t panels) {
  const int64_t in = call.in, stride = panels * PANEL, panel_bytes = in * row_bytes<W>();
  const char* weights = (const char*)call.panels + first_panel * panel_bytes;
  float* sums = linear_tile.floats(ROW_BLOCK * MAX_PANELS * PANEL);
  if (!sums || (__is_same(W, int4) && !int4_slice.floats(IN_BLOCK * PANEL))) return false;
  // `next`: bytes from this slice to the one that follows.
  auto slice = [&](int64_t p, int64_t k, int64_t next) -> Slice {
    const char* here = weights + p * panel_bytes + k * row_bytes<W>();
    return {input + first_row * in + k, in, rows, in - k < IN_BLOCK ? in - k : IN_BLOCK, here, here + next,
            sums + p * PANEL, stride, k == 0};
  };
  if (rows <= FEW_TILES * TILE_ROWS) {  // bound by reading the weights: front to back
    const int64_t together = rows == 1 ? (__is_same(W, int4) ? 2 : 4) : rows == 2 ? (__is_same(W, int4) ? 1 : 2) : 1;
    for (int64_t p = 0; p < panels;) {
      int64_t count = together;
      while (count > panels - p) count /= 2;
      for (int64_t k = 0; k < in; k += IN_BLOCK) {
        const bool last = k + IN_BLOCK >= in;
        const Slice here = slice(p, k, last ? count * panel_bytes - k * row_bytes<W>() : IN_BLOCK * row_bytes<W>());
        if (count == 4)
          multiply_beside<W, 1, 4>(here);
        else if (count == 2)
          rows == 1 ? multiply_beside<W, 1, 2>(here) : multiply_beside<W, 2, 2>(here);
        else
          multiply<W>(here);
      }
      p += count;
    }
  } else {  // bound by arithmetic: the rows' columns stay in the cache while all panels pass by
    for (int64_t k = 0; k < in; k += IN_BLOCK)
      for (int64_t p = 0; p < panels; ++p) multiply<W>(slice(p, k, panel_bytes));
  }
  finish<V>(call, sums, stride, first_row, rows, first_panel, panels);
  return true;
}

template <typename V, typename W>
static int64_t linear_of(const Linear& call, const float* input) {
  const int64_t row_blocks = (call.rows + ROW_BLOCK - 1) / ROW_BLOCK;
  int64_t panels = call.panel_count * row_blocks / (call.threads * TASKS_PER_THREAD) / 2 * 2;
  panels = panels < 2 ? 2 : panels > MAX_PANELS ? MAX_PANELS : panels;
  const int64_t panel_blocks = (call.panel_count + panels - 1) / panels;
  int32_t failed = 0;
  share(call.threads, row_blocks * panel_blocks, [&](int64_t task) {
    const int64_t block = task % row_blocks, first = task / row_blocks * panels;
    const int64_t row = call.rows * block / row_blocks, end = call.rows * (block + 1) / row_blocks;
    const int64_t count = call.panel_count - first < panels ? call.panel_count - first : panels;
    if (!linear_task<V, W>(call, input, row, end - row, first, count)) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
  });
  return failed ? NO_MEMORY : OK;
}

template <typename V>
static int64_t linear_into(const Linear& call, const float* input) {
  switch (call.weight_type) {
    case FLOAT32:
      return linear_of<V, float>(call, input);
    case BFLOAT16:
      return linear_of<V, bf16>(call, input);
    case INT8:
      return linear_of<V, int8_t>(call, input);
    default:
      return linear_of<V, int4>(call, input);
  }
}

static int64_t linear(const Linear* call) {
  const float* input = (const float*)call->input;
  if (call->value_type == BFLOAT16) {
    const int64_t count = call->rows * call->in;
    float* wide = linear_input.floats(count);
    if (!wide) return NO_MEMORY;
    const bf16* from = (const bf16*)call->input;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(wide + i, load(from + i));
    for (; i < count; ++i) wide[i] = widen(from[i]);
    input = wide;
  }
  return call->output_type == FLOAT32 ? linear_into<float>(*call, input) : linear_into<bf16>(*call, input);
}

}  // namespace OCTAVO_ISA
