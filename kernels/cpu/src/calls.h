// The arguments of every kernel, as plain structs that ctypes fills; and the table of one instruction set's kernels.
#pragma once

#include <stdint.h>

enum Type : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, FLOAT8_E4M3 = 3, FLOAT8_E5M2 = 4 };

// Kernels return OK or, when an index of the caller points outside the pool, BAD_INDEX with nothing written.
enum Status : int64_t { OK = 0, BAD_INDEX = 1 };

struct Attention {
  const void* query;   // [tokens, heads, head_dim] of query_type, token_stride elements from token to token
  void* output;        // [tokens, heads, head_dim] of query_type, contiguous
  const void* keys;    // this layer's K of block 0, of pool_type
  int64_t value_offset;  // elements from a K to its V
  int64_t block_stride, head_stride;  // elements; a token's head_dim elements are contiguous, tokens of a head too
  int64_t num_blocks;    // rows of the pool, the null block included
  int64_t query_type, pool_type, token_stride;
  const int32_t* query_starts;     // [sequences + 1]
  const int32_t* context_lengths;  // [sequences]
  const int32_t* block_tables;     // [sequences, table_width]
  int64_t sequences, table_width;
  int64_t heads, kv_heads, head_dim, block_size;
  int64_t window;  // 0: none
  double scale, soft_cap;  // soft_cap 0: none
  const float* sinks;      // [heads] or null
  const float* kv_scales;  // [2, kv_heads] with an 8-bit pool, otherwise null
  int64_t threads;
};

struct Linear {
  const void* input;  // [rows, in] of value_type, contiguous
  void* output;       // [rows, out] of value_type, contiguous
  const void* panels;  // [panel_count, in, 16] of weight_type
  const float* bias;   // [panel_count * 16] or null
  int64_t value_type, weight_type;
  int64_t rows, in, out, panel_count;
  int64_t gated;  // 1: panels alternate between gate and up, and the output is silu(gate) * up
  int64_t threads;
};

struct Norm {
  void* hidden;        // [rows, width], contiguous; delta is added to it in place
  const void* delta;   // as hidden, or null
  const void* weight;  // [width]
  void* output;        // as hidden
  int64_t type, rows, width;
  double epsilon;
  int64_t threads;
};

struct Gate {
  const void* gate_up;  // [rows, 2 * width], contiguous
  void* output;         // [rows, width]
  int64_t type, rows, width, threads;
};

struct Write {
  void* query;        // [tokens, heads, head_dim], rotated in place; null without rotation
  const void* key;    // [tokens, kv_heads, head_dim], left as it is
  const void* value;  // as key; all three of value_type, a token's heads contiguous
  int64_t query_stride, key_stride, value_stride;  // elements from token to token
  const float* cosine;  // [tokens, half], or null: K is written as it is
  const float* sine;
  void* keys;  // this layer's K of block 0, of pool_type
  int64_t value_offset, block_stride, head_stride, num_blocks;
  const int64_t* slots;  // [tokens]
  int64_t value_type, pool_type;
  int64_t tokens, heads, kv_heads, head_dim, half, block_size, threads;
  const float* kv_scales;  // [2, kv_heads] with an 8-bit pool, otherwise null
};

struct TopK {
  const float* logits;  // [rows, width], contiguous
  float* values;        // [rows, k], descending
  int64_t* indices;     // [rows, k]
  int64_t rows, width, k, threads;
};

struct Kernels {
  const char* isa;
  int64_t (*attention)(const Attention*);
  int64_t (*linear)(const Linear*);
  int64_t (*add_rms_norm)(const Norm*);
  int64_t (*silu_mul)(const Gate*);
  int64_t (*write)(const Write*);
  int64_t (*top_k)(const TopK*);
};
