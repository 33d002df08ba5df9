/* Which variant of the kernels this machine can run, and which sources they were built from. */
#include <stdint.h>

/* 0 portable, 1 AVX2 with FMA and BMI2, 2 AVX-512 F, BW, VL and DQ as well. */
__attribute__((visibility("default"))) int32_t heartlm_cpu_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return 1;
    return 2;
#else
    return 0;
#endif
}

/* SHA-256 over the SHA-256 of each source in the order of their names, in hexadecimal digits. */
__attribute__((visibility("default"))) const char *heartlm_sources(void) { return HEARTLM_SOURCES; }
