// Paged attention of a ragged batch: its work as a list of tasks of like size, the longest first.
#pragma once

#include "decode.h"
#include "prefill.h"
#include "scratch.h"
#include "team.h"

namespace OCTAVO_ISA {

static thread_local Scratch task_list, partials, part_list, decode_rows;

struct Task {
  int64_t sequence, kv_head;
  int64_t first, end;  // keys of a decode part, or query tokens of a chunk
  int64_t partial;     // index of the part's result, or -1 for a chunk
};

struct Reach {
  int64_t low, high;  // keys that a decode token sees
};

INLINE Reach reach_of(const Attention& call, int64_t sequence) {
  const int64_t high = call.context_lengths[sequence];
  const int64_t low = call.window && call.window < high ? high - call.window : 0;
  return {low, high};
}

INLINE int64_t query_length(const Attention& call, int64_t sequence) {
  return call.query_starts[sequence + 1] - call.query_starts[sequence];
}

INLINE int64_t parts_of(Reach reach) {
  return reach.high > reach.low ? (reach.high - 1) / PART - reach.low / PART + 1 : 0;
}

// Every token a task will read lies in the query, and every block it will look up in the pool.
static bool indices_hold(const Attention& call) {
  if (call.query_starts[0] < 0 || call.query_starts[call.sequences] > call.tokens) return false;
  for (int64_t s = 0; s < call.sequences; ++s) {
    const int64_t blocks = (call.context_lengths[s] + call.block_size - 1) / call.block_size;
    if (query_length(call, s) < 0) return false;
    if (blocks > call.table_width) return false;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t block = call.block_tables[s * call.table_width + b];
      if (block < 0 || block >= call.num_blocks) return false;
    }
  }
  return true;
}

static void chunk_tasks(const Attention& call, int64_t sequence, Task*& next) {
  const int64_t tokens = query_length(call, sequence), step = tokens_per_task(call);
  for (int64_t end = tokens; end > 0; end -= step)
    for (int64_t head = 0; head < call.kv_heads; ++head)
      *next++ = {sequence, head, end > step ? end - step : 0, end, -1};
}

static void part_tasks(const Attention& call, int64_t sequence, int64_t partial, Task*& next) {
  const Reach reach = reach_of(call, sequence);
  const int64_t parts = parts_of(reach);
  for (int64_t head = 0; head < call.kv_heads; ++head)
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t edge = (reach.low / PART + p) * PART;
      *next++ = {sequence, head, edge > reach.low ? edge : reach.low,
                 edge + PART < reach.high ? edge + PART : reach.high, partial + head * parts + p};
    }
}

template <typename K>
static bool run_task(const Attention& call, const Task& task, Partial* parts) {
  if (task.partial < 0) return attend_chunk<K>(call, task.sequence, task.kv_head, task.first, task.end);
  const int64_t group = call.heads / call.kv_heads, dim = call.head_dim;
  float* query = decode_rows.floats(group * dim);
  if (!query) return false;
  for (int64_t h = 0; h < group; ++h) {
    read_query<K>(call, call.query_starts[task.sequence], task.kv_head * group + h, query + h * dim);
    pairwise<K>(query + h * dim, dim);
  }
  attend_part<K>(call, call.block_tables + task.sequence * call.table_width, task.kv_head, query, task.first, task.end,
                 parts[task.partial]);
  return true;
}

template <typename K>
static int64_t attention_of(const Attention& call) {
  const int64_t group = call.heads / call.kv_heads;
  int64_t task_count = 0, part_count = 0;
  for (int64_t s = 0; s < call.sequences; ++s) {
    const int64_t tokens = query_length(call, s), parts = parts_of(reach_of(call, s));
    part_count += tokens == 1 ? parts * call.kv_heads : 0;
    task_count += call.kv_heads * (tokens == 1 ? parts : (tokens + tokens_per_task(call) - 1) / tokens_per_task(call));
  }
  Task* tasks = (Task*)task_list.take((task_count + 1) * sizeof(Task));
  Partial* parts = (Partial*)part_list.take((part_count + 1) * sizeof(Partial));
  const int64_t stride = (call.head_dim + 2 + LANES - 1) / LANES * LANES;
  float* sums = partials.floats(part_count * group * stride + 1);
  if (!tasks || !parts || !sums) return NO_MEMORY;
  for (int64_t p = 0; p < part_count; ++p) parts[p] = {sums + p * group * stride, stride};

  Task* next = tasks;
  for (int64_t s = 0; s < call.sequences; ++s)
    if (query_length(call, s) > 1) chunk_tasks(call, s, next);
  int64_t partial = 0;
  for (int64_t s = 0; s < call.sequences; ++s)
    if (query_length(call, s) == 1) {
      part_tasks(call, s, partial, next);
      partial += parts_of(reach_of(call, s)) * call.kv_heads;
    }
  int32_t failed = 0;
  share(call.threads, task_count, [&](int64_t t) {
    if (!run_task<K>(call, tasks[t], parts)) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
  });
  float* rows = decode_rows.floats(group * call.head_dim);
  if (failed || !rows) return NO_MEMORY;
  for (int64_t s = 0, first = 0; s < call.sequences; ++s) {
    if (query_length(call, s) != 1) continue;
    const int64_t count = parts_of(reach_of(call, s));
    for (int64_t head = 0; head < call.kv_heads; ++head, first += count) {
      join_parts<K>(call, head, parts + first, count, rows);
      for (int64_t h = 0; h < group; ++h)
        write_output(call, call.query_starts[s], head * group + h, rows + h * call.head_dim);
    }
  }
  return OK;
}

static int64_t attention(const Attention* call) {
  if (!indices_hold(*call)) return BAD_INDEX;
  int64_t status = OK;
  by_pool_type(call->pool_type, [&](auto* type) { status = attention_of<typename Pointee<decltype(type)>::Type>(*call); });
  return status;
}

}  // namespace OCTAVO_ISA
