// Where a sequence's K and V lie: the block table followed to the rows of single keys.
#pragma once

#include "formats.h"

namespace OCTAVO_ISA {

constexpr int64_t STREAMS = 8;
constexpr int64_t RUN = 16;               // keys of a stream
constexpr int64_t SPAN = STREAMS * RUN;  // keys that lie in streams together

// Rows of K (or V) of the keys [first, end) of a sequence.
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
}

// The same rows in an order that memory is fastest in: eight runs of keys in turns, each usually another page. The
// hardware fetches ahead within a page, slowly at first, and so has eight pages in flight instead of one.
//
//     keys of a span    0 1 .. 15 | 16 .. 31 | .. | 112 .. 127         rows    0 16 32 .. 112 | 1 17 33 .. 113 | 2 ..
template <typename K>
INLINE void look_up_in_streams(const Attention& call, const int32_t* table, const K* plane, int64_t first, int64_t end,
                               const K** rows) {
  const K* span[SPAN];
  for (int64_t from = first; from < end; from += SPAN) {
    const int64_t here = end - from < SPAN ? end - from : SPAN, run = here / STREAMS;
    look_up(call, table, plane, from, from + here, span);
    for (int64_t i = 0; i < run; ++i)
#pragma GCC unroll 8
      for (int64_t stream = 0; stream < STREAMS; ++stream) *rows++ = span[stream * run + i];
    for (int64_t i = run * STREAMS; i < here; ++i) *rows++ = span[i];
  }
}

}  // namespace OCTAVO_ISA
