/* Which variant of the kernels this machine can run, and which sources they were built from. */
#include <stdint.h>
#if defined(__x86_64__)
#include <cpuid.h>

/* The register state that the operating system saves when threads take turns (XCR0). */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}
#endif

/* 0 portable, 1 AVX2 with FMA, F16C and BMI2, 2 AVX-512 F, BW, VL and DQ as well.
 *
 * Asks the processor itself: `__builtin_cpu_supports` needs the compiler's own run-time library, and of zig's that says
 * no to everything. */
__attribute__((visibility("default"))) int32_t heartlm_cpu_level(void) {
#if defined(__x86_64__)
    const uint64_t ymm = 0x6, zmm = 0xe0; /* bits of XCR0: SSE and AVX; mask registers and both parts of ZMM */
    const uint32_t avx2 = bit_AVX2 | bit_BMI2;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    uint32_t a, b, c, d;
    const uint32_t basic = bit_OSXSAVE | bit_FMA | bit_F16C;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & basic) != basic) return 0;
    const uint64_t saved = saved_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & avx2) != avx2 || (saved & ymm) != ymm) return 0;
    return (b & avx512) == avx512 && (saved & zmm) == zmm ? 2 : 1;
#else
    return 0;
#endif
}

/* SHA-256 over the SHA-256 of each source in the order of their names, in hexadecimal digits. */
__attribute__((visibility("default"))) const char *heartlm_sources(void) { return HEARTLM_SOURCES; }
