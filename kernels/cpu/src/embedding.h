// Rows of packed weights: a row is a column of its panel.
#pragma once

#include "calls.h"
#include "int4.h"
#include "rows.h"

namespace OCTAVO_ISA {

INLINE float unpacked(const float* panel, int64_t k, int64_t column) { return panel[k * PANEL + column]; }

INLINE float unpacked(const bf16* panel, int64_t k, int64_t column) {
  const int64_t half = PANEL / 2;  // see load_panel_row
  return widen(panel[k * PANEL + (column < half ? 2 * column : 2 * (column - half) + 1)]);
}

INLINE float unpacked(const int8_t* panel, int64_t k, int64_t column) { return (float)panel[k * PANEL + column]; }

INLINE float unpacked(const int4* panel, int64_t k, int64_t column) {
  const uint32_t* group = (const uint32_t*)panel + k / INT4_GROUP * INT4_WORDS;
  const uint32_t word = group[(1 + k % 4) * PANEL + column];
  return (float)(word >> k % INT4_GROUP / 4 * 4 & 15u) * widen(bf16{(uint16_t)(group[column] >> 16)}) +
         widen(bf16{(uint16_t)group[column]});
}

template <typename V, typename W>
static void embed(const Embedding& call) {
  share_rows(useful_threads(call.threads, call.tokens * call.in), call.tokens, [&](int64_t t) {
    const int64_t panel = call.ids[t] / PANEL, column = call.ids[t] % PANEL;
    const W* weights = (const W*)((const char*)call.panels + panel * call.in * row_bytes<W>());
    const float scale = call.scales ? call.scales[call.ids[t]] : 1.0f;
    V* to = (V*)call.output + t * call.in;
    for (int64_t k = 0; k < call.in; ++k) narrow(to + k, unpacked(weights, k, column) * scale);
  });
}

template <typename V>
static void embed_into(const Embedding& call) {
  switch (call.weight_type) {
    case FLOAT32:
      return embed<V, float>(call);
    case BFLOAT16:
      return embed<V, bf16>(call);
    case INT8:
      return embed<V, int8_t>(call);
    case INT4:
      return embed<V, int4>(call);
  }
}

static int64_t embedding(const Embedding* call) {
  for (int64_t t = 0; t < call->tokens; ++t)
    if (call->ids[t] < 0 || call->ids[t] >= call->out) return BAD_INDEX;
  call->output_type == FLOAT32 ? embed_into<float>(*call) : embed_into<bf16>(*call);
  return OK;
}

}  // namespace OCTAVO_ISA
