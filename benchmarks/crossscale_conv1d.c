/* The convolution of the CrossScale study, written again from its description, as a rival of ours: OpenMP over the batch,
   one dot product per output, AVX2 over the width of the kernel. Widths below 8 never reach the vector loop.
   One channel, no padding: x [batch, length], weight [size], y [batch, length - size + 1]. */

#include <immintrin.h>

static float dot(const float *x, const float *weight, int size) {
    float sum = 0.0f;
    int k = 0;
    if (size >= 8) {
        __m256 lanes = _mm256_setzero_ps();
        for (; k + 8 <= size; k += 8)
            lanes = _mm256_fmadd_ps(_mm256_loadu_ps(x + k), _mm256_loadu_ps(weight + k), lanes);
        float parts[8];
        _mm256_storeu_ps(parts, lanes);
        for (int i = 0; i < 8; i++) sum += parts[i];
    }
    for (; k < size; k++) sum += x[k] * weight[k];
    return sum;
}

void crossscale_conv1d(const float *x, const float *weight, float *y, int batch, int length, int size, int threads) {
    int out_length = length - size + 1;
#pragma omp parallel for num_threads(threads)
    for (int n = 0; n < batch; n++)
        for (int t = 0; t < out_length; t++)
            y[(long)n * out_length + t] = dot(x + (long)n * length + t, weight, size);
}
