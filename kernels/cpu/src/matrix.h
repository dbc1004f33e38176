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

// 16 int8 in the order of their columns; their scale is the caller's.
INLINE void load_panel_row(const int8_t* from, F row[PANEL_VECTORS]) {
  for (int v = 0; v < PANEL_VECTORS; ++v) row[v] = load(from + v * LANES);
}

// Memory to fetch while a tile is computed: `step` bytes per row of the panel, in each of the tile's panels.
struct Ahead {
  const char* from;
  int64_t step;
};

// c[ROWS, PANELS * 16] (+)= a[ROWS, k] b[k, 16], for panels of b that lie b_panel elements apart. Every element is one
// chain of multiply-adds in the order of k, whatever ROWS and PANELS are, added to c at the end: so a row's result does
// not depend on the rows beside it.
template <typename W, int ROWS, int PANELS, bool PREFETCH>
static void tile(int64_t k, const float* a, int64_t a_stride, const W* b, int64_t b_stride, int64_t b_panel, float* c,
                 int64_t c_stride, bool fresh, Ahead ahead) {
  constexpr int VECTORS = PANELS * PANEL_VECTORS;
  F sums[ROWS][VECTORS];
  const float* row[ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    row[r] = a + r * a_stride;
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) sums[r][v] = F{};
  }
#pragma GCC unroll 2
  for (int64_t i = 0; i < k; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p) {
      F columns[PANEL_VECTORS];
      load_panel_row(b + p * b_panel, columns);
      if (PREFETCH) __builtin_prefetch(ahead.from + p * b_panel * (int64_t)sizeof(W));
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        F factor = splat(row[r][i]);
#pragma GCC unroll 4
        for (int v = 0; v < PANEL_VECTORS; ++v) sums[r][p * PANEL_VECTORS + v] += factor * columns[v];
      }
    }
    if (PREFETCH) ahead.from += ahead.step;
    b += b_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) {
      float* to = c + r * c_stride + v * LANES;
      store(to, fresh ? sums[r][v] : load(to) + sums[r][v]);
    }
}

#define OCTAVO_ROWS_CASE(n)                                                                                          \
  case n:                                                                                                            \
    return tile<W, n, 1, PREFETCH>(k, a, a_stride, b, b_stride, 0, c, c_stride, fresh, ahead);

template <typename W, bool PREFETCH>
static void tile_of(int rows, int64_t k, const float* a, int64_t a_stride, const W* b, int64_t b_stride, float* c,
                    int64_t c_stride, bool fresh, Ahead ahead = {0, 0}) {
  switch (rows) {
    OCTAVO_ROWS_CASE(1)
    OCTAVO_ROWS_CASE(2)
    OCTAVO_ROWS_CASE(3)
    OCTAVO_ROWS_CASE(4)
    OCTAVO_ROWS_CASE(5)
    OCTAVO_ROWS_CASE(6)
#if LANES == 16
    OCTAVO_ROWS_CASE(7)
    OCTAVO_ROWS_CASE(8)
    OCTAVO_ROWS_CASE(9)
    OCTAVO_ROWS_CASE(10)
    OCTAVO_ROWS_CASE(11)
    OCTAVO_ROWS_CASE(12)
    OCTAVO_ROWS_CASE(13)
    OCTAVO_ROWS_CASE(14)
#endif
  }
}

#undef OCTAVO_ROWS_CASE

}  // namespace OCTAVO_ISA
