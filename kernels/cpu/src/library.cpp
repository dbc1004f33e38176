// The library's C interface. Compiled for the plainest processor of its family: it decides what the others may run.
#include <stdlib.h>
#include <string.h>

#include "calls.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

#if defined(__x86_64__)
namespace avx512 {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
#else
namespace neon {
extern const Kernels kernels;
}
#endif

static const Kernels* best(const char* wanted) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && (!wanted || !strcmp(wanted, "avx512"))) return &avx512::kernels;
  if (has_avx2 && (!wanted || !strcmp(wanted, "avx2"))) return &avx2::kernels;
#else
  if (!wanted || !strcmp(wanted, "neon")) return &neon::kernels;
#endif
  return 0;
}

// The kernels of the named instruction set, or with null of the best one here; null when this processor lacks it.
EXPORT const Kernels* octavo_kernels(const char* isa) { return best(isa); }

// A digest of the sources this library was built from.
EXPORT const char* octavo_sources() { return OCTAVO_SOURCES; }
