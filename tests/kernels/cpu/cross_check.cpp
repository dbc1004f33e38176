// Runs kernels of one instruction set against loops in double precision; prints the worst relative errors.
// For processors that are not at hand: compiled for them, run by an emulator.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include "calls.h"

namespace OCTAVO_ISA {
extern const Kernels kernels;
}

static float drawn() { return (float)rand() / (float)RAND_MAX * 2 - 1; }

static double worst;
static void compare(double actual, double exact, double scale) {
  const double error = fabs(actual - exact) / scale;
  if (!(error <= worst)) worst = error;  // NaN stays
}

// Weights in any storage: `wide` holds what the packed ones stand for, [outputs, in].
static void check_product(int64_t rows, int64_t in, int64_t out, const std::vector<float>& wide, const void* packed,
                          const float* scales, Type type) {
  std::vector<float> x(rows * in), y(rows * out);
  for (float& value : x) value = drawn();
  const int64_t panels = (out + 15) / 16;
  Linear call = {};
  call.input = x.data();
  call.output = y.data();
  call.panels = packed;
  call.scales = scales;
  call.weight_type = type;
  call.rows = rows;
  call.in = in;
  call.out = out;
  call.panel_count = panels;
  call.threads = 1;
  OCTAVO_ISA::kernels.linear(&call);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < out; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < in; ++k) sum += (double)x[r * in + k] * wide[n * in + k];
      compare(y[r * out + n], sum, sqrt((double)in));
    }
}

static void check_linear(int64_t rows, int64_t in, int64_t out) {
  const int64_t panels = (out + 15) / 16, count = panels * 16 * in;
  std::vector<float> wide(count), packed(count);
  for (float& value : wide) value = drawn();
  auto place = [&](int64_t n, int64_t k) { return (n / 16 * in + k) * 16 + n % 16; };
  for (int64_t n = 0; n < panels * 16; ++n)
    for (int64_t k = 0; k < in; ++k) packed[place(n, k)] = wide[n * in + k];
  check_product(rows, in, out, wide, packed.data(), 0, FLOAT32);

  std::vector<int8_t> bytes(count);
  std::vector<float> scales(panels * 16);
  for (float& scale : scales) scale = (drawn() + 1.5f) / 320;  // of weights up to 1
  for (int64_t n = 0; n < panels * 16; ++n)
    for (int64_t k = 0; k < in; ++k) {
      const int8_t q = (int8_t)(rand() % 255 - 127);
      bytes[place(n, k)] = q;
      wide[n * in + k] = q * scales[n];
    }
  check_product(rows, in, out, wide, bytes.data(), scales.data(), INT8);

  const int64_t groups = in / 32;
  std::vector<uint32_t> words(panels * groups * 80);
  for (int64_t n = 0; n < panels * 16; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      uint32_t* group = &words[(n / 16 * groups + g) * 80];
      group[n % 16] = 0x3d80bf00u;  // bfloat16 1 / 16, and -1 / 2
      for (int64_t i = 0; i < 32; ++i) {
        const uint32_t q = rand() % 16;
        group[(1 + i % 4) * 16 + n % 16] |= q << i / 4 * 4;
        wide[n * groups * 32 + g * 32 + i] = q / 16.0f - 0.5f;
      }
    }
  check_product(rows, groups * 32, out, wide, words.data(), 0, INT4);
}

static void check_attention(int32_t tokens, int32_t context, int64_t dim, int64_t window) {
  const int64_t heads = 6, kv_heads = 2, block = 7, blocks = (context + block - 1) / block;
  const int64_t head_stride = block * dim, value_offset = kv_heads * head_stride, block_stride = 2 * value_offset;
  std::vector<float> pool((blocks + 1) * block_stride, NAN), query(tokens * heads * dim), output(query.size());
  std::vector<int32_t> table;
  for (int64_t b = 0; b < blocks; ++b) table.push_back((int32_t)(blocks - b));
  auto row = [&](int64_t key, int64_t head, int64_t side) {
    return &pool[table[key / block] * block_stride + side * value_offset + head * head_stride + key % block * dim];
  };
  for (int64_t key = 0; key < context; ++key)
    for (int64_t head = 0; head < kv_heads; ++head)
      for (int64_t d = 0; d < dim; ++d) row(key, head, 0)[d] = drawn(), row(key, head, 1)[d] = drawn();
  for (float& value : query) value = drawn();
  const int32_t starts[] = {0, tokens}, lengths[] = {context};
  Attention call = {};
  call.query = query.data();
  call.output = output.data();
  call.keys = pool.data();
  call.value_offset = value_offset;
  call.block_stride = block_stride;
  call.head_stride = head_stride;
  call.num_blocks = blocks + 1;
  call.token_stride = heads * dim;
  call.query_starts = starts;
  call.context_lengths = lengths;
  call.block_tables = table.data();
  call.tokens = tokens;
  call.sequences = 1;
  call.table_width = blocks;
  call.heads = heads;
  call.kv_heads = kv_heads;
  call.head_dim = dim;
  call.block_size = block;
  call.window = window;
  call.scale = 0.5;
  call.threads = 1;
  OCTAVO_ISA::kernels.attention(&call);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t last = context - tokens + t, first = window && last >= window ? last - window + 1 : 0;
      std::vector<double> weight;
      double top = -INFINITY, total = 0;
      for (int64_t key = first; key <= last; ++key) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += (double)query[(t * heads + h) * dim + d] * row(key, h / 3, 0)[d];
        weight.push_back(score * 0.5);
        top = fmax(top, score * 0.5);
      }
      for (double& one : weight) total += one = exp(one - top);
      for (int64_t d = 0; d < dim; ++d) {
        double sum = 0;
        for (int64_t key = first; key <= last; ++key) sum += weight[key - first] / total * row(key, h / 3, 1)[d];
        compare(output[(t * heads + h) * dim + d], sum, 1);
      }
    }
}

int main() {
  for (int64_t rows : {1, 2, 5, 7, 100}) check_linear(rows, 300, 50);
  const double linear = worst;
  worst = 0;
  for (int64_t dim : {32, 80}) {
    for (int32_t context : {1, 31, 257}) check_attention(1, context, dim, 0);
    check_attention(1, 300, dim, 17);
    check_attention(70, 133, dim, 0);
    check_attention(5, 40, dim, 9);
  }
  std::vector<float> logits(1001), values(5);
  std::vector<int64_t> indices(5);
  for (float& value : logits) value = drawn();
  logits[700] = 3;
  const TopK call = {logits.data(), values.data(), indices.data(), 1, 1001, 5, 1};
  OCTAVO_ISA::kernels.top_k(&call);
  printf("%s linear %.1e attention %.1e top %lld\n", OCTAVO_ISA::kernels.isa, linear, worst, (long long)indices[0]);
}
