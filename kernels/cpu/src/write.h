// A step's K and V into their slots, K rotated on its way there, and q rotated in place: one pass over the tokens.
#pragma once

#include "formats.h"
#include "rows.h"

namespace OCTAVO_ISA {

template <typename K, typename T>
INLINE T stored(T value, float scale) {
  return SCALED<K> ? value / scale : value;
}

// Half-split rotary embedding: (a, b) = (x[i], x[half + i]) becomes (a cos - b sin, b cos + a sin).
// Stored are the rotated numbers divided by `scale`, where K has one.
template <typename V, typename K>
static void rotate(const V* from, K* to, int64_t half, const float* cosine, const float* sine, float scale) {
  int64_t i = 0;
  for (; i + LANES <= half; i += LANES) {
    F a = load(from + i), b = load(from + half + i), c = load(cosine + i), s = load(sine + i);
    store(to + i, stored<K>(a * c - b * s, scale));
    store(to + half + i, stored<K>(b * c + a * s, scale));
  }
  for (; i < half; ++i) {
    const float a = widen(from[i]), b = widen(from[half + i]);
    narrow(to + i, stored<K>(a * cosine[i] - b * sine[i], scale));
    narrow(to + half + i, stored<K>(b * cosine[i] + a * sine[i], scale));
  }
}

template <typename T>
INLINE void copy_row(const T* from, T* to, int64_t dim, float) {
  memcpy(to, from, dim * sizeof *to);
}

template <typename V, typename K>
INLINE void copy_row(const V* from, K* to, int64_t dim, float scale) {
  int64_t d = 0;
  for (; d + LANES <= dim; d += LANES) store(to + d, stored<K>(load(from + d), scale));
  for (; d < dim; ++d) narrow(to + d, stored<K>(widen(from[d]), scale));
}

template <typename V, typename K>
static void write_token(const Write& call, int64_t token) {
  const int64_t dim = call.head_dim, half = call.cosine ? call.half : 0;
  const float *cosine = call.cosine + token * half, *sine = call.sine + token * half;
  V* query = (V*)call.query + token * call.query_stride;
  for (int64_t h = 0; half && h < call.heads; ++h) rotate(query + h * dim, query + h * dim, half, cosine, sine, 1.0f);

  const V* key = (const V*)call.key + token * call.key_stride;
  const V* value = (const V*)call.value + token * call.value_stride;
  const int64_t slot = call.slots[token];
  K* place = (K*)call.keys + slot / call.block_size * call.block_stride + slot % call.block_size * dim;
  for (int64_t h = 0; h < call.kv_heads; ++h, place += call.head_stride) {
    const float key_scale = SCALED<K> ? call.kv_scales[h] : 1.0f;
    const float value_scale = SCALED<K> ? call.kv_scales[call.kv_heads + h] : 1.0f;
    rotate(key + h * dim, place, half, cosine, sine, key_scale);
    copy_row(key + h * dim + 2 * half, place + 2 * half, dim - 2 * half, key_scale);
    copy_row(value + h * dim, place + call.value_offset, dim, value_scale);
  }
}

template <typename V, typename K>
static void write_of(const Write& call) {
  const int64_t elements = call.tokens * (call.heads + 2 * call.kv_heads) * call.head_dim;
  const int64_t threads = useful_threads(call.threads, elements);
  share_rows(threads, call.tokens, [&](int64_t t) { write_token<V, K>(call, t); });
}

static int64_t write(const Write* call) {
  for (int64_t t = 0; t < call->tokens; ++t)
    if (call->slots[t] < 0 || call->slots[t] >= call->num_blocks * call->block_size) return BAD_INDEX;
  by_value_type(call->value_type, [=](auto* value) {
    by_pool_type(call->pool_type, [=](auto* kept) {
      write_of<typename Pointee<decltype(value)>::Type, typename Pointee<decltype(kept)>::Type>(*call);
    });
  });
  return OK;
}

}  // namespace OCTAVO_ISA
