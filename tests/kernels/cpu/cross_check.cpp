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

static void check_linear(int64_t rows, int64_t in, int64_t out) {
  const int64_t panels = (out + 15) / 16;
  std::vector<float> x(rows * in), w(panels * 16 * in), packed(w.size()), y(rows * out);
  for (float& value : x) value = drawn();
  for (float& value : w) value = drawn();
  for (int64_t p = 0; p < panels; ++p)
    for (int64_t k = 0; k < in; ++k)
      for (int64_t c = 0; c < 16; ++c) packed[(p * in + k) * 16 + c] = w[(p * 16 + c) * in + k];
  const Linear call = {x.data(), y.data(), packed.data(), 0, FLOAT32, FLOAT32, rows, in, out, panels, 0, 1};
  OCTAVO_ISA::kernels.linear(&call);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < out; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < in; ++k) sum += (double)x[r * in + k] * w[n * in + k];
      compare(y[r * out + n], sum, sqrt((double)in));
    }
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
  for (int64_t rows : {1, 5, 7, 100}) check_linear(rows, 300, 50);
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
