// Moves whole blocks: one launch for all pairs, one row of thread blocks per pair.
//
//   pairs             [num_pairs][2] of (source block, destination block); destinations are distinct, and no block is
//                     both source and destination, so threads need no order
//   words_per_block   words of 16 bytes or 1 byte; blocks lie one after the other on both sides
//
// Either side may be pinned host memory, which a GPU addresses like its own.
// No <cstdint>: NVRTC has none.

template <typename Word>
__device__ __forceinline__ void move_blocks(
    Word* __restrict__ destination, const Word* __restrict__ source, const long long* __restrict__ pairs,
    long long num_pairs, long long words_per_block) {
  const long long stride = (long long)gridDim.x * blockDim.x;
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (long long pair = blockIdx.y; pair < num_pairs; pair += gridDim.y) {
    const Word* from = source + pairs[2 * pair] * words_per_block;
    Word* to = destination + pairs[2 * pair + 1] * words_per_block;
    long long word = first;
    // Four loads are under way before the first store waits for its own.
    for (; word + 3 * stride < words_per_block; word += 4 * stride) {
      const Word a = from[word], b = from[word + stride], c = from[word + 2 * stride], d = from[word + 3 * stride];
      to[word] = a;
      to[word + stride] = b;
      to[word + 2 * stride] = c;
      to[word + 3 * stride] = d;
    }
    for (; word < words_per_block; word += stride) to[word] = from[word];
  }
}

extern "C" __global__ void move_blocks_by_16(
    int4* destination, const int4* source, const long long* pairs, long long num_pairs, long long words_per_block) {
  move_blocks(destination, source, pairs, num_pairs, words_per_block);
}

extern "C" __global__ void move_blocks_by_1(
    char* destination, const char* source, const long long* pairs, long long num_pairs, long long words_per_block) {
  move_blocks(destination, source, pairs, num_pairs, words_per_block);
}
