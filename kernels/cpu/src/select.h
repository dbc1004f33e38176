// The k largest logits of a row, largest first; equal ones in the order of their indices; NaN counts as the largest.
#pragma once

#include "rows.h"

namespace OCTAVO_ISA {

INLINE bool precedes(float a, int64_t i, float b, int64_t j) {
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan || b_nan) return a_nan && (!b_nan || i < j);
  return a > b || (a == b && i < j);
}

// Sorted insertion into the row's k best so far; `value` is known to belong among them.
static void insert(float* values, int64_t* indices, int64_t filled, int64_t k, float value, int64_t index) {
  int64_t at = filled < k ? filled : k - 1;
  for (; at > 0 && precedes(value, index, values[at - 1], indices[at - 1]); --at) {
    values[at] = values[at - 1];
    indices[at] = indices[at - 1];
  }
  values[at] = value;
  indices[at] = index;
}

static void top_k_row(const TopK& call, int64_t r) {
  const float* logits = call.logits + r * call.width;
  float* values = call.values + r * call.k;
  int64_t* indices = call.indices + r * call.k;
  constexpr int64_t STRIDE = 4 * LANES;
  int64_t filled = 0, i = 0;
  while (i < call.width) {
    if (filled == call.k && i + STRIDE <= call.width) {
      // Most stretches hold nothing above the smallest of the k best: four vectors at a time are passed over.
      const F bar = splat(values[call.k - 1]);
      I above = {};
      for (int v = 0; v < STRIDE; v += LANES) {
        F logit = load(logits + i + v);
        above |= (logit > bar) | (logit != logit);
      }
      int64_t any = 0;
      for (int lane = 0; lane < LANES; ++lane) any |= above[lane];
      if (!any) {
        i += STRIDE;
        continue;
      }
    }
    const int64_t end = i + STRIDE < call.width ? i + STRIDE : call.width;
    for (; i < end; ++i)
      if (filled < call.k || precedes(logits[i], i, values[call.k - 1], indices[call.k - 1])) {
        insert(values, indices, filled, call.k, logits[i], i);
        filled += filled < call.k;
      }
  }
}

static int64_t top_k(const TopK* call) {
  const int64_t threads = useful_threads(call->threads, call->rows * call->width);
  share(threads, call->rows, [&](int64_t r) { top_k_row(*call, r); });
  return OK;
}

}  // namespace OCTAVO_ISA
