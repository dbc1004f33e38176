// Rows of queries and outputs, [head_dim], in float32 whatever type the call has them in.
#pragma once

#include "formats.h"

namespace OCTAVO_ISA {

// The query of one head, times the scale of the scores, and of the keys where K has one.
template <typename K>
static void read_query(const Attention& call, int64_t token, int64_t head, float* to) {
  float scale = (float)call.scale;
  if (SCALED<K>) scale *= call.kv_scales[head / (call.heads / call.kv_heads)];
  by_value_type(call.query_type, [&](auto* type) {
    const auto* from = (decltype(type))call.query + token * call.token_stride + head * call.head_dim;
    for (int64_t d = 0; d < call.head_dim; d += LANES) store(to + d, load(from + d) * scale);
  });
}

INLINE void write_output(const Attention& call, int64_t token, int64_t head, const float* row) {
  by_value_type(call.query_type, [&](auto* type) {
    auto* to = (decltype(type))call.output + (token * call.heads + head) * call.head_dim;
    for (int64_t d = 0; d < call.head_dim; d += LANES) store(to + d, load(row + d));
  });
}

}  // namespace OCTAVO_ISA
