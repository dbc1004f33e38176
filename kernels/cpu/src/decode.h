// Attention of one query token: its group of heads over the keys of one part of the context.
//
// Parts end at multiples of PART keys from the start of the context. So what a sequence gets has the same bits whatever
// else is in the batch and however many threads there are.
#pragma once

#include "calls.h"
#include "vectors.h"

namespace OCTAVO_ISA {

constexpr int64_t PART = 256;  // keys of a part, a multiple of SPAN
constexpr int64_t SPAN = 32;  // keys whose rows are looked up together
constexpr int64_t KEYS = 4;  // keys whose scores are summed together
constexpr int64_t MAX_GROUP = 64;  // query heads per KV head
constexpr int64_t MAX_DIM = 256;

// Query heads per pass over a key: their KEYS sums each stay in registers.
constexpr int64_t HEADS = SPARE_REGISTERS ? 4 : 3;
constexpr int64_t COLUMNS = 4;

// Where one part's result goes: unnormalised sums [head_dim] with the largest score and the sum of weights behind them.
struct Partial {
  float* sums;
  int64_t stride;
  inline __attribute__((always_inline)) float* of(int64_t head) const { return sums + head * stride; }
};

template <typename K>
INLINE void prefetch_row(const K* row, int64_t dim) {
  for (int64_t d = 0; d < dim; d += 64 / (int64_t)sizeof(K)) __builtin_prefetch(row + d);
}

// scores[h][0..3] = query[h] . keys[0..3]
template <typename K, int N>
static void score_keys(const float* query, int64_t dim, const K* const* keys, float* scores) {
  F sums[N][KEYS];
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
    for (int k = 0; k < KEYS; ++k) sums[h][k] = F{};
  const K *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
  for (int64_t d = 0; d < dim; d += LANES) {
    F q[N];
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) q[h] = load(query + h * dim + d);
    F key = load(k0 + d);
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) sums[h][0] += q[h] * key;
    key = load(k1 + d);
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) sums[h][1] += q[h] * key;
    key = load(k2 + d);
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) sums[h][2] += q[h] * key;
    key = load(k3 + d);
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) sums[h][3] += q[h] * key;
  }
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h) {
    F4 four = sum4(sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
    memcpy(scores + h * PART, &four, sizeof four);
  }
}

// sums[h][d..] += weights[h][k] * values[k][d..] over `count` keys, for C vectors of d; the same columns of `ahead` are
// fetched meanwhile.
template <typename K, int N, int C>
INLINE void weigh_columns(const float* weights, const K* const* values, const K* const* ahead, int64_t count, int64_t d,
                          float* sums, int64_t stride) {
  F acc[N][C];
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[h][c] = load(sums + h * stride + d + c * LANES);
  for (int64_t k = 0; k < count; ++k) {
    const K* value = values[k] + d;
#pragma GCC unroll 4
    for (size_t line = 0; line < C * LANES * sizeof(K); line += 64) __builtin_prefetch((const char*)(ahead[k] + d) + line);
    F weight[N];
#pragma GCC unroll 4
    for (int h = 0; h < N; ++h) weight[h] = splat(weights[h * PART + k]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      F column = load(value + c * LANES);
#pragma GCC unroll 4
      for (int h = 0; h < N; ++h) acc[h][c] += weight[h] * column;
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < N; ++h)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(sums + h * stride + d + c * LANES, acc[h][c]);
}

template <typename K, int N>
static void weigh_values(const float* weights, const K* const* values, const K* const* ahead, int64_t count, int64_t dim,
                         float* sums, int64_t stride) {
  int64_t d = 0;
  for (; d + COLUMNS * LANES <= dim; d += COLUMNS * LANES)
    weigh_columns<K, N, COLUMNS>(weights, values, ahead, count, d, sums, stride);
  for (; d < dim; d += LANES) weigh_columns<K, N, 1>(weights, values, ahead, count, d, sums, stride);
}

#define FOR_HEADS(n, call)        \
  switch (n) {                    \
    case 1: { call(1); break; }   \
    case 2: { call(2); break; }   \
    case 3: { call(3); break; }   \
    case 4: { call(4); break; }   \
  }

// Rows of K (or V) of the keys [first, end) of a sequence; the last row repeats up to a multiple of KEYS.
template <typename K>
INLINE void look_up(const Attention& call, const int32_t* table, const K* plane, int64_t first, int64_t end,
                    const K** rows) {
  int64_t block = first / call.block_size, offset = first % call.block_size, count = 0;
  const K* row = plane + table[block] * call.block_stride + offset * call.head_dim;
  for (int64_t key = first; key < end; ++key) {
    rows[count++] = row;
    row += call.head_dim;
    if (++offset == call.block_size && key + 1 < end) {
      offset = 0;
      row = plane + table[++block] * call.block_stride;
    }
  }
  for (; count % KEYS; ++count) rows[count] = rows[count - 1];
}

// Scores become weights e^(score - top) in place; returns {top, sum of weights}.
struct Softmax {
  float top, total;
};

INLINE Softmax soften(float* scores, int64_t count, float soft_cap) {
  const F nothing = splat(-__builtin_inff());
  int64_t padded = (count + LANES - 1) / LANES * LANES;
  for (int64_t k = count; k < padded; ++k) scores[k] = nothing[0];
  F tops = nothing;
  for (int64_t k = 0; k < padded; k += LANES) {
    F score = load(scores + k);
    if (soft_cap > 0) {  // cap * tanh(score / cap), with tanh x = 1 - 2 / (e^2x + 1)
      score = soft_cap * (1.0f - 2.0f / (exponential(score * (2.0f / soft_cap)) + 1.0f));
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
    F weight = exponential(load(scores + k) - top);
    store(scores + k, weight);
    totals += weight;
  }
  return {top, sum(totals)};
}

// query: [group, head_dim], scaled, float32
template <typename K>
static void attend_part(const Attention& call, const int32_t* table, int64_t kv_head, const float* query, int64_t first,
                        int64_t end, Partial result) {
  const int64_t group = call.heads / call.kv_heads, dim = call.head_dim, count = end - first;
  const K* keys = (const K*)call.keys + kv_head * call.head_stride;
  const K* values = keys + call.value_offset;
  const int64_t passes = (group + HEADS - 1) / HEADS;
  alignas(64) float scores[MAX_GROUP * PART];
  const K* rows[2][SPAN];
  look_up(call, table, keys, first, end < first + SPAN ? end : first + SPAN, rows[0]);
  for (int64_t j = 0; j < SPAN && j < count; ++j) prefetch_row(rows[0][j], dim);
  for (int64_t k = 0, side = 0; k < count; k += SPAN, side ^= 1) {
    const int64_t here = count - k < SPAN ? count - k : SPAN;
    const int64_t left = count - k - here, next = left < SPAN ? left : SPAN;
    // While these keys are read, the next ones, or the first values, are on their way.
    const int64_t ahead = next ? next : (count < SPAN ? count : SPAN);
    look_up(call, table, next ? keys : values, next ? first + k + here : first,
            (next ? first + k + here : first) + ahead, rows[side ^ 1]);
    for (int64_t i = 0; i < here; i += KEYS) {
      for (int64_t j = i; j < i + KEYS && j < ahead; ++j) prefetch_row(rows[side ^ 1][j], dim);
      for (int64_t pass = 0, h = 0; pass < passes; ++pass) {
        const int64_t stop = group * (pass + 1) / passes;
#define CALL(n) score_keys<K, n>(query + h * dim, dim, rows[side] + i, scores + h * PART + k + i)
        FOR_HEADS(stop - h, CALL)
#undef CALL
        h = stop;
      }
    }
  }
  for (int64_t h = 0; h < group; ++h) {
    Softmax softmax = soften(scores + h * PART, count, (float)call.soft_cap);
    float* sums = result.of(h);
    memset(sums, 0, dim * sizeof(float));
    sums[dim] = softmax.top;
    sums[dim + 1] = softmax.total;
  }
  look_up(call, table, values, first, end < first + SPAN ? end : first + SPAN, rows[0]);
  for (int64_t k = 0, side = 0; k < count; k += SPAN, side ^= 1) {
    const int64_t here = count - k < SPAN ? count - k : SPAN;
    const int64_t left = count - k - here, next = left < SPAN ? left : SPAN;
    if (next) look_up(call, table, values, first + k + here, first + k + here + next, rows[side ^ 1]);
    // Where there is no next row to fetch, the present one costs nothing.
    for (int64_t j = next; j < here; ++j) rows[side ^ 1][j] = rows[side][j];
    for (int64_t pass = 0, h = 0; pass < passes; ++pass) {
      const int64_t stop = group * (pass + 1) / passes;
#define CALL(n) weigh_values<K, n>(scores + h * PART + k, rows[side], rows[side ^ 1], here, dim, result.of(h), result.stride)
      FOR_HEADS(stop - h, CALL)
#undef CALL
      h = stop;
    }
  }
}

// The parts of one (sequence, KV head), and the sink, become one output row per head.
template <typename V>
static void join_parts(const Attention& call, int64_t kv_head, const Partial* parts, int64_t count, V* output) {
  const int64_t group = call.heads / call.kv_heads, dim = call.head_dim;
  for (int64_t h = 0; h < group; ++h) {
    const int64_t head = kv_head * group + h;
    float top = call.sinks ? call.sinks[head] : -__builtin_inff();
    for (int64_t p = 0; p < count; ++p) top = parts[p].of(h)[dim] > top ? parts[p].of(h)[dim] : top;
    F total = call.sinks ? exponential(splat(call.sinks[head] - top)) : F{};
    for (int64_t p = 0; p < count; ++p)
      total += parts[p].of(h)[dim + 1] * exponential(splat(parts[p].of(h)[dim] - top));
    const F share = count ? 1.0f / total : F{};
    for (int64_t d = 0; d < dim; d += LANES) {
      F sums = F{};
      for (int64_t p = 0; p < count; ++p)
        sums += load(parts[p].of(h) + d) * exponential(splat(parts[p].of(h)[dim] - top));
      store(output + head * dim + d, sums * share);
    }
  }
}

}  // namespace OCTAVO_ISA
