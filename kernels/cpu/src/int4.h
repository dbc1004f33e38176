// Weights of four bits in groups of 32 inputs: weight = scale * q + least, q in 0..15.
//
//     panel   [in / 32 groups]                       16 outputs
//     group   16 words          scale (high half, bfloat16) and least (low half) of each output
//             4 x 16 words      bits 4 j .. 4 j + 3 of word (o, c): q of input 4 j + o of output c
//
// A word's bits are not shifted down: those of input 4 j + o count 16^j times too much, and the scale as much less.
#pragma once

#include "matrix.h"

namespace OCTAVO_ISA {

constexpr int64_t INT4_GROUP = 32;
constexpr int64_t INT4_WORDS = PANEL * (1 + INT4_GROUP / 8);  // of a group

struct int4 {};

// Bytes of a panel's weights of one input.
template <typename W>
constexpr int64_t row_bytes() {
  if constexpr (__is_same(W, int4)) return INT4_WORDS * 4 / INT4_GROUP;
  else return PANEL * sizeof(W);
}

INLINE U load_words(const uint32_t* from) {
  U words;
  memcpy(&words, from, sizeof words);
  return words;
}

INLINE F to_float(U small) {
#if LANES == 8
  return (F)_mm256_cvtepi32_ps((__m256i)small);
#else
  return __builtin_convertvector((I)small, F);
#endif
}

// q of inputs 4 j .. of one word each, times 16^j; but of the last, whose highest bit would be a sign, plainly.
template <int J>
INLINE F raised(const uint32_t* words) {
  return to_float(J < 7 ? load_words(words) & (15u << 4 * J) : load_words(words) >> 28);
}

template <int J>
constexpr float lowered() {
  return J < 7 ? 1.0f / (float)(1 << 4 * J) : 1.0f;
}

// Inputs 4 J .. 4 J + 3 of a group, for ROWS rows and VECTORS vectors of outputs side by side.
template <int J, int ROWS, int VECTORS>
INLINE void add_four(const float* a, int64_t a_stride, const uint32_t* const* words, const F* scale, const F* least,
                     F sums[ROWS][VECTORS]) {
  F scaled[VECTORS];
#pragma GCC unroll 8
  for (int v = 0; v < VECTORS; ++v) scaled[v] = scale[v] * lowered<J>();
#pragma GCC unroll 4
  for (int o = 0; o < 4; ++o) {
    F factor[ROWS];
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; ++r) factor[r] = splat(a[r * a_stride + 4 * J + o]);
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
      F weights = raised<J>(words[v] + (1 + o) * PANEL) * scaled[v] + least[v];
#pragma GCC unroll 2
      for (int r = 0; r < ROWS; ++r) sums[r][v] += factor[r] * weights;
    }
  }
}

// As `tile`, for one or two rows; panels of b lie b_panel words apart.
template <int ROWS, int PANELS>
static void int4_tile(int64_t k, const float* a, int64_t a_stride, const uint32_t* b, int64_t b_panel, float* c,
                      int64_t c_stride, bool fresh, const char* ahead) {
  constexpr int VECTORS = PANELS * PANEL_VECTORS;
  F sums[ROWS][VECTORS];
#pragma GCC unroll 2
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) sums[r][v] = F{};
  for (int64_t i = 0; i < k; i += INT4_GROUP, b += INT4_WORDS, ahead += INT4_WORDS * 4) {
    const uint32_t* words[VECTORS];
    F scale[VECTORS], least[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
      words[v] = b + v / PANEL_VECTORS * b_panel + v % PANEL_VECTORS * LANES;
      const U ends = load_words(words[v]);
      scale[v] = (F)(ends & 0xffff0000u);
      least[v] = (F)(ends << 16);
    }
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 5
      for (int64_t line = 0; line < INT4_WORDS * 4; line += 64) __builtin_prefetch(ahead + p * b_panel * 4 + line);
    add_four<0, ROWS, VECTORS>(a + i, a_stride, words, scale, least, sums);
    add_four<1, ROWS, VECTORS>(a + i, a_stride, words, scale, least, sums);
    add_four<2, ROWS, VECTORS>(a + i, a_stride, words, scale, least, sums);
    add_four<3, ROWS, VECTORS>(a + i, a_stride, words, scale, least, sums);
    add_four<4, ROWS, VECTORS>(a + i, a_stride, words, scale, least, sums);
    add_four<5, ROWS, VECTORS>(a + i, a_stride, words, scale, least, sums);
    add_four<6, ROWS, VECTORS>(a + i, a_stride, words, scale, least, sums);
    add_four<7, ROWS, VECTORS>(a + i, a_stride, words, scale, least, sums);
  }
#pragma GCC unroll 2
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
      float* to = c + r * c_stride + v * LANES;
      store(to, fresh ? sums[r][v] : load(to) + sums[r][v]);
    }
}

template <int J>
INLINE void unpack_four(const uint32_t* words, F scale, F least, float* to) {
#pragma GCC unroll 4
  for (int o = 0; o < 4; ++o)
    store(to + (4 * J + o) * PANEL, raised<J>(words + (1 + o) * PANEL) * (scale * lowered<J>()) + least);
}

// [k, 16] weights of a slice of a panel, for a tile of float32.
static void unpack_int4(int64_t k, const uint32_t* b, float* to) {
  for (int64_t i = 0; i < k; i += INT4_GROUP, b += INT4_WORDS, to += INT4_GROUP * PANEL)
    for (int v = 0; v < PANEL; v += LANES) {
      const U ends = load_words(b + v);
      const F scale = (F)(ends & 0xffff0000u), least = (F)(ends << 16);
      unpack_four<0>(b + v, scale, least, to + v);
      unpack_four<1>(b + v, scale, least, to + v);
      unpack_four<2>(b + v, scale, least, to + v);
      unpack_four<3>(b + v, scale, least, to + v);
      unpack_four<4>(b + v, scale, least, to + v);
      unpack_four<5>(b + v, scale, least, to + v);
      unpack_four<6>(b + v, scale, least, to + v);
      unpack_four<7>(b + v, scale, least, to + v);
    }
}

}  // namespace OCTAVO_ISA
