// The narrow formats that KV is kept in: float16, and the 8-bit floats e4m3 (finite, with one NaN) and e5m2.
//
// Everything is computed in float; these widen and narrow a vector. bfloat16 is in vectors.h.
#pragma once

#include "calls.h"
#include "vectors.h"

namespace OCTAVO_ISA {

struct f16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};

// Formats that are kept divided by a scale of their KV head.
template <typename K>
constexpr bool SCALED = false;
template <>
constexpr bool SCALED<e4m3> = true;
template <>
constexpr bool SCALED<e5m2> = true;

typedef int16_t S __attribute__((vector_size(2 * LANES)));
typedef uint8_t B __attribute__((vector_size(LANES)));
typedef int8_t SB __attribute__((vector_size(LANES)));

// float16 in and out of the registers that convert it.
#if defined(__AVX512F__) && LANES == 16
INLINE F widen_halves(H halves) { return (F)_mm512_cvtph_ps((__m256i)halves); }
INLINE H narrow_halves(F value) { return (H)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__x86_64__)
INLINE F widen_halves(H halves) {
  __m128i parts[LANES / 8];
  __m256 wide[LANES / 8];
  memcpy(parts, &halves, sizeof halves);
  for (int p = 0; p < LANES / 8; ++p) wide[p] = _mm256_cvtph_ps(parts[p]);
  F value;
  memcpy(&value, wide, sizeof value);
  return value;
}
INLINE H narrow_halves(F value) {
  __m256 wide[LANES / 8];
  __m128i parts[LANES / 8];
  memcpy(wide, &value, sizeof value);
  for (int p = 0; p < LANES / 8; ++p) parts[p] = _mm256_cvtps_ph(wide[p], _MM_FROUND_TO_NEAREST_INT);
  H halves;
  memcpy(&halves, parts, sizeof halves);
  return halves;
}
#else
typedef __fp16 NativeHalves __attribute__((vector_size(2 * LANES)));
INLINE F widen_halves(H halves) { return __builtin_convertvector((NativeHalves)halves, F); }
INLINE H narrow_halves(F value) { return (H)__builtin_convertvector(value, NativeHalves); }
#endif

INLINE F load(const f16* from) {
  H halves;
  memcpy(&halves, from, sizeof halves);
  return widen_halves(halves);
}

INLINE void store(f16* to, F value) {
  H halves = narrow_halves(value);
  memcpy(to, &halves, sizeof halves);
}

INLINE S load_bytes(const void* from) {
#if LANES == 8  // GCC 12 widens through two halves otherwise
  return (S)_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)from));
#else
  SB bytes;
  memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, S);
#endif
}

// The bits of an e4m3 are those of a float16 of 2^-8 times its value, but for NaN.
INLINE F load(const e4m3* from) {
  S halves = (load_bytes(from) << 7) & (int16_t)0xbf80;
  halves |= (halves & 0x3f80) == 0x3f80;
  return widen_halves((H)halves) * 256.0f;
}

// An e5m2 is the upper byte of a float16.
INLINE F load(const e5m2* from) { return widen_halves((H)(load_bytes(from) << 8)); }

// Rounds to nearest, ties to even, within the finite range; NaN stays NaN.
template <int MANTISSA, int BIAS>
INLINE B narrow_bytes(F value, float largest) {
  constexpr int SHIFT = 23 - MANTISSA;
  U sign = ((U)value >> 24) & 0x80u;
  F size = (F)((U)value & 0x7fffffffu);
  size = size > largest ? splat(largest) : size;
  // Below the smallest normal number, float's own rounding does it: beside this one its last digit is the format's.
  const F coarse = splat((float)(1 << (24 - MANTISSA - BIAS)));
  U small = (U)(size + coarse) - (U)coarse;
  U rounded = (U)size + ((1u << (SHIFT - 1)) - 1) + (((U)size >> SHIFT) & 1u);
  U normal = (rounded >> SHIFT) - ((127u - BIAS) << MANTISSA);
  U code = size < 2.0f / (float)(1 << BIAS) ? small : normal;
  return __builtin_convertvector((value == value ? code : 0x7fu + U{}) | sign, B);
}

INLINE void store(e4m3* to, F value) {
  B bytes = narrow_bytes<3, 7>(value, 448.0f);
  memcpy(to, &bytes, sizeof bytes);
}

INLINE void store(e5m2* to, F value) {
  B bytes = narrow_bytes<2, 15>(value, 57344.0f);
  memcpy(to, &bytes, sizeof bytes);
}

// One number at a time, for the ends of rows.
template <typename T>
INLINE float widen(T value) {
  T row[LANES] = {value};
  return load(row)[0];
}

template <typename T>
INLINE void narrow(T* to, float value) {
  T row[LANES];
  store(row, splat(value));
  *to = row[0];
}

// A row in pairs of vectors, each half as its format widens cheapest. Of bfloat16 the numbers of even and of odd index
// take one operation each where those in the order of memory take two. `pairwise` puts a row of floats into that order.
template <int HALF, typename K>
INLINE F load_half(const K* pair) {
  return load(pair + HALF * LANES);
}

template <int HALF>
INLINE F load_half(const bf16* pair) {
  U words;
  memcpy(&words, pair, sizeof words);
  return (F)(HALF ? words & 0xffff0000u : words << 16);
}

template <typename K>
INLINE void pairwise(float*, int64_t) {}
template <typename K>
INLINE void in_order(float*, int64_t) {}

template <>
inline void pairwise<bf16>(float* row, int64_t dim) {
  for (int64_t d = 0; d + 2 * LANES <= dim; d += 2 * LANES) {
    float pair[2 * LANES];
    memcpy(pair, row + d, sizeof pair);
    for (int i = 0; i < LANES; ++i) row[d + i] = pair[2 * i], row[d + LANES + i] = pair[2 * i + 1];
  }
}

template <>
inline void in_order<bf16>(float* row, int64_t dim) {
  for (int64_t d = 0; d + 2 * LANES <= dim; d += 2 * LANES) {
    float pair[2 * LANES];
    memcpy(pair, row + d, sizeof pair);
    for (int i = 0; i < LANES; ++i) row[d + 2 * i] = pair[i], row[d + 2 * i + 1] = pair[LANES + i];
  }
}

template <typename Pointer>
struct Pointee;
template <typename T>
struct Pointee<T*> {
  typedef T Type;
};

// Calls `run` with a null pointer of the type that a call names.
template <typename Run>
INLINE void by_value_type(int64_t type, Run&& run) {
  switch (type) {
    case FLOAT32: return run((float*)0);
    case BFLOAT16: return run((bf16*)0);
    case FLOAT16: return run((f16*)0);
  }
}

template <typename Run>
INLINE void by_pool_type(int64_t type, Run&& run) {
  switch (type) {
    case FLOAT8_E4M3: return run((e4m3*)0);
    case FLOAT8_E5M2: return run((e5m2*)0);
    default: return by_value_type(type, run);
  }
}

}  // namespace OCTAVO_ISA
