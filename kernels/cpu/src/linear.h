// y = x W^T + b with W packed into panels of 16 output columns: [panel][in][16], read front to back.
#pragma once

#include "calls.h"
#include "matrix.h"

namespace OCTAVO_ISA {

constexpr int64_t ROW_BLOCK = 96;  // rows of x per task: with IN_BLOCK of their columns they stay in the L2 cache
constexpr int64_t IN_BLOCK = 256;  // columns of x per pass: a panel's slice stays in the L1 cache
constexpr int64_t FEW_TILES = 4;
constexpr int64_t MAX_PANELS = 16;  // panels per task
constexpr int64_t TASKS_PER_THREAD = 6;  // so that a thread that lost its core to somebody else does not hold up the rest

static thread_local Scratch linear_input, linear_tile;

template <typename V>
static void finish(const Linear& call, const float* sums, int64_t stride, int64_t first_row, int64_t rows,
                   int64_t first_panel, int64_t panels) {
  const int64_t step = call.gated ? 2 : 1;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t p = 0; p < panels; p += step) {
      const float* from = sums + r * stride + p * PANEL;
      const int64_t column = (first_panel + p) / step * PANEL;
      V* to = (V*)call.output + (first_row + r) * call.out + column;
      float row[PANEL];
      for (int v = 0; v < PANEL; v += LANES) {
        F value = load(from + v);
        if (call.bias) value += load(call.bias + (first_panel + p) * PANEL + v);
        if (call.gated) {
          F up = load(from + PANEL + v);
          if (call.bias) up += load(call.bias + (first_panel + p + 1) * PANEL + v);
          value = value / (1.0f + exponential(-value)) * up;
        }
        if (column + PANEL <= call.out)
          store(to + v, value);
        else
          store(row + v, value);
      }
      if (column + PANEL > call.out)
        for (int64_t c = 0; column + c < call.out; ++c) narrow(to + c, row[c]);
    }
}

template <typename V, typename W>
static void linear_task(const Linear& call, const float* input, int64_t first_row, int64_t rows, int64_t first_panel,
                        int64_t panels) {
  const int64_t in = call.in, stride = panels * PANEL;
  const W* weights = (const W*)call.panels + first_panel * in * PANEL;
  const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
  float* sums = linear_tile.floats(ROW_BLOCK * MAX_PANELS * PANEL);
  auto multiply = [&](int64_t p, int64_t k) {
    const int64_t width = in - k < IN_BLOCK ? in - k : IN_BLOCK;
    for (int64_t t = 0, row = 0; t < tiles; ++t) {
      const int64_t end = rows * (t + 1) / tiles;
      const float* a = input + (first_row + row) * in + k;
      const W* b = weights + (p * in + k) * PANEL;
      float* c = sums + row * stride + p * PANEL;
      if (t == 0)
        tile_of<W, true>(end - row, width, a, in, b, PANEL, c, stride, k == 0);
      else
        tile_of<W, false>(end - row, width, a, in, b, PANEL, c, stride, k == 0);
      row = end;
    }
  };
  if (tiles <= FEW_TILES)  // bound by reading the weights: front to back
    for (int64_t p = 0; p < panels; ++p)
      for (int64_t k = 0; k < in; k += IN_BLOCK) multiply(p, k);
  else
    for (int64_t k = 0; k < in; k += IN_BLOCK)
      for (int64_t p = 0; p < panels; ++p) multiply(p, k);
  finish<V>(call, sums, stride, first_row, rows, first_panel, panels);
}

template <typename V, typename W>
static void linear_of(const Linear& call) {
  const float* input = (const float*)call.input;
  if (call.value_type == BFLOAT16) {
    float* wide = linear_input.floats(call.rows * call.in);
    for (int64_t i = 0; i < call.rows * call.in; ++i) wide[i] = widen(((const bf16*)call.input)[i]);
    input = wide;
  }
  const int64_t row_blocks = (call.rows + ROW_BLOCK - 1) / ROW_BLOCK;
  int64_t panels = call.panel_count * row_blocks / (call.threads * TASKS_PER_THREAD) / 2 * 2;
  panels = panels < 2 ? 2 : panels > MAX_PANELS ? MAX_PANELS : panels;
  const int64_t panel_blocks = (call.panel_count + panels - 1) / panels;
#pragma omp parallel for num_threads(call.threads) schedule(dynamic, 1) if (call.threads > 1)
  for (int64_t task = 0; task < row_blocks * panel_blocks; ++task) {
    const int64_t block = task % row_blocks, first = task / row_blocks * panels;
    const int64_t row = call.rows * block / row_blocks, end = call.rows * (block + 1) / row_blocks;
    const int64_t count = call.panel_count - first < panels ? call.panel_count - first : panels;
    linear_task<V, W>(call, input, row, end - row, first, count);
  }
}

static int64_t linear(const Linear* call) {
  if (call->value_type == FLOAT32)
    call->weight_type == FLOAT32 ? linear_of<float, float>(*call) : linear_of<float, bf16>(*call);
  else
    call->weight_type == FLOAT32 ? linear_of<bf16, float>(*call) : linear_of<bf16, bf16>(*call);
  return OK;
}

}  // namespace OCTAVO_ISA
