// Vectors of the instruction set this file is compiled for, in GCC's portable vector types.
//
// LANES floats fill one register: 16 with AVX-512, 8 with AVX2, 4 with NEON. Everything lies in a namespace per
// instruction set and nothing of the C++ library is used, so that the linker cannot merge code across sets.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(OCTAVO_WIDE)  // what AVX-512 computes, for the compiler to split: tests run it where there is none
#define LANES 16
#define SPARE_REGISTERS 1
#elif defined(__AVX512F__)
#define LANES 16
#define SPARE_REGISTERS 1
#elif defined(__AVX2__)
#define LANES 8
#define SPARE_REGISTERS 0
#else
#define LANES 4
#define SPARE_REGISTERS 1
#endif

#define INLINE static inline __attribute__((always_inline))

namespace OCTAVO_ISA {

struct bf16 {
  uint16_t bits;
};

typedef float F __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint32_t U __attribute__((vector_size(4 * LANES)));
typedef uint16_t H __attribute__((vector_size(2 * LANES)));
typedef float F4 __attribute__((vector_size(16)));

INLINE F load(const float* from) {
  F value;
  memcpy(&value, from, sizeof value);
  return value;
}

INLINE F load(const bf16* from) {
#if LANES == 8  // GCC 12 widens through two halves otherwise
  return (F)((U)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)) << 16);
#else
  H half;
  memcpy(&half, from, sizeof half);
  return (F)(__builtin_convertvector(half, U) << 16);
#endif
}

INLINE F load(const int8_t* from) {
#if LANES == 8  // GCC 12 widens in steps otherwise
  return (F)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  typedef int8_t B __attribute__((vector_size(LANES)));
  B bytes;
  memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, I), F);
#endif
}

INLINE void store(float* to, F value) { memcpy(to, &value, sizeof value); }

// Rounds to nearest, ties to even; NaN stays NaN.
INLINE void store(bf16* to, F value) {
  U bits = (U)value;
  U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  U quiet = (bits >> 16) | 0x40u;
  H half = __builtin_convertvector(value == value ? rounded : quiet, H);
  memcpy(to, &half, sizeof half);
}

INLINE float widen(float value) { return value; }

INLINE float widen(bf16 value) {
  uint32_t bits = (uint32_t)value.bits << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

INLINE void narrow(float* to, float value) { *to = value; }

INLINE void narrow(bf16* to, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  to->bits = value == value ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : (bits >> 16) | 0x40u;
}

// Written out: a sum with zero would cost an addition, for the sake of -0.
INLINE F splat(float v) {
#if LANES == 16
  return F{v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v};
#elif LANES == 8
  return F{v, v, v, v, v, v, v, v};
#else
  return F{v, v, v, v};
#endif
}

INLINE F larger(F a, F b) { return a > b ? a : b; }

INLINE float sum(F value) {
  float total = 0;
  for (int lane = 0; lane < LANES; ++lane) total += value[lane];
  return total;
}

INLINE float maximum(F value) {
  float top = value[0];
  for (int lane = 1; lane < LANES; ++lane) top = value[lane] > top ? value[lane] : top;
  return top;
}

// The lane sums of four vectors.
INLINE F4 sum4(F a, F b, F c, F d) {
#if LANES == 4
  F4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  F4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
#else
  typedef float F8 __attribute__((vector_size(32)));
#if LANES == 16
#define HALVES(v) (__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + \
                   __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15))
#else
#define HALVES(v) v
#endif
  F8 a8 = HALVES(a), b8 = HALVES(b), c8 = HALVES(c), d8 = HALVES(d);
#undef HALVES
  F8 ab = __builtin_shufflevector(a8, b8, 0, 8, 1, 9, 4, 12, 5, 13) +
          __builtin_shufflevector(a8, b8, 2, 10, 3, 11, 6, 14, 7, 15);
  F8 cd = __builtin_shufflevector(c8, d8, 0, 8, 1, 9, 4, 12, 5, 13) +
          __builtin_shufflevector(c8, d8, 2, 10, 3, 11, 6, 14, 7, 15);
  F8 all = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
  return __builtin_shufflevector(all, all, 0, 1, 2, 3) + __builtin_shufflevector(all, all, 4, 5, 6, 7);
#endif
}

struct Power {
  I n;     // shifted into the place of a float's exponent
  F rest;  // e^r - 1
};

// x, held to -87.3 .. 88, as n ln 2 + r with |r| <= ln 2 / 2, and e^r by a polynomial of degree 6 in Horner's form.
// NaN stays NaN, in `rest`.
INLINE Power reduced(F x) {
  const F lowest = splat(-87.3f), highest = splat(88.0f);
  F bounded = x < lowest ? lowest : x;
  bounded = bounded > highest ? highest : bounded;
  const F rounder = splat(12582912.0f);  // 1.5 * 2^23: the sum's low mantissa bits are the nearest integer
  F shifted = bounded * 1.44269504088896341f + rounder;
  F n = shifted - rounder;
  F r = bounded - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  F p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return {(I)shifted << 23, p * r * r + r};
}

// e^x, about 1 ulp; 0 below -87.3, capped above 88. NaN stays NaN.
INLINE F exponential(F x) {
  const Power power = reduced(x);
  F scaled = (F)((I)(power.rest + 1.0f) + power.n);
  return x < -87.3f ? F{} : scaled;
}

// 2^x for x <= 0, about 1 ulp; 0 below -126. NaN stays NaN.
// x = n + r with |r| <= 1/2, and 2^r by a polynomial of degree 6 in Horner's form.
INLINE F power_of_two(F x) {
  const F lowest = splat(-126.0f);
  const F rounder = splat(12582912.0f);  // as in `exponential`
  F bounded = x < lowest ? lowest : x;
  F shifted = bounded + rounder;
  F r = bounded - (shifted - rounder);
  F p = splat(1.5404409e-4f);
  p = p * r + 1.3398874e-3f;
  p = p * r + 9.6180290e-3f;
  p = p * r + 5.5503324e-2f;
  p = p * r + 2.4022651e-1f;
  p = p * r + 6.9314718e-1f;
  p = p * r + 1.0f;
  F scaled = (F)((I)p + ((I)shifted << 23));
  return x < lowest ? F{} : scaled;
}

// cap * tanh(score / cap), with tanh x = m / (m + 2) and m = e^2x - 1: of all its digits near 0, too.
INLINE F capped(F score, float cap) {
  const F x = score * (2.0f / cap);
  const Power power = reduced(x);
  const F scale = (F)(power.n + (1 << 23) * 127);
  const F m = scale * power.rest + (scale - 1.0f);
  return cap * (m / (m + 2.0f));
}

}  // namespace OCTAVO_ISA
