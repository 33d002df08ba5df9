/* Squares of LANES rows times LANES columns turned around between memory and registers.
 *
 *     row 0   a0 a1 a2 a3 | a4 ...         column 0   a0 b0 c0 d0 | e0 ...
 *     row 1   b0 b1 b2 b3 | b4 ...   <->   column 1   a1 b1 c1 d1 | e1 ...
 *
 * Vectors are put together from fours out of rows that lie four apart, which the load ports do; what is left is to turn
 * squares of four by four within the 128-bit parts of vectors, which takes two shuffles a vector. */
#ifndef HEARTLM_TRANSPOSE_H
#define HEARTLM_TRANSPOSE_H

#include "vector.h"

#define FOURS (LANES / 4)

/* Alternating elements of the lower, or upper, halves of each 128 bits of a and b: ones, or pairs. */
#if defined(__AVX512F__)
#define LOW(a, b) ((vfloat)_mm512_unpacklo_ps((__m512)(a), (__m512)(b)))
#define HIGH(a, b) ((vfloat)_mm512_unpackhi_ps((__m512)(a), (__m512)(b)))
#define LOW_PAIRS(a, b) ((vfloat)_mm512_unpacklo_pd((__m512d)(a), (__m512d)(b)))
#define HIGH_PAIRS(a, b) ((vfloat)_mm512_unpackhi_pd((__m512d)(a), (__m512d)(b)))
#elif defined(__AVX2__)
#define LOW(a, b) ((vfloat)_mm256_unpacklo_ps((__m256)(a), (__m256)(b)))
#define HIGH(a, b) ((vfloat)_mm256_unpackhi_ps((__m256)(a), (__m256)(b)))
#define LOW_PAIRS(a, b) ((vfloat)_mm256_unpacklo_pd((__m256d)(a), (__m256d)(b)))
#define HIGH_PAIRS(a, b) ((vfloat)_mm256_unpackhi_pd((__m256d)(a), (__m256d)(b)))
#else
#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (vint){__VA_ARGS__})
#endif
#define LOW(a, b) PICK(a, b, 0, 4, 1, 5)
#define HIGH(a, b) PICK(a, b, 2, 6, 3, 7)
#define LOW_PAIRS(a, b) PICK(a, b, 0, 1, 4, 5)
#define HIGH_PAIRS(a, b) PICK(a, b, 2, 3, 6, 7)
#endif

/* Turns the squares of four by four that lie in four vectors. */
static inline void turn_fours(vfloat *restrict of) {
    vfloat low01 = LOW(of[0], of[1]), high01 = HIGH(of[0], of[1]);
    vfloat low23 = LOW(of[2], of[3]), high23 = HIGH(of[2], of[3]);
    of[0] = LOW_PAIRS(low01, low23), of[1] = HIGH_PAIRS(low01, low23);
    of[2] = LOW_PAIRS(high01, high23), of[3] = HIGH_PAIRS(high01, high23);
}

/* Four floats each from row, row + 4, ... at `column`. */
static inline vfloat load_fours(const float *const *row, int64_t column) {
#if defined(__AVX512F__)
    __m512 fours = _mm512_castps128_ps512(_mm_loadu_ps(row[0] + column));
    fours = _mm512_insertf32x4(fours, _mm_loadu_ps(row[4] + column), 1);
    fours = _mm512_insertf32x4(fours, _mm_loadu_ps(row[8] + column), 2);
    return (vfloat)_mm512_insertf32x4(fours, _mm_loadu_ps(row[12] + column), 3);
#elif defined(__AVX2__)
    __m256 fours = _mm256_castps128_ps256(_mm_loadu_ps(row[0] + column));
    return (vfloat)_mm256_insertf128_ps(fours, _mm_loadu_ps(row[4] + column), 1);
#else
    return load(row[0] + column);
#endif
}

static inline void store_fours(float *const *row, int64_t column, vfloat fours) {
#if defined(__AVX512F__)
    _mm_storeu_ps(row[0] + column, _mm512_castps512_ps128((__m512)fours));
    _mm_storeu_ps(row[4] + column, _mm512_extractf32x4_ps((__m512)fours, 1));
    _mm_storeu_ps(row[8] + column, _mm512_extractf32x4_ps((__m512)fours, 2));
    _mm_storeu_ps(row[12] + column, _mm512_extractf32x4_ps((__m512)fours, 3));
#elif defined(__AVX2__)
    _mm_storeu_ps(row[0] + column, _mm256_castps256_ps128((__m256)fours));
    _mm_storeu_ps(row[4] + column, _mm256_extractf128_ps((__m256)fours, 1));
#else
    store(row[0] + column, fours);
#endif
}

/* Four columns, from `column` on, of LANES rows as four vectors. */
static inline void load_fours_turned(const float *const *rows, int64_t column, vfloat *restrict fours) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) fours[i] = load_fours(rows + i, column);
    turn_fours(fours);
}

static inline void load_turned(const float *const *rows, int64_t column, float *restrict to) {
    vfloat fours[4];
    load_fours_turned(rows, column, fours);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) store(to + i * LANES, fours[i]);
}

/* Four vectors, a lane a row, to four columns of LANES rows. */
static inline void store_turned(vfloat *restrict fours, float *const *rows, int64_t column) {
    turn_fours(fours);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) store_fours(rows + i, column, fours[i]);
}

#endif
