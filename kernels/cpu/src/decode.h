// Attention of one query token: its group of heads over the keys of one part of the context.
//
// Parts end at multiples of PART keys from the start of the context. So what a sequence gets has the same bits whatever
// else is in the batch and however many threads there are.
#pragma once

#include "lookup.h"

// Loops that need every register: inlined, they would share them with what is around.
#define OUTLINE static __attribute__((noinline))
#define ALWAYS __attribute__((always_inline))

namespace OCTAVO_ISA {

constexpr int64_t PART = 2 * SPAN;  // keys of a part
constexpr int64_t KEYS = 4;         // keys whose scores are summed together
constexpr int64_t VALUES = 32;      // keys whose values are summed together
constexpr int64_t AHEAD = 8;        // rows that are fetched before they are used
constexpr int64_t MAX_GROUP = 64;   // query heads per KV head
constexpr float LOG2_E = 1.44269504088896341f;

// Query heads per pass over a key: their KEYS sums each stay in registers.
constexpr int64_t HEADS = SPARE_REGISTERS ? 4 : 3;
constexpr int64_t COLUMNS = 4;

// Where one part's result goes: unnormalised sums [head_dim] with the largest score and the sum of weights behind them.
struct Partial {
  float* sums;
  int64_t stride;
  inline __attribute__((always_inline)) float* of(int64_t head) const { return sums + head * stride; }
};

// sums[h][0..3] += query[h][d..] * keys[0..3][d..], the keys' vectors by `column`
template <typename K, int N, typename Column>
INLINE void score_column(const float* query, int64_t dim, const K* const* keys, F (*sums)[KEYS], Column&& column) {
  F q[N];
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h) q[h] = load(query + h * dim);
#pragma GCC unroll 4
  for (int k = 0; k < KEYS; ++k) {
    const F key = column(keys[k]);
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) sums[h][k] += q[h] * key;
  }
}

// scores[h][0..3] = query[h] . keys[0..3], the query `pairwise`
template <typename K, int N>
OUTLINE void score_keys(const float* query, int64_t dim, const K* const* keys, float* scores) {
  F sums[N][KEYS];
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
    for (int k = 0; k < KEYS; ++k) sums[h][k] = F{};
  const K* const rows[KEYS] = {keys[0], keys[1], keys[2], keys[3]};
  const int64_t pairs = dim / (2 * LANES) * (2 * LANES);
  // A loop for either half: together they would need more registers than there are.
  for (int64_t d = 0; d < pairs; d += 2 * LANES)
    score_column<K, N>(query + d, dim, rows, sums, [=](const K* key) ALWAYS { return load_half<0>(key + d); });
  for (int64_t d = 0; d < pairs; d += 2 * LANES)
    score_column<K, N>(query + d + LANES, dim, rows, sums, [=](const K* key) ALWAYS { return load_half<1>(key + d); });
  if (pairs < dim)
    score_column<K, N>(query + pairs, dim, rows, sums, [=](const K* key) ALWAYS { return load(key + pairs); });
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h) {
    F4 four = sum4(sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
    memcpy(scores + h * PART, &four, sizeof four);
  }
}

enum Columns { FIRST_HALF, SECOND_HALF, REST };

template <Columns WHICH, typename K>
INLINE F load_column(const K* from) {
  if constexpr (WHICH == REST)
    return load(from);
  else
    return load_half<WHICH == SECOND_HALF>(from);
}

// sums[h][d..] += weights[h][k] * values[k][d..] over `count` keys, for one half of C pairs of vectors; rows that come
// AHEAD are fetched meanwhile.
template <Columns WHICH, typename K, int N, int C>
INLINE void weigh_columns(const float* weights, const K* const* values, int64_t count, int64_t d, float* sums,
                          int64_t stride) {
  constexpr int64_t PAIR = 2 * LANES;
  sums += WHICH == SECOND_HALF ? d + LANES : d;
  F acc[N][C];
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[h][c] = load(sums + h * stride + c * PAIR);
  for (int64_t k = 0; k < count; ++k) {
    const K* value = values[k] + d;
    if constexpr (WHICH != SECOND_HALF)
#pragma GCC unroll 8
      for (size_t line = 0; line < C * PAIR * sizeof(K); line += 64)
        __builtin_prefetch((const char*)(values[k + AHEAD] + d) + line);
    F weight[N];
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) weight[h] = splat(weights[h * PART + k]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const F column = load_column<WHICH>(value + c * PAIR);
#pragma GCC unroll 4
      for (int h = 0; h < N; ++h) acc[h][c] += weight[h] * column;
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(sums + h * stride + c * PAIR, acc[h][c]);
}

template <typename K, int N>
OUTLINE void weigh_values(const float* weights, const K* const* values, int64_t count, int64_t dim, float* sums,
                          int64_t stride) {
  int64_t d = 0;
  for (; d + COLUMNS * 2 * LANES <= dim; d += COLUMNS * 2 * LANES) {
    weigh_columns<FIRST_HALF, K, N, COLUMNS>(weights, values, count, d, sums, stride);
    weigh_columns<SECOND_HALF, K, N, COLUMNS>(weights, values, count, d, sums, stride);
  }
  for (; d + 2 * LANES <= dim; d += 2 * LANES) {
    weigh_columns<FIRST_HALF, K, N, 1>(weights, values, count, d, sums, stride);
    weigh_columns<SECOND_HALF, K, N, 1>(weights, values, count, d, sums, stride);
  }
  if (d < dim) weigh_columns<REST, K, N, 1>(weights, values, count, d, sums, stride);
}

#define FOR_HEADS(n, call)        \
  switch (n) {                    \
    case 1: { call(1); break; }   \
    case 2: { call(2); break; }   \
    case 3: { call(3); break; }   \
    case 4: { call(4); break; }   \
  }

// Scores become weights e^(score - top) in place; returns {top, sum of weights}.
struct Softmax {
  float top, total;
};

OUTLINE Softmax soften(float* scores, int64_t count, float soft_cap) {
  const F nothing = splat(-__builtin_inff());
  int64_t padded = (count + LANES - 1) / LANES * LANES;
  for (int64_t k = count; k < padded; ++k) scores[k] = nothing[0];
  F tops = nothing;
  for (int64_t k = 0; k < padded; k += LANES) {
    F score = load(scores + k);
    if (soft_cap > 0) {
      score = capped(score, soft_cap);
      if (k + LANES > count)
        for (int lane = 0; lane < LANES; ++lane)
          if (k + lane >= count) score[lane] = nothing[0];
      store(scores + k, score);
    }
    tops = larger(score, tops);
  }
  const float top = maximum(tops);
  F totals = F{};
  for (int64_t k = 0; k < padded; k += LANES) {
    F weight = power_of_two((load(scores + k) - top) * LOG2_E);
    store(scores + k, weight);
    totals += weight;
  }
  return {top, sum(totals)};
}

// query: [group, head_dim], scaled, `pairwise`; so are the sums that result
template <typename K>
static void attend_part(const Attention& call, const int32_t* table, int64_t kv_head, const float* query, int64_t first,
                        int64_t end, Partial result) {
  const int64_t group = call.heads / call.kv_heads, dim = call.head_dim, count = end - first;
  const int64_t passes = (group + HEADS - 1) / HEADS;
  alignas(64) float scores[MAX_GROUP * PART];

  // Rows of K, then those of V. Where nothing is left to fetch ahead, the last row costs nothing.
  const K* rows[2 * PART + AHEAD];
  const K** values = rows + (count + KEYS - 1) / KEYS * KEYS;
  look_up_in_streams(call, table, (const K*)call.keys + kv_head * call.head_stride, first, end, rows);
  for (const K** row = rows + count; row < values; ++row) *row = row[-1];
  for (int64_t k = 0; k < count; ++k) values[k] = rows[k] + call.value_offset;
  for (int64_t k = count; k < count + AHEAD; ++k) values[k] = values[k - 1];

  const int64_t row_bytes = dim * sizeof(K);
  for (int64_t k = 0; k < AHEAD; ++k)
    for (int64_t line = 0; line < row_bytes; line += 64) __builtin_prefetch((const char*)rows[k] + line);
  for (int64_t k = 0; k < count; k += KEYS) {
    for (int64_t line = 0; line < row_bytes; line += 64)
#pragma GCC unroll 4
      for (int64_t i = 0; i < KEYS; ++i) __builtin_prefetch((const char*)rows[k + AHEAD + i] + line);
    for (int64_t pass = 0, h = 0; pass < passes; ++pass) {
      const int64_t stop = group * (pass + 1) / passes;
#define CALL(n) score_keys<K, n>(query + h * dim, dim, rows + k, scores + h * PART + k)
      FOR_HEADS(stop - h, CALL)
#undef CALL
      h = stop;
    }
  }
  for (int64_t h = 0; h < group; ++h) {
    Softmax softmax = soften(scores + h * PART, count, (float)call.soft_cap);
    float* sums = result.of(h);
    memset(sums, 0, dim * sizeof(float));
    sums[dim] = softmax.top;
    sums[dim + 1] = softmax.total;
  }
  for (int64_t k = 0; k < count; k += VALUES) {
    const int64_t here = count - k < VALUES ? count - k : VALUES;
    for (int64_t pass = 0, h = 0; pass < passes; ++pass) {
      const int64_t stop = group * (pass + 1) / passes;
#define CALL(n) weigh_values<K, n>(scores + h * PART + k, values + k, here, dim, result.of(h), result.stride)
      FOR_HEADS(stop - h, CALL)
#undef CALL
      h = stop;
    }
  }
}

// The parts of one (sequence, KV head), and the sink, become one row per head, [group, head_dim] of float32.
template <typename K>
static void join_parts(const Attention& call, int64_t kv_head, const Partial* parts, int64_t count, float* output) {
  const int64_t group = call.heads / call.kv_heads, dim = call.head_dim;
  const float value_scale = SCALED<K> ? call.kv_scales[call.kv_heads + kv_head] : 1.0f;
  for (int64_t h = 0; h < group; ++h) {
    const int64_t head = kv_head * group + h;
    float top = call.sinks ? call.sinks[head] : -__builtin_inff();
    for (int64_t p = 0; p < count; ++p) top = parts[p].of(h)[dim] > top ? parts[p].of(h)[dim] : top;
    F total = call.sinks ? exponential(splat(call.sinks[head] - top)) : F{};
    float* row = output + h * dim;
    memset(row, 0, dim * sizeof(float));
    for (int64_t p = 0; p < count; ++p) {
      const float* sums = parts[p].of(h);
      const F fade = exponential(splat(sums[dim] - top));
      total += sums[dim + 1] * fade;
      for (int64_t d = 0; d < dim; d += LANES) store(row + d, load(row + d) + load(sums + d) * fade);
    }
    const F share = count ? value_scale / total : F{};
    for (int64_t d = 0; d < dim; d += LANES) store(row + d, load(row + d) * share);
    in_order<K>(row, dim);
  }
}

}  // namespace OCTAVO_ISA
