// Work on one row of activations after the other: residual add with RMSNorm, and SiLU(gate) * up.
#pragma once

#include "calls.h"
#include "vectors.h"

namespace OCTAVO_ISA {

// Below this many elements a second thread costs more than it saves.
constexpr int64_t ELEMENTS_PER_THREAD = 16384;

INLINE int64_t useful_threads(int64_t threads, int64_t elements) {
  const int64_t useful = elements / ELEMENTS_PER_THREAD;
  return useful < 1 ? 1 : useful < threads ? useful : threads;
}

template <typename V>
static void norm_row(const Norm& call, int64_t r) {
  const int64_t width = call.width, whole = width / LANES * LANES;
  V* hidden = (V*)call.hidden + r * width;
  const V* delta = call.delta ? (const V*)call.delta + r * width : 0;
  const V* weight = (const V*)call.weight;
  V* output = (V*)call.output + r * width;
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
  const float factor = 1.0f / __builtin_sqrtf(mean + (float)call.epsilon);
  for (int64_t i = 0; i < whole; i += LANES) store(output + i, load(hidden + i) * factor * load(weight + i));
  for (int64_t i = whole; i < width; ++i) narrow(output + i, widen(hidden[i]) * factor * widen(weight[i]));
}

static int64_t add_rms_norm(const Norm* call) {
  const int64_t threads = useful_threads(call->threads, call->rows * call->width);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t r = 0; r < call->rows; ++r) call->type == FLOAT32 ? norm_row<float>(*call, r) : norm_row<bf16>(*call, r);
  return OK;
}

template <typename V>
static void gate_row(const Gate& call, int64_t r) {
  const int64_t width = call.width, whole = width / LANES * LANES;
  const V* gate = (const V*)call.gate_up + r * 2 * width;
  const V* up = gate + width;
  V* output = (V*)call.output + r * width;
  for (int64_t i = 0; i < whole; i += LANES) {
    F value = load(gate + i);
    store(output + i, value / (1.0f + exponential(-value)) * load(up + i));
  }
  for (int64_t i = whole; i < width; ++i) {
    F value = splat(widen(gate[i]));
    narrow(output + i, (value / (1.0f + exponential(-value)))[0] * widen(up[i]));
  }
}

static int64_t silu_mul(const Gate* call) {
  const int64_t threads = useful_threads(call->threads, call->rows * call->width);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t r = 0; r < call->rows; ++r) call->type == FLOAT32 ? gate_row<float>(*call, r) : gate_row<bf16>(*call, r);
  return OK;
}

}  // namespace OCTAVO_ISA
