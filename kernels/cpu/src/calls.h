// The arguments of every kernel, as plain structs that ctypes fills; and the table of one instruction set's kernels.
#pragma once

#include <stdint.h>

enum Type : int64_t {
  FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, FLOAT8_E4M3 = 3, FLOAT8_E5M2 = 4,
  INT8 = 16, INT4 = 17,  // weights only
};

// What a gated product makes of its two halves: gating(gate) * up.
enum Gating : int64_t { NO_GATE = 0, SILU = 1, GELU_TANH = 2 };

// Kernels return OK or, with nothing written, BAD_INDEX when an index of the caller points outside the pool.
// NO_MEMORY: there was none for scratch; what the call writes is then left in part.
enum Status : int64_t { OK = 0, BAD_INDEX = 1, NO_MEMORY = 2 };

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
  int64_t tokens, sequences, table_width;
  int64_t heads, kv_heads, head_dim, block_size;
  int64_t window;  // 0: none
  double scale, soft_cap;  // soft_cap 0: none
  const float* sinks;      // [heads] or null
  const float* kv_scales;  // [2, kv_heads] with an 8-bit pool, otherwise null
  int64_t threads;
};

struct Linear {
  const void* input;   // [rows, in] of value_type, contiguous
  void* output;        // [rows, out] of output_type, contiguous
  const void* panels;  // [panel_count, in, 16] of weight_type; INT4: see int4.h
  const float* bias;   // [panel_count * 16] or null
  const float* scales;  // [panel_count * 16] with INT8: what a weight of 1 stands for
  int64_t value_type, output_type, weight_type;
  int64_t rows, in, out, panel_count;
  int64_t gating;  // with a gate, panels alternate between gate and up
  int64_t threads;
};

struct Embedding {
  const int64_t* ids;  // [tokens]
  void* output;        // [tokens, in] of output_type
  const void* panels;  // as of a product
  const float* scales;
  int64_t output_type, weight_type;
  int64_t tokens, in, out, threads;
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

struct DecoderLayer {
  // Of value_type, [hidden]; query_norm and key_norm [head_dim], these and the after_* may be null.
  const void *attention_norm, *query_norm, *key_norm, *after_attention_norm, *ffn_norm, *after_ffn_norm;
  Linear qkv, attention_out, gate_up, down;  // without input, output, rows and threads
  int64_t window;    // 0: none
  int64_t rotation;  // which of the step's
};

// Consecutive layers of a decoder on one step's tokens. Of `attention` and `write` what differs from layer to layer is
// filled in here: where q, k, v, the output and the layer's part of the pool lie, window and rotation.
struct Decoder {
  const DecoderLayer* layers;
  int64_t count;
  void* hidden;  // [rows, width] of value_type: embeddings at first, then the residual stream without the last delta
  void* delta;   // as hidden, what the last layer's product adds to it
  int64_t value_type, rows, width;
  double epsilon;
  const float* const* cosines;  // [rotations] of [rows, half]
  const float* const* sines;
  int64_t layer_bytes;  // from a layer's part of a block to the next layer's
  int64_t threads;
  Attention attention;
  Write write;
};

// A decoder from token ids to logits.
struct Model {
  Embedding embedding;  // its output is the decoder's hidden state
  double factor;        // embeddings are multiplied by it
  Decoder decoder;      // its cosines and sines have a row for each position instead of each token
  const int64_t* positions;  // [tokens]
  int64_t rotations, rotation_rows;
  const int64_t* logits_at;  // [output.rows], tokens whose logits are wanted; null: all
  const void* norm;          // [width] of the decoder's value_type
  Linear output;             // without input
};

struct Kernels {
  const char* isa;
  int64_t (*attention)(const Attention*);
  int64_t (*linear)(const Linear*);
  int64_t (*embedding)(const Embedding*);
  int64_t (*add_rms_norm)(const Norm*);
  int64_t (*silu_mul)(const Gate*);
  int64_t (*write)(const Write*);
  int64_t (*top_k)(const TopK*);
  int64_t (*decoder)(const Decoder*);
  int64_t (*model)(const Model*);
};
