/* Squares of LANES rows times LANES columns turned around between memory and registers, and vectors dealt out by fours.
 *
 *     row 0   a0 a1 a2 a3 | a4 ...         column 0   a0 b0 c0 d0 | e0 ...
 *     row 1   b0 b1 b2 b3 | b4 ...    ->   column 1   a1 b1 c1 d1 | e1 ...
 *
 * Vectors are put together from fours out of rows that lie four apart, which the load ports do; what is left is to turn
 * squares of four by four within the 128-bit parts of vectors, which takes two shuffles a vector. */
#ifndef HEARTLM_TRANSPOSE_H
#define HEARTLM_TRANSPOSE_H

#include "vector.h"

/* Lanes of a, and of b behind it, by their numbers. */
#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (vint){__VA_ARGS__})
#endif

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

/* A matrix [rows, columns] whose rows lie `step` apart, turned: to [columns, rows], whose rows lie `to_step` apart. */
static inline void turn_matrix(const float *from, int64_t rows, int64_t columns, int64_t step, float *restrict to,
                               int64_t to_step) {
    int64_t whole_rows = rows - rows % LANES;
    int64_t whole = columns - columns % 4;
    for (int64_t r = 0; r < whole_rows; r += LANES) {
        const float *own[LANES];
        for (int i = 0; i < LANES; i++) own[i] = from + (r + i) * step;
        for (int64_t c = 0; c < whole; c += 4) {
            vfloat fours[4];
            load_fours_turned(own, c, fours);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) store(to + (c + i) * to_step + r, fours[i]);
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = r < whole_rows ? whole : 0; c < columns; c++) to[c * to_step + r] = from[r * step + c];
}

/* Every second lane, from the first or from the second on; and back, the lower and the upper half. */
#if LANES == 16
#define EVEN(a, b) PICK(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODD(a, b) PICK(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#define ZIP_LOWER(a, b) PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_UPPER(a, b) PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define NEXT(a, b) PICK(a, b, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
#elif LANES == 8
#define EVEN(a, b) PICK(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODD(a, b) PICK(a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#define ZIP_LOWER(a, b) PICK(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_UPPER(a, b) PICK(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define NEXT(a, b) PICK(a, b, 1, 2, 3, 4, 5, 6, 7, 8)
#else
#define EVEN(a, b) PICK(a, b, 0, 2, 4, 6)
#define ODD(a, b) PICK(a, b, 1, 3, 5, 7)
#define ZIP_LOWER(a, b) PICK(a, b, 0, 4, 1, 5)
#define ZIP_UPPER(a, b) PICK(a, b, 2, 6, 3, 7)
#define NEXT(a, b) PICK(a, b, 1, 2, 3, 4)
#endif

/* Deals 4 LANES floats from memory out to four vectors in turn: lane j of vector i is float 4 j + i. */
static inline void load_dealt(const float *from, vfloat *restrict to) {
    vfloat a = load(from), b = load(from + LANES), c = load(from + 2 * LANES), d = load(from + 3 * LANES);
    vfloat even01 = EVEN(a, b), odd01 = ODD(a, b), even23 = EVEN(c, d), odd23 = ODD(c, d);
    to[0] = EVEN(even01, even23), to[2] = ODD(even01, even23);
    to[1] = EVEN(odd01, odd23), to[3] = ODD(odd01, odd23);
}

/* Puts the four vectors of such a deal back into the order of memory. */
static inline void collect(vfloat *restrict of) {
    vfloat lower02 = ZIP_LOWER(of[0], of[2]), upper02 = ZIP_UPPER(of[0], of[2]);
    vfloat lower13 = ZIP_LOWER(of[1], of[3]), upper13 = ZIP_UPPER(of[1], of[3]);
    of[0] = ZIP_LOWER(lower02, lower13), of[1] = ZIP_UPPER(lower02, lower13);
    of[2] = ZIP_LOWER(upper02, upper13), of[3] = ZIP_UPPER(upper02, upper13);
}

#endif
