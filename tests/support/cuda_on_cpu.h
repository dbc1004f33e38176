// CUDA C++ on the CPU, one thread after the other: for kernels without shared memory, barriers and warp intrinsics.
#pragma once
#define __global__
#define __device__
#define __forceinline__ inline

struct alignas(16) int4 {
  int x, y, z, w;
};
struct Place {
  unsigned x = 1, y = 1, z = 1;
};
static Place gridDim, blockDim, blockIdx, threadIdx;

template <typename Kernel>
static void run_on_cpu(unsigned columns, unsigned rows, unsigned threads, Kernel kernel) {
  gridDim = {columns, rows, 1};
  blockDim = {threads, 1, 1};
  for (unsigned y = 0; y < rows; ++y)
    for (unsigned x = 0; x < columns; ++x)
      for (unsigned t = 0; t < threads; ++t) {
        blockIdx = {x, y, 0};
        threadIdx = {t, 0, 0};
        kernel();
      }
}
