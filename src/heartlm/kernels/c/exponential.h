/* e^x in float32 for -87 <= x <= 88, relative error below 2e-7: 2^n times a polynomial of the rest (Cephes expf). It has
 * no branches, so that loops of it become vector code; limit x in a loop before, or the compiler brings branches back. */
#ifndef HEARTLM_EXPONENTIAL_H
#define HEARTLM_EXPONENTIAL_H

#include "vector.h"

static inline float exponential(float x) {
    float shifted = x * 1.44269504088896341f + 12582912.0f; /* adding 1.5 * 2^23 rounds to a whole number */
    float n = shifted - 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return (p * r * r + r + 1.0f) * power;
}

/* The same of LANES numbers, and e^-87 below. */
static inline vfloat exponentials(vfloat x) {
    x = larger(x, all_lanes(-87.0f));
    vfloat shifted = x * 1.44269504088896341f + 12582912.0f, n = shifted - 12582912.0f;
    vfloat r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vfloat p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    vint power = (__builtin_convertvector(n, vint) + 127) << 23;
    return (p * r * r + r + 1.0f) * (vfloat)power;
}

#endif
