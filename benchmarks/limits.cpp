// What this machine can do at most: multiply-adds from registers, and reading memory. For benchmarks/machine_limits.py.
#include <time.h>

#include "vectors.h"

using namespace OCTAVO_ISA;

static double seconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

template <typename Work>
static void measure(const Work& work, double* elapsed, double* processor) {
  const double started = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_THREAD_CPUTIME_ID);
  work();
  *elapsed = seconds(CLOCK_MONOTONIC) - started;
  *processor = seconds(CLOCK_THREAD_CPUTIME_ID) - used;
}

constexpr int CHAINS = 12;  // as many as hide the latency of an addition in two units

// Each call runs on the calling thread; returns the number of floating-point operations.
extern "C" int64_t multiply_add(int64_t rounds, double* elapsed, double* processor) {
  F sums[CHAINS];
#pragma GCC unroll 12
  for (int i = 0; i < CHAINS; ++i) sums[i] = splat((float)i);
  const F factor = splat(0.999f), addend = splat(0.001f);
  measure(
      [&] {
        for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
          for (int i = 0; i < CHAINS; ++i) sums[i] = sums[i] * factor + addend;
          asm volatile("");  // rounds are not merged
        }
      },
      elapsed, processor);
  F total = sums[0];
  for (int i = 1; i < CHAINS; ++i) total += sums[i];
  volatile float kept = total[0];
  (void)kept;
  return rounds * CHAINS * LANES * 2;
}

extern "C" int64_t read_memory(const char* from, int64_t bytes, double* elapsed, double* processor) {
  constexpr int64_t STRIDE = 8 * sizeof(F);
  I seen[8] = {};
  measure(
      [&] {
        for (int64_t at = 0; at + STRIDE <= bytes; at += STRIDE) {
          for (int64_t line = 0; line < STRIDE; line += 64) __builtin_prefetch(from + at + 4096 + line);
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) seen[i] ^= (I)load((const float*)(from + at) + i * LANES);
        }
      },
      elapsed, processor);
  I all = seen[0];
  for (int i = 1; i < 8; ++i) all ^= seen[i];
  volatile int32_t kept = all[0];
  (void)kept;
  return bytes;
}
