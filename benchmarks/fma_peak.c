/* What the machine can do at most: fused multiplications and additions on registers alone, enough of them at a time to
   hide their latency. */

#ifdef __AVX512F__
#define BYTES 64
#else
#define BYTES 32
#endif
#define CHAINS 12

typedef float vector __attribute__((vector_size(BYTES)));

/* Runs `times` rounds on each of `threads`; returns the multiplications and additions done. `sink` keeps them alive. */
double fma_work(long times, int threads, float *sink) {
#pragma omp parallel num_threads(threads)
    {
        vector sum[CHAINS], factor, term;
        for (int i = 0; i < BYTES / 4; i++) factor[i] = 0.999f, term[i] = 0.001f;
        for (int c = 0; c < CHAINS; c++) sum[c] = factor * (float)c;
        for (long n = 0; n < times; n++)
#pragma GCC unroll 12
            for (int c = 0; c < CHAINS; c++) sum[c] = sum[c] * factor + term;
        for (int c = 1; c < CHAINS; c++) sum[0] += sum[c];
#pragma omp atomic
        *sink += sum[0][0];
    }
    return 2.0 * times * threads * CHAINS * (BYTES / 4);
}
