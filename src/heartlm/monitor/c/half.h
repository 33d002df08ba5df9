/* IEEE half floats: finite ones, as what is kept of many streams. */
#ifndef HEARTLM_HALF_H
#define HEARTLM_HALF_H

#include "vector.h"

/* The nearest half float, the even one of two; beyond their range the greatest. */
static inline uint16_t to_half(float value) {
    uint32_t bits, size;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000;
    size = bits & 0x7FFFFFFF;
    if (size >= 0x477FF000) return (uint16_t)(sign | 0x7BFF);
    if (size >= 0x38800000) return (uint16_t)(sign | (size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13);
    memcpy(&value, &size, sizeof value);
    value = value * 0x1p24f + 0x1p23f; /* a multiple of 2^-24: adding 2^23 rounds to a whole number */
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(sign | (bits & 0x7FFF));
}

/* LANES numbers as half floats. */
static inline void store_halves(uint16_t *to, vfloat value) {
#if defined(__AVX512F__)
    __m512 limited = _mm512_min_ps(_mm512_max_ps((__m512)value, _mm512_set1_ps(-65504)), _mm512_set1_ps(65504));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph(limited, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
    __m256 limited = _mm256_min_ps(_mm256_max_ps((__m256)value, _mm256_set1_ps(-65504)), _mm256_set1_ps(65504));
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(limited, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    for (int lane = 0; lane < LANES; lane++) to[lane] = to_half(value[lane]);
#endif
}

typedef uint16_t vhalf __attribute__((vector_size(2 * LANES)));

/* The first `count` of LANES half floats, or all; what lies beyond is neither read, and zero. */
static inline vfloat load_halves(const uint16_t *from, int64_t count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    __mmask16 lanes = count < LANES ? (__mmask16)((1u << count) - 1) : 0xFFFF;
    return (vfloat)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, from));
#else
    vhalf halves = {0};
    if (count >= LANES) memcpy(&halves, from, sizeof halves);
    else memcpy(&halves, from, sizeof(uint16_t) * (size_t)count);
#if defined(__F16C__)
    return (vfloat)_mm256_cvtph_ps((__m128i)halves);
#endif
    vint bits = __builtin_convertvector(halves, vint);
    return (vfloat)((bits & 0x8000) << 16 | (bits & 0x7FFF) << 13) * all_lanes(0x1p112f);
#endif
}

#endif
