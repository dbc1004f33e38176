// Work on one row of activations after the other: residual add with RMSNorm, and SiLU(gate) * up.
#pragma once

#include "calls.h"
#include "team.h"

namespace OCTAVO_ISA {

// Below this many elements a second thread costs more than it saves.
constexpr int64_t ELEMENTS_PER_THREAD = 16384;

INLINE int64_t useful_threads(int64_t threads, int64_t elements) {
  const int64_t useful = elements / ELEMENTS_PER_THREAD;
  return useful < 1 ? 1 : useful < threads ? useful : threads;
}

// Rows in turn, some to a task: taking one costs as much as a short row.
template <typename Work>
INLINE void share_rows(int64_t threads, int64_t rows, const Work& row) {
  const int64_t per_task = rows / (threads * 4) + 1;
  share(threads, (rows + per_task - 1) / per_task, [&](int64_t task) {
    const int64_t end = rows < (task + 1) * per_task ? rows : (task + 1) * per_task;
    for (int64_t r = task * per_task; r < end; ++r) row(r);
  });
}

// SiLU, or GELU by its tanh: x / 2 (1 + tanh u) = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
INLINE F gated(F x, int64_t gating) {
  const F power = gating == SILU ? x : x * (1.5957691216f + 0.0713548162f * x * x);
  const F product = x / (1.0f + exponential(-power));
  return power < -88.0f ? F{} : product;  // beyond, e^x is capped and x is not
}

// [width] += delta, if there is one, then RMSNorm of it into output, which may be the row itself.
template <typename V>
INLINE void norm_row(V* hidden, const V* delta, const V* weight, V* output, int64_t width, double epsilon) {
  const int64_t whole = width / LANES * LANES;
  F squares = F{};
  float rest = 0;
  for (int64_t i = 0; i < whole; i += LANES) {
    F value = load(hidden + i);
    if (delta) {
      store(hidden + i, value + load(delta + i));
      value = load(hidden + i);  // as the next layer will see it, rounded
    }
    squares += value * value;
  }
  for (int64_t i = whole; i < width; ++i) {
    if (delta) narrow(hidden + i, widen(hidden[i]) + widen(delta[i]));
    rest += widen(hidden[i]) * widen(hidden[i]);
  }
  const float mean = (sum(squares) + rest) / (float)width;
  const float factor = 1.0f / __builtin_sqrtf(mean + (float)epsilon);
  for (int64_t i = 0; i < whole; i += LANES) store(output + i, load(hidden + i) * factor * load(weight + i));
  for (int64_t i = whole; i < width; ++i) narrow(output + i, widen(hidden[i]) * factor * widen(weight[i]));
}

template <typename V>
static void norm_rows(const Norm& call) {
  share_rows(useful_threads(call.threads, call.rows * call.width), call.rows, [&](int64_t r) {
    const int64_t at = r * call.width;
    norm_row((V*)call.hidden + at, call.delta ? (const V*)call.delta + at : 0, (const V*)call.weight,
             (V*)call.output + at, call.width, call.epsilon);
  });
}

static int64_t add_rms_norm(const Norm* call) {
  call->type == FLOAT32 ? norm_rows<float>(*call) : norm_rows<bf16>(*call);
  return OK;
}

template <typename V>
static void gate_row(const Gate& call, int64_t r) {
  const int64_t width = call.width, whole = width / LANES * LANES;
  const V* gate = (const V*)call.gate_up + r * 2 * width;
  const V* up = gate + width;
  V* output = (V*)call.output + r * width;
  for (int64_t i = 0; i < whole; i += LANES) {
    store(output + i, gated(load(gate + i), SILU) * load(up + i));
  }
  for (int64_t i = whole; i < width; ++i) {
    narrow(output + i, gated(splat(widen(gate[i])), SILU)[0] * widen(up[i]));
  }
}

static int64_t silu_mul(const Gate* call) {
  const int64_t threads = useful_threads(call->threads, call->rows * call->width);
  share_rows(threads, call->rows, [&](int64_t r) {
    call->type == FLOAT32 ? gate_row<float>(*call, r) : gate_row<bf16>(*call, r);
  });
  return OK;
}

}  // namespace OCTAVO_ISA
