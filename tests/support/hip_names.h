// The names of CUDA C++ that block_moves.cu uses, for clang's HIP without AMD's headers.
#pragma once

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __forceinline__ inline __attribute__((always_inline))

typedef int int4 __attribute__((ext_vector_type(4)));

struct Index {
  unsigned x, y;
};
#define threadIdx (Index{__builtin_amdgcn_workitem_id_x(), 0})
#define blockIdx (Index{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y()})
#define blockDim (Index{__builtin_amdgcn_workgroup_size_x(), 1})
#define gridDim (Index{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_grid_size_y()})
