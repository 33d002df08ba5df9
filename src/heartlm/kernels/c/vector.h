/* Vectors of floats as wide as the kind of processor this is compiled for has them, in the compiler's own vector types:
 * sums, products and comparisons are written as for numbers. What those types lack stands here. */
#ifndef HEARTLM_VECTOR_H
#define HEARTLM_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#if defined(__AVX2__)
#include <immintrin.h>
#endif

typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef int32_t vint __attribute__((vector_size(4 * LANES)));
typedef double vdouble __attribute__((vector_size(4 * LANES)));

static inline vfloat load(const float *from) {
    vfloat value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* x in every lane; added to zero it would cost an addition, because of negative zero. */
static inline vfloat all_lanes(float x) { return x - (vfloat){0}; }

static inline void store(float *to, vfloat value) { memcpy(to, &value, sizeof value); }

#if defined(__AVX2__) && !defined(__AVX512F__)
/* All bits of lanes `begin` to `end`. */
static inline __m256i lanes_between(int64_t begin, int64_t end) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i before_end = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)end), lane);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)begin), lane), before_end);
}
#endif

/* Lanes `begin` to `end`, of which either may lie outside; the others are not read, and zero. */
static inline vfloat load_between(const float *from, int64_t begin, int64_t end) {
    if (begin <= 0 && end >= LANES)
        return load(from);
    begin = begin < 0 ? 0 : begin < LANES ? begin : LANES;
    end = end < begin ? begin : end < LANES ? end : LANES;
#if defined(__AVX512F__)
    return (vfloat)_mm512_maskz_loadu_ps((__mmask16)((1u << end) - (1u << begin)), from);
#elif defined(__AVX2__)
    return (vfloat)_mm256_maskload_ps(from, lanes_between(begin, end));
#else
    vfloat value = {0};
    for (int64_t lane = begin; lane < end; lane++) value[lane] = from[lane];
    return value;
#endif
}

/* The first `count` of LANES floats, or all; what lies beyond is neither read, and zero, nor written. */
static inline vfloat load_first(const float *from, int64_t count) { return load_between(from, 0, count); }

static inline void store_first(float *to, vfloat value, int64_t count) {
    count = count < LANES ? count : LANES; /* callers pass what is left of a row */
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)value);
#elif defined(__AVX2__)
    _mm256_maskstore_ps(to, lanes_between(0, count), (__m256)value);
#else
    for (int64_t lane = 0; lane < count; lane++) to[lane] = value[lane];
#endif
}

/* LANES / 2 floats as doubles, and back. */
static inline vdouble load_doubles(const float *from) {
#if defined(__AVX512F__)
    return (vdouble)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif defined(__AVX2__)
    return (vdouble)_mm256_cvtps_pd(_mm_loadu_ps(from));
#else
    return (vdouble){from[0], from[1]};
#endif
}

static inline void store_doubles(float *to, vdouble value) {
#if defined(__AVX512F__)
    _mm256_storeu_ps(to, _mm512_cvtpd_ps((__m512d)value));
#elif defined(__AVX2__)
    _mm_storeu_ps(to, _mm256_cvtpd_ps((__m256d)value));
#else
    for (int j = 0; j < LANES / 2; j++) to[j] = (float)value[j];
#endif
}

/* a * b + c, rounded once where the processor can and twice where not: for sums whose last bit does not matter. */
static inline vfloat multiply_add(vfloat a, vfloat b, vfloat c) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline vfloat larger(vfloat a, vfloat b) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vfloat)_mm256_max_ps((__m256)a, (__m256)b);
#else
    vint mask = a > b;
    return (vfloat)(((vint)a & mask) | ((vint)b & ~mask));
#endif
}

/* Lanes of a where `gate` is positive (or not a number), elsewhere zero. */
static inline vfloat gated(vfloat a, vfloat gate) { return (vfloat)((vint)a & ~(gate <= (vfloat){0})); }

#if defined(__AVX2__)
static inline float sum_of_four(__m128 a) {
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
#endif

static inline float sum_of_lanes(vfloat a) {
#if defined(__AVX512F__)
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)a), _mm512_extractf32x8_ps((__m512)a, 1));
    return sum_of_four(_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(__AVX2__)
    return sum_of_four(_mm_add_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1)));
#else
    return (a[0] + a[2]) + (a[1] + a[3]);
#endif
}

static inline float largest_lane(vfloat a) {
    float lanes[LANES];
    store(lanes, a);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) lanes[j] = lanes[j] > lanes[j + width] ? lanes[j] : lanes[j + width];
    return lanes[0];
}

/* Bit j says whether value j of 64 is at least `limit`. */
static inline uint64_t at_least(const float *values, float limit) {
    uint64_t mask = 0;
#if defined(__AVX512F__)
    __m512 limits = _mm512_set1_ps(limit);
    for (int j = 0; j < 64; j += 16)
        mask |= (uint64_t)_mm512_cmp_ps_mask(_mm512_loadu_ps(values + j), limits, _CMP_GE_OQ) << j;
#elif defined(__AVX2__)
    __m256 limits = _mm256_set1_ps(limit);
    for (int j = 0; j < 64; j += 8) {
        __m256 found = _mm256_cmp_ps(_mm256_loadu_ps(values + j), limits, _CMP_GE_OQ);
        mask |= (uint64_t)(uint32_t)_mm256_movemask_ps(found) << j;
    }
#else
    for (int j = 0; j < 64; j++) mask |= (uint64_t)(values[j] >= limit) << j;
#endif
    return mask;
}

#endif
