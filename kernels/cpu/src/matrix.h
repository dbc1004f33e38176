// The register tile that every matrix product here is made of.
#pragma once

#include "vectors.h"

namespace OCTAVO_ISA {

constexpr int64_t PANEL = 16;
constexpr int64_t PANEL_VECTORS = PANEL / LANES;

// Rows of a tile: as many accumulators as fit beside one row of the panel.
#if LANES == 16
constexpr int64_t TILE_ROWS = 14;
#else
constexpr int64_t TILE_ROWS = 6;
#endif

INLINE void load_panel_row(const float* from, F row[PANEL_VECTORS]) {
  for (int v = 0; v < PANEL_VECTORS; ++v) row[v] = load(from + v * LANES);
}

// 16 bf16 stored as 8 words, column c in the low and column c + 8 in the high half of word c: two operations widen them.
INLINE void load_panel_row(const bf16* from, F row[PANEL_VECTORS]) {
#if LANES == 16
  typedef uint32_t U8 __attribute__((vector_size(32)));
  U8 words;
  memcpy(&words, from, sizeof words);
  U twice = __builtin_shufflevector(words, words, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
  const U shift = {16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0};
  row[0] = (F)((twice << shift) & 0xffff0000u);
#else
  for (int v = 0; v < PANEL_VECTORS / 2; ++v) {
    U words;
    memcpy(&words, from + v * 2 * LANES, sizeof words);
    row[v] = (F)(words << 16);
    row[v + PANEL_VECTORS / 2] = (F)(words & 0xffff0000u);
  }
#endif
}

// c[ROWS, 16] (+)= a[ROWS, k] b[k, 16]. Every element is one chain of multiply-adds in the order of k, whatever ROWS is,
// added to c at the end: so a row's result does not depend on the rows beside it.
template <typename W, int ROWS, bool PREFETCH>
static void tile(int64_t k, const float* a, int64_t a_stride, const W* b, int64_t b_stride, float* c, int64_t c_stride,
                 bool fresh) {
  F sums[ROWS][PANEL_VECTORS];
  const float* row[ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    row[r] = a + r * a_stride;
#pragma GCC unroll 4
    for (int v = 0; v < PANEL_VECTORS; ++v) sums[r][v] = F{};
  }
#pragma GCC unroll 2
  for (int64_t i = 0; i < k; ++i) {
    F columns[PANEL_VECTORS];
    load_panel_row(b, columns);
    if (PREFETCH) __builtin_prefetch((const char*)b + 8192);
    b += b_stride;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      F factor = splat(row[r][i]);
#pragma GCC unroll 4
      for (int v = 0; v < PANEL_VECTORS; ++v) sums[r][v] += factor * columns[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < PANEL_VECTORS; ++v) {
      float* to = c + r * c_stride + v * LANES;
      store(to, fresh ? sums[r][v] : load(to) + sums[r][v]);
    }
}

template <typename W, bool PREFETCH>
static void tile_of(int rows, int64_t k, const float* a, int64_t a_stride, const W* b, int64_t b_stride, float* c,
                    int64_t c_stride, bool fresh) {
  switch (rows) {
#define ROWS_CASE(n)                                                          \
  case n:                                                                     \
    return tile<W, n, PREFETCH>(k, a, a_stride, b, b_stride, c, c_stride, fresh);
    ROWS_CASE(1)
    ROWS_CASE(2)
    ROWS_CASE(3)
    ROWS_CASE(4)
    ROWS_CASE(5)
    ROWS_CASE(6)
#if LANES == 16
    ROWS_CASE(7)
    ROWS_CASE(8)
    ROWS_CASE(9)
    ROWS_CASE(10)
    ROWS_CASE(11)
    ROWS_CASE(12)
    ROWS_CASE(13)
    ROWS_CASE(14)
#endif
#undef ROWS_CASE
  }
}

}  // namespace OCTAVO_ISA
