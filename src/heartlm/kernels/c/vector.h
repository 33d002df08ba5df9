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

static inline void store(float *to, vfloat value) { memcpy(to, &value, sizeof value); }

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

static inline float sum_of_lanes(vfloat a) {
    float lanes[LANES];
    store(lanes, a);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) lanes[j] += lanes[j + width];
    return lanes[0];
}

static inline float largest_lane(vfloat a) {
    float lanes[LANES];
    store(lanes, a);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) lanes[j] = lanes[j] > lanes[j + width] ? lanes[j] : lanes[j + width];
    return lanes[0];
}

/* Bit j says whether a[j] >= limit. */
static inline uint32_t at_least(vfloat a, float limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, _mm512_set1_ps(limit), _CMP_GE_OQ);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, _mm256_set1_ps(limit), _CMP_GE_OQ));
#else
    uint32_t mask = 0;
    for (int j = 0; j < LANES; j++) mask |= (uint32_t)(a[j] >= limit) << j;
    return mask;
#endif
}

#endif
