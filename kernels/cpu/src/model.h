// A decoder from token ids to logits in one call. While weights stream through the caches nothing else stays in them, so
// every operation that Python calls in between costs what it takes to read its code from memory.
#pragma once

#include <string.h>

#include "decoder.h"
#include "embedding.h"

namespace OCTAVO_ISA {

constexpr int64_t MAX_ROTATIONS = 8;

static thread_local Scratch model_rotations;
static thread_local Scratch model_rows;

// Each token's row of a table by position.
INLINE float* rows_at(const float* table, const Model& step, int64_t half, float* to) {
  for (int64_t t = 0; t < step.decoder.rows; ++t) memcpy(to + t * half, table + step.positions[t] * half, half * sizeof(float));
  return to + step.decoder.rows * half;
}

static int64_t rotated_decoder(const Model& step) {
  const int64_t half = step.decoder.write.half, rows = step.decoder.rows;
  const float *cosines[MAX_ROTATIONS], *sines[MAX_ROTATIONS];
  if (step.rotations > MAX_ROTATIONS) return NO_MEMORY;
  for (int64_t t = 0; t < rows; ++t)
    if (step.positions[t] < 0 || step.positions[t] >= step.rotation_rows) return BAD_INDEX;
  float* next = model_rotations.floats(2 * step.rotations * rows * half);
  if (!next) return NO_MEMORY;
  for (int64_t i = 0; i < step.rotations; ++i) {
    cosines[i] = next;
    next = rows_at(step.decoder.cosines[i], step, half, next);
    sines[i] = next;
    next = rows_at(step.decoder.sines[i], step, half, next);
  }
  Decoder call = step.decoder;
  call.cosines = cosines;
  call.sines = sines;
  return decoder(&call);
}

template <typename V>
static int64_t model_of(const Model& step) {
  const int64_t rows = step.decoder.rows, width = step.decoder.width, wanted = step.output.rows;
  V *hidden = (V*)step.decoder.hidden, *delta = (V*)step.decoder.delta;
  for (int64_t i = 0; step.logits_at && i < wanted; ++i)
    if (step.logits_at[i] < 0 || step.logits_at[i] >= rows) return BAD_INDEX;
  if (const int64_t status = embedding(&step.embedding)) return status;
  if (step.factor != 1.0)
    for (int64_t i = 0; i < rows * width; ++i) narrow(hidden + i, widen(hidden[i]) * (float)step.factor);
  if (const int64_t status = rotated_decoder(step)) return status;
  if (wanted == 0) return OK;

  V* last = (V*)model_rows.take(wanted * width * sizeof(V));
  if (!last) return NO_MEMORY;
  share_rows(useful_threads(step.decoder.threads, wanted * width), wanted, [&](int64_t i) {
    const int64_t at = (step.logits_at ? step.logits_at[i] : i) * width;
    V* row = last + i * width;
    memcpy(row, hidden + at, width * sizeof(V));
    norm_row(row, delta + at, (const V*)step.norm, row, width, step.decoder.epsilon);
  });
  Linear call = step.output;
  call.input = last;
  return linear(&call);
}

static int64_t model(const Model* step) {
  if (step->decoder.rows == 0) return OK;
  return step->decoder.value_type == FLOAT32 ? model_of<float>(*step) : model_of<bf16>(*step);
}

}  // namespace OCTAVO_ISA
