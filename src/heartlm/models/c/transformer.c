/* The elementwise parts of a transformer block, forwards and backwards, each in one pass over memory. Matrices are
 * row-major and contiguous; rows are shared out over `threads` threads. */
#include <math.h>

#include "exponential.h"
#include "kernel.h"

#define LANES 16

#define BLOCK 64

/* 1 / (1 + e^-x) of up to BLOCK floats. */
static inline void sigmoids(const float *restrict x, int64_t size, float *restrict out) {
    float limited[BLOCK];
    for (int64_t i = 0; i < size; i++) limited[i] = -x[i] < -87.0f ? -87.0f : -x[i];
    for (int64_t i = 0; i < size; i++) limited[i] = limited[i] > 87.0f ? 87.0f : limited[i];
    for (int64_t i = 0; i < size; i++) out[i] = 1.0f / (1.0f + exponential(limited[i]));
}

/* Sum of a[i] * b[i], or of a[i] * b[i] * c[i], over a row, in LANES partial sums. */
static inline float dot(const float *a, const float *b, int64_t size) {
    float lane[LANES] = {0};
    int64_t whole = size / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += a[i + l] * b[i + l];
    for (int64_t i = whole; i < size; i++) lane[i - whole] += a[i] * b[i];
    float sum = 0.0f;
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

static inline float dot3(const float *a, const float *b, const float *c, int64_t size) {
    float lane[LANES] = {0};
    int64_t whole = size / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += a[i + l] * b[i + l] * c[i + l];
    for (int64_t i = whole; i < size; i++) lane[i - whole] += a[i] * b[i] * c[i];
    float sum = 0.0f;
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

/* y = x / rms(x) * weight for each of `rows` rows of `width`; inverse[row] keeps 1 / rms. */
void HEARTLM(rms_norm_forward)(const float *restrict x, const float *restrict weight, float epsilon, int64_t rows,
                               int64_t width, int32_t threads, float *restrict y, float *restrict inverse) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * width;
        float *to = y + row * width;
        float scale = 1.0f / sqrtf(dot(from, from, width) / (float)width + epsilon);
        for (int64_t i = 0; i < width; i++) to[i] = from[i] * scale * weight[i];
        inverse[row] = scale;
    }
}

/* Gradients of the above: `dx`, and `dweight` `[threads, width]`, zero before, whose sum over threads is the weight's. */
void HEARTLM(rms_norm_backward)(const float *restrict x, const float *restrict weight, const float *restrict inverse,
                                const float *restrict dy, int64_t rows, int64_t width, int32_t threads,
                                float *restrict dx, float *restrict dweight) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int32_t thread = 0; thread < threads; thread++) {
        float *sum = dweight + thread * width;
        int64_t stop = rows * (thread + 1) / threads;
        for (int64_t row = rows * thread / threads; row < stop; row++) {
            const float *from = x + row * width;
            const float *above = dy + row * width;
            float *to = dx + row * width;
            float scale = inverse[row];
            float pull = dot3(above, weight, from, width) * scale * scale * scale / (float)width;
            for (int64_t i = 0; i < width; i++) {
                to[i] = above[i] * weight[i] * scale - from[i] * pull;
                sum[i] += above[i] * from[i] * scale;
            }
        }
    }
}

/* out = silu(gate) * up, where a row of `gate_up` holds `width` gates and then as many ups. */
void HEARTLM(swiglu_forward)(const float *restrict gate_up, int64_t rows, int64_t width, int32_t threads,
                             float *restrict out) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const float *gate = gate_up + row * 2 * width;
        const float *up = gate + width;
        float *to = out + row * width;
        float sigmoid[BLOCK];
        for (int64_t begin = 0; begin < width; begin += BLOCK) {
            int64_t size = width - begin < BLOCK ? width - begin : BLOCK;
            sigmoids(gate + begin, size, sigmoid);
            for (int64_t i = 0; i < size; i++) to[begin + i] = gate[begin + i] * sigmoid[i] * up[begin + i];
        }
    }
}

/* Gradient of the above with respect to `gate_up`. */
void HEARTLM(swiglu_backward)(const float *restrict gate_up, const float *restrict dy, int64_t rows, int64_t width,
                              int32_t threads, float *restrict dgate_up) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const float *gate = gate_up + row * 2 * width;
        const float *up = gate + width;
        const float *above = dy + row * width;
        float *dgate = dgate_up + row * 2 * width;
        float *dup = dgate + width;
        float sigmoid[BLOCK];
        for (int64_t begin = 0; begin < width; begin += BLOCK) {
            int64_t size = width - begin < BLOCK ? width - begin : BLOCK;
            sigmoids(gate + begin, size, sigmoid);
            for (int64_t i = 0, j = begin; i < size; i++, j++) {
                float silu = gate[j] * sigmoid[i];
                dgate[j] = above[j] * up[j] * (sigmoid[i] + silu * (1.0f - sigmoid[i]));
                dup[j] = above[j] * silu;
            }
        }
    }
}
