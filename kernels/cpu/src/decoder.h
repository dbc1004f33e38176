// The layers of a decoder in one call: between two kernels nothing runs but the next kernel.
#pragma once

#include "attention.h"
#include "linear.h"
#include "scratch.h"
#include "write.h"

namespace OCTAVO_ISA {

static thread_local Scratch decoder_rows;

INLINE int64_t product(Linear call, const void* input, void* output, const Decoder& step) {
  call.input = input;
  call.output = output;
  call.rows = step.rows;
  call.threads = step.threads;
  return linear(&call);
}

INLINE void norm(const Decoder& step, void* hidden, const void* delta, const void* weight, void* output) {
  const Norm call = {hidden, delta, weight, output, step.value_type, step.rows, step.width, step.epsilon, step.threads};
  add_rms_norm(&call);
}

// The query and key heads of a fused projection, each normed by itself in its place.
template <typename V>
static void norm_heads(const Decoder& step, const DecoderLayer& layer, V* qkv) {
  const int64_t heads = step.attention.heads, kv_heads = step.attention.kv_heads, dim = step.attention.head_dim;
  const int64_t stride = (heads + 2 * kv_heads) * dim;
  share_rows(useful_threads(step.threads, step.rows * stride), step.rows, [&](int64_t r) {
    V* head = qkv + r * stride;
    for (int64_t h = 0; h < heads + kv_heads; ++h, head += dim)
      norm_row(head, (const V*)0, (const V*)(h < heads ? layer.query_norm : layer.key_norm), head, dim, step.epsilon);
  });
}

template <typename V>
static int64_t decoder_layer(const Decoder& step, int64_t index, const V* delta_before, V* normed, V* qkv, V* attended,
                             V* gated_up) {
  const DecoderLayer& layer = step.layers[index];
  const int64_t heads = step.attention.heads, kv_heads = step.attention.kv_heads, dim = step.attention.head_dim;
  V* delta = (V*)step.delta;
  norm(step, step.hidden, delta_before, layer.attention_norm, normed);
  if (const int64_t status = product(layer.qkv, normed, qkv, step)) return status;
  if (layer.query_norm) norm_heads(step, layer, qkv);

  Write write_call = step.write;
  write_call.query = qkv;
  write_call.key = qkv + heads * dim;
  write_call.value = qkv + (heads + kv_heads) * dim;
  write_call.cosine = step.cosines[layer.rotation];
  write_call.sine = step.sines[layer.rotation];
  write_call.keys = (char*)step.write.keys + index * step.layer_bytes;
  if (const int64_t status = write(&write_call)) return status;

  Attention attention_call = step.attention;
  attention_call.query = qkv;
  attention_call.output = attended;
  attention_call.keys = (const char*)step.attention.keys + index * step.layer_bytes;
  attention_call.window = layer.window;
  if (const int64_t status = attention(&attention_call)) return status;

  if (const int64_t status = product(layer.attention_out, attended, delta, step)) return status;
  if (layer.after_attention_norm) norm(step, delta, 0, layer.after_attention_norm, delta);
  norm(step, step.hidden, delta, layer.ffn_norm, normed);
  if (const int64_t status = product(layer.gate_up, normed, gated_up, step)) return status;
  if (const int64_t status = product(layer.down, gated_up, delta, step)) return status;
  if (layer.after_ffn_norm) norm(step, delta, 0, layer.after_ffn_norm, delta);
  return OK;
}

template <typename V>
static int64_t decoder_of(const Decoder& step) {
  const Attention& a = step.attention;
  int64_t ffn = 0;
  for (int64_t i = 0; i < step.count; ++i) ffn = step.layers[i].gate_up.out > ffn ? step.layers[i].gate_up.out : ffn;
  const int64_t widths[] = {step.width, (a.heads + 2 * a.kv_heads) * a.head_dim, a.heads * a.head_dim, ffn};
  V* parts[4];
  int64_t total = 0;
  for (int64_t width : widths) total += (step.rows * width + 31) / 32 * 32;
  V* next = (V*)decoder_rows.take(total * sizeof(V));
  if (!next) return NO_MEMORY;
  for (int i = 0; i < 4; ++i) {
    parts[i] = next;
    next += (step.rows * widths[i] + 31) / 32 * 32;
  }
  for (int64_t i = 0; i < step.count; ++i)
    if (const int64_t status = decoder_layer(step, i, i ? (const V*)step.delta : 0, parts[0], parts[1], parts[2], parts[3]))
      return status;
  return OK;
}

static int64_t decoder(const Decoder* step) {
  return step->value_type == FLOAT32 ? decoder_of<float>(*step) : decoder_of<bf16>(*step);
}

}  // namespace OCTAVO_ISA
