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

typedef uint16_t vhalf __attribute__((vector_size(2 * LANES)));

/* The first `count` of LANES half floats, or all; what lies beyond is neither read, and zero. */
static inline vfloat load_halves(const uint16_t *from, int64_t count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    __mmask16 lanes = count < LANES ? (__mmask16)((1u << count) - 1) : 0xFFFF;
    return (vfloat)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, from));
#else
    vhalf halves = {0};
    memcpy(&halves, from, sizeof(uint16_t) * (size_t)(count < LANES ? count : LANES));
    vint bits = __builtin_convertvector(halves, vint);
    return (vfloat)((bits & 0x8000) << 16 | (bits & 0x7FFF) << 13) * all_lanes(0x1p112f);
#endif
}

#endif
