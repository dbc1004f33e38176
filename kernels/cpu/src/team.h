// The threads that share the tasks of a kernel.
//
// A caller publishes its tasks and takes from them like every helper; it waits only for tasks that were begun. So a
// helper without a core, on a machine that others use too, holds nobody up: its share is done by those who run.
// A helper out of work looks for more for SPIN_NS, as long as kernels follow each other closely, and then sleeps.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vectors.h"

namespace OCTAVO_ISA {

constexpr int64_t SPIN_NS = 50000;      // a helper's patience between kernels: the steps of a model are milliseconds apart
constexpr int64_t WAIT_NS = 20000;      // a caller's patience with a task that is being done
constexpr int32_t MAX_HELPERS = 255;
constexpr int32_t CLOSED = -(1 << 30);  // added to Team::inside while there is no job to enter

INLINE void pause_briefly() {
#if defined(__x86_64__)
  for (int i = 0; i < 8; ++i) _mm_pause();
#else
  for (int i = 0; i < 32; ++i) asm volatile("yield");
#endif
}

INLINE int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

INLINE void sleep_while(const int32_t* word, int32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, (void*)0, (void*)0, 0);
}

INLINE void wake(const int32_t* word, int32_t threads) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, (void*)0, (void*)0, 0);
}

typedef void (*Body)(const void* context, int64_t task);

struct alignas(64) Team {
  // The job, written while nobody is inside.
  Body body;
  const void* context;
  int64_t count;
  int32_t wanted;  // helpers with a lower index may enter
  int32_t busy;    // a caller has a job here
  int32_t helpers;

  alignas(64) int64_t next;  // the first task that nobody took
  alignas(64) int32_t inside;  // helpers in the job, plus CLOSED when it may not be entered
  int32_t caller_sleeps;
  alignas(64) int32_t jobs;  // counts jobs: what idle helpers watch
  int32_t sleeping;
};

static Team team = {0, 0, 0, 0, 0, 0, 0, CLOSED, 0, 0, 0};

INLINE void take_tasks() {
  const int64_t count = team.count;
  for (int64_t task; (task = __atomic_fetch_add(&team.next, 1, __ATOMIC_RELAXED)) < count;) team.body(team.context, task);
}

static void help(int32_t index) {
  int32_t inside = __atomic_load_n(&team.inside, __ATOMIC_RELAXED);
  do {
    if (inside < 0) return;
  } while (!__atomic_compare_exchange_n(&team.inside, &inside, inside + 1, true, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
  if (index < team.wanted) take_tasks();
  if (__atomic_sub_fetch(&team.inside, 1, __ATOMIC_SEQ_CST) == CLOSED && __atomic_load_n(&team.caller_sleeps, __ATOMIC_SEQ_CST))
    wake(&team.inside, 1);
}

static void* helper(void* index) {
  int32_t seen = 0;
  for (;;) {
    help((int32_t)(intptr_t)index);
    const int64_t until = now_ns() + SPIN_NS;
    int32_t jobs;
    while ((jobs = __atomic_load_n(&team.jobs, __ATOMIC_ACQUIRE)) == seen) {
      if (now_ns() < until) {
        pause_briefly();
        continue;
      }
      __atomic_add_fetch(&team.sleeping, 1, __ATOMIC_SEQ_CST);
      sleep_while(&team.jobs, seen);
      __atomic_sub_fetch(&team.sleeping, 1, __ATOMIC_SEQ_CST);
    }
    seen = jobs;
  }
}

// A forked child has the caller's thread only.
static void forget_helpers() {
  team.busy = team.helpers = team.sleeping = team.caller_sleeps = 0;
  team.inside = CLOSED;
}

static void hire(int32_t wanted) {
  if (wanted > MAX_HELPERS) wanted = MAX_HELPERS;
  static bool watches_forks = false;
  if (!watches_forks) watches_forks = !pthread_atfork(0, 0, forget_helpers);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads that know of them
  for (pthread_t thread; team.helpers < wanted; ++team.helpers) {
    if (pthread_create(&thread, 0, helper, (void*)(intptr_t)team.helpers)) break;  // those there are will do
    pthread_setname_np(thread, "octavo-kernels");
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, 0);
}

static void run_job(int64_t threads, int64_t count, Body body, const void* context) {
  if (__atomic_exchange_n(&team.busy, 1, __ATOMIC_ACQUIRE)) {  // another caller's turn, or a task that has tasks
    for (int64_t task = 0; task < count; ++task) body(context, task);
    return;
  }
  if (team.helpers < threads - 1) hire((int32_t)threads - 1);
  team.body = body;
  team.context = context;
  team.count = count;
  team.wanted = (int32_t)threads - 1;
  team.next = 0;
  __atomic_add_fetch(&team.inside, -CLOSED, __ATOMIC_RELEASE);
  __atomic_add_fetch(&team.jobs, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&team.sleeping, __ATOMIC_SEQ_CST)) wake(&team.jobs, MAX_HELPERS);
  take_tasks();
  int32_t inside = __atomic_add_fetch(&team.inside, CLOSED, __ATOMIC_SEQ_CST);
  if (inside != CLOSED) {
    const int64_t until = now_ns() + WAIT_NS;
    while ((inside = __atomic_load_n(&team.inside, __ATOMIC_ACQUIRE)) != CLOSED) {
      if (now_ns() < until) {
        pause_briefly();
        continue;
      }
      __atomic_store_n(&team.caller_sleeps, 1, __ATOMIC_SEQ_CST);
      inside = __atomic_load_n(&team.inside, __ATOMIC_SEQ_CST);
      if (inside != CLOSED) sleep_while(&team.inside, inside);
      __atomic_store_n(&team.caller_sleeps, 0, __ATOMIC_SEQ_CST);
    }
  }
  __atomic_store_n(&team.busy, 0, __ATOMIC_RELEASE);
}

// Runs task(0) .. task(count - 1), each once, on at most `threads` threads; returns when all are done.
template <typename Work>
INLINE void share(int64_t threads, int64_t count, const Work& task) {
  if (threads < 2 || count < 2) {
    for (int64_t t = 0; t < count; ++t) task(t);
    return;
  }
  run_job(threads, count, [](const void* context, int64_t t) { (*(const Work*)context)(t); }, &task);
}

}  // namespace OCTAVO_ISA
