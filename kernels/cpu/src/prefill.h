// Attention of a chunk: tiles of query tokens, all heads of a group together, against tiles of keys.
//
// A task is TOKENS query tokens of one KV head's group. Rows are ordered token by token, so that the rows of a register
// tile see nearly the same keys:
//
//     keys         0 ............ lowest | visible to some row | highest ......
//     register tile of rows              |=====================|               only these are computed
//     row r                                 |== low[r]..high[r) ==|              the rest gets weight 0
//
// Key tiles begin at multiples of KEY_TILE in the context, so a row's sums are formed in the same order however the
// prompt was cut into chunks.
#pragma once

#include "lookup.h"
#include "matrix.h"
#include "query.h"
#include "scratch.h"

namespace OCTAVO_ISA {

constexpr int64_t KEY_TILE = 64;
constexpr int64_t TASK_ROWS = 192;

static thread_local Scratch prefill_scratch;

// Query tokens per task.
INLINE int64_t tokens_per_task(const Attention& call) {
  const int64_t tokens = TASK_ROWS / (call.heads / call.kv_heads);
  return tokens < 1 ? 1 : tokens;
}

// K of `count` keys, [count, stride], transposed into panels of 16 keys, [panel][dim][16]; missing keys are zero.
static void transpose_keys(const float* keys, int64_t stride, int64_t count, int64_t dim, float* panels) {
  for (int64_t p = 0; p < count; p += PANEL)
    for (int64_t k = p; k < p + PANEL; k += 4) {
      float* to = panels + p * dim + (k - p);
      if (k + 4 <= count) {
        for (int64_t d = 0; d < dim; d += 4) {
          const float* from = keys + k * stride + d;
          F4 a, b, c, e;
          memcpy(&a, from, sizeof a);
          memcpy(&b, from + stride, sizeof b);
          memcpy(&c, from + 2 * stride, sizeof c);
          memcpy(&e, from + 3 * stride, sizeof e);
          F4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ce = __builtin_shufflevector(c, e, 0, 4, 1, 5);
          F4 ba = __builtin_shufflevector(a, b, 2, 6, 3, 7), ec = __builtin_shufflevector(c, e, 2, 6, 3, 7);
          F4 columns[4] = {
              __builtin_shufflevector(ab, ce, 0, 1, 4, 5), __builtin_shufflevector(ab, ce, 2, 3, 6, 7),
              __builtin_shufflevector(ba, ec, 0, 1, 4, 5), __builtin_shufflevector(ba, ec, 2, 3, 6, 7)};
          for (int i = 0; i < 4; ++i) memcpy(to + (d + i) * PANEL, &columns[i], sizeof columns[i]);
        }
      } else {
        for (int64_t d = 0; d < dim; ++d)
          for (int64_t j = 0; j < 4; ++j) to[d * PANEL + j] = k + j < count ? keys[(k + j) * stride + d] : 0.0f;
      }
    }
}

// Rows of K (or V) of the keys [first, end), at most KEY_TILE, as float32 [end - first, stride].
template <typename K>
static void widen_rows(const Attention& call, const int32_t* table, const K* plane, int64_t first, int64_t end,
                       float* to, int64_t stride) {
  const K* rows[KEY_TILE];
  look_up(call, table, plane, first, end, rows);
  for (int64_t k = 0; k < end - first; ++k)
    for (int64_t d = 0; d < call.head_dim; d += LANES) store(to + k * stride + d, load(rows[k] + d));
}

struct Rows {
  float* query;  // [rows, dim], scaled
  float* sums;   // [rows, padded dim], unnormalised
  float* top;    // [rows]
  float* total;  // [rows]
};

// Scores of one row become weights; the sums so far are scaled to the new top.
INLINE void soften_row(float* scores, int64_t from, int64_t low, int64_t high, int64_t to, float soft_cap, float* sums,
                       int64_t width, float* top, float* total) {
  const F nothing = splat(-__builtin_inff());
  I lane;
  for (int i = 0; i < LANES; ++i) lane[i] = i;
  F tops = nothing;
  for (int64_t k = from; k < to; k += LANES) {
    F score = load(scores + k);
    if (soft_cap > 0) score = capped(score, soft_cap);
    if (k < low || k + LANES > high) {
      I key = lane + (int32_t)k;
      score = key >= (int32_t)low && key < (int32_t)high ? score : nothing;
    }
    store(scores + k, score);
    tops = larger(score, tops);
  }
  const float tile_top = maximum(tops), new_top = tile_top > *top ? tile_top : *top;
  if (!(new_top > -__builtin_inff())) {  // this row sees nothing here, and saw nothing before
    for (int64_t k = from; k < to; k += LANES) store(scores + k, F{});
    return;
  }
  if (new_top != *top) {
    const F fade = exponential(splat(*top - new_top));
    for (int64_t d = 0; d < width; d += LANES) store(sums + d, load(sums + d) * fade);
    *total *= fade[0];
    *top = new_top;
  }
  F totals = F{};
  for (int64_t k = from; k < to; k += LANES) {
    F weight = exponential(load(scores + k) - new_top);
    store(scores + k, weight);
    totals += weight;
  }
  *total += sum(totals);
}

// Query tokens [first, end) of a sequence, counted within its chunk, for one KV head. False without memory.
template <typename K>
static bool attend_chunk(const Attention& call, int64_t sequence, int64_t kv_head, int64_t first, int64_t end) {
  const int64_t group = call.heads / call.kv_heads, dim = call.head_dim;
  const int64_t width = (dim + PANEL - 1) / PANEL * PANEL, rows = (end - first) * group;
  const int64_t start = call.query_starts[sequence], tokens = call.query_starts[sequence + 1] - start;
  const int64_t before = call.context_lengths[sequence] - tokens;  // position of the chunk's first token
  const int32_t* table = call.block_tables + sequence * call.table_width;
  const K* keys = (const K*)call.keys + kv_head * call.head_stride;
  const K* values = keys + call.value_offset;
  const float value_scale = SCALED<K> ? call.kv_scales[call.kv_heads + kv_head] : 1.0f;

  float* memory = prefill_scratch.floats(rows * (dim + width + 2) + KEY_TILE * (dim + width) + TILE_ROWS * KEY_TILE + 64);
  if (!memory) return false;
  float* key_panels = memory;
  float* value_rows = key_panels + KEY_TILE * dim;
  float* scores = value_rows + KEY_TILE * width;
  Rows state = {scores + TILE_ROWS * KEY_TILE, 0, 0, 0};
  state.sums = state.query + rows * dim;
  state.top = state.sums + rows * width;
  state.total = state.top + rows;

  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = kv_head * group + r % group;
    read_query<K>(call, start + first + r / group, head, state.query + r * dim);
    state.top[r] = call.sinks ? call.sinks[head] : -__builtin_inff();
    state.total[r] = call.sinks ? 1.0f : 0.0f;
  }
  memset(state.sums, 0, rows * width * sizeof(float));
  if (width > dim) memset(value_rows, 0, KEY_TILE * width * sizeof(float));

  // The keys [low_of(t), high_of(t)) that query token t of the chunk sees.
  auto high_of = [&](int64_t token) { return before + token + 1; };
  auto low_of = [&](int64_t token) {
    const int64_t low = call.window ? high_of(token) - call.window : 0;
    return low < 0 ? 0 : low;
  };
  const int64_t lowest = low_of(first), highest = high_of(end - 1);
  const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
  for (int64_t base = lowest / KEY_TILE * KEY_TILE; base < highest; base += KEY_TILE) {
    const int64_t stop = highest < base + KEY_TILE ? highest : base + KEY_TILE;
    const int64_t begin = lowest > base ? lowest : base;
    const int64_t from_panel = base + (begin - base) / PANEL * PANEL;
    widen_rows(call, table, keys, from_panel, stop, value_rows, width);
    transpose_keys(value_rows, width, stop - from_panel, dim, key_panels + (from_panel - base) * dim);
    widen_rows(call, table, values, begin, stop, value_rows + (begin - base) * width, width);

    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = rows * t / tiles, row_end = rows * (t + 1) / tiles;
      int64_t low = low_of(first + row / group), high = high_of(first + (row_end - 1) / group);
      low = low > base ? low : base;
      high = high < stop ? high : stop;
      if (low >= high) continue;
      const int64_t from = (low - base) / PANEL * PANEL, to = (high - base + PANEL - 1) / PANEL * PANEL;
      for (int64_t p = from; p < to; p += PANEL)
        tile_of<float, false>(row_end - row, dim, state.query + row * dim, dim, key_panels + p * dim, PANEL, scores + p,
                              KEY_TILE, true);
      for (int64_t r = row; r < row_end; ++r)
        soften_row(scores + (r - row) * KEY_TILE, from, low_of(first + r / group) - base,
                   high_of(first + r / group) - base, to, (float)call.soft_cap, state.sums + r * width, width,
                   state.top + r, state.total + r);
      for (int64_t p = 0; p < width; p += PANEL)
        tile_of<float, false>(row_end - row, high - low, scores + (low - base), KEY_TILE,
                              value_rows + (low - base) * width + p, width, state.sums + row * width + p, width, false);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* sums = state.sums + r * width;
    // A token whose context on the device is shorter than its chunk may see no key at all.
    const float total = high_of(first + r / group) > 0 ? state.total[r] : 1.0f;
    for (int64_t d = 0; d < dim; d += LANES) store(sums + d, load(sums + d) * value_scale / total);
    write_output(call, start + first + r / group, kv_head * group + r % group, sums);
  }
  return true;
}

}  // namespace OCTAVO_ISA
