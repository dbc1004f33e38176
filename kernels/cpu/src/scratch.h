// Memory that a thread keeps between calls: mapping pages anew in every call would cost more than the work.
//
// It grows to what was asked for, is trimmed when much less was asked for many times in a row, and is freed when its
// thread ends: by a key of pthreads, since a destructor would need the C++ library.
#pragma once

#include <pthread.h>
#include <stdlib.h>

#include "vectors.h"

namespace OCTAVO_ISA {

constexpr size_t KEPT_ANYWAY = 1 << 20;  // bytes that are not worth trimming
constexpr int32_t PATIENCE = 1024;       // calls for a quarter or less, after which the rest is given back

struct Scratch;
static thread_local Scratch* scratches;  // of this thread, those that hold memory
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

struct Scratch {
  char* memory;
  size_t bytes;
  int32_t small_calls;
  bool listed;
  Scratch* next;

  // Null when there is no memory to be had; as `take`.
  float* floats(size_t count) {
    return count > SIZE_MAX / sizeof(float) ? (float*)0 : (float*)take(count * sizeof(float));
  }

  // Aligned to 64 bytes; what the last call gave is no longer valid. Null when there is no memory to be had.
  void* take(size_t wanted) {
    small_calls = wanted <= bytes / 4 ? small_calls + 1 : 0;
    if (!memory || wanted > bytes || (small_calls > PATIENCE && bytes > KEPT_ANYWAY)) renew(wanted);
    return memory;
  }

 private:
  static void free_all(void*) {
    for (Scratch* one = scratches; one; one = one->next) {
      free(one->memory);
      one->memory = 0;
      one->bytes = 0;
      one->listed = false;
    }
    scratches = 0;
  }

  __attribute__((noinline)) void renew(size_t wanted) {
    free(memory);
    memory = 0;
    bytes = 0;
    small_calls = 0;
    if (wanted > SIZE_MAX / 2) return;
    const size_t whole_pages = (wanted / 4096 + 1) * 4096;
    memory = (char*)aligned_alloc(64, whole_pages);
    if (!memory) return;
    bytes = whole_pages;
    if (listed) return;
    pthread_once(&scratch_once, [] { pthread_key_create(&scratch_key, free_all); });
    listed = true;
    next = scratches;
    scratches = this;
    pthread_setspecific(scratch_key, this);
  }
};

}  // namespace OCTAVO_ISA
