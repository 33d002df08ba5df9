/* What the files of the one-dimensional convolution share.
 *
 * Signals are float32 `[N, C, L]`, weights `[C_out, C_in / groups, K]`, both contiguous. Forward pass and gradient of
 * the input are one thing here, a correlation: each output is a sum over input channels and taps of a source, read at
 * places that move on from output to output, times weights. Only where they begin and how far they step differs, so
 * each way to compute one serves both. */
#ifndef HEARTLM_CONV1D_H
#define HEARTLM_CONV1D_H

#include <string.h>

#include "kernel.h"
#include "vector.h"

/* A name of this kind of processor that only other kernels call. */
#define LOCAL(name) HEARTLM_JOIN(name, HEARTLM_VARIANT)

#define ALWAYS static inline __attribute__((always_inline))

typedef struct {
    int64_t batch, in_channels, length, out_channels, kernel_size, stride, padding, dilation, groups;
} conv1d_shape;

/* Output t of row o of a group is
 *     bias[o] + sum over i, k of
 *         source[i][origin + t * step + place[k]] * weight[o * weight_out + i * weight_in + tap[k]]
 * with zeros around the source, and goes to place out_first + t * out_step of its row. Unless `gate` is null, which has
 * the source's layout, the source counts as zero where that is not positive. */
typedef struct {
    int64_t batch, groups, num_in, num_out;
    const float *source, *gate;
    int64_t source_length, origin, step;
    const float *weight;
    int64_t weight_group, weight_out, weight_in;
    int64_t num_taps, least_place, most_place;
    const int64_t *place, *tap;
    const float *bias;
    int32_t relu;
    float *out;
    int64_t out_length, out_first, out_step, num_outputs;
} correlation;

/* Work too small to wake another thread for, in multiply-adds a thread. */
#define LEAST_WORK 200000

static inline int64_t out_length_of(const conv1d_shape *shape) {
    return (shape->length + 2 * shape->padding - shape->dilation * (shape->kernel_size - 1) - 1) / shape->stride + 1;
}

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* `size` in whole cache lines of floats. */
static inline int64_t in_lines(int64_t size) { return quotient_up(size, 16) * 16; }

/* How many of `threads` are worth waking for these multiply-adds in `units` that can be shared out. */
static inline int64_t threads_for(double multiply_adds, int64_t units, int64_t threads) {
    threads = smaller(threads, units);
    return greater(1, smaller(threads, (int64_t)(multiply_adds / LEAST_WORK)));
}

/* The gate of what lies `place` floats further on, if there is a gate. */
static inline const float *gate_at(const float *gate, int64_t place) { return gate == NULL ? NULL : gate + place; }

/* to[i] = from[first + i * step], zero outside of `from`, for i < size; zero also where there is a gate that is not
 * positive. */
static inline void copy_window(const float *from, const float *gate, int64_t length, int64_t first, int64_t step,
                               int64_t size, float *to) {
    if (gate != NULL) {
        for (int64_t i = 0; i < size; i += LANES) {
            int64_t begin = -first - i, end = length - first - i;
            vfloat value = load_between(from + first + i, begin, end);
            store_first(to + i, gated(value, load_between(gate + first + i, begin, end)), size - i);
        }
        return;
    }
    if (step == 1) {
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES)
            store(to + i, load_between(from + first + i, -first - i, length - first - i));
        if (i < size)
            store_first(to + i, load_between(from + first + i, -first - i, length - first - i), size - i);
        return;
    }
    int64_t begin = first < 0 ? smaller(size, quotient_up(-first, step)) : 0;
    int64_t end = first < length ? greater(begin, smaller(size, quotient_up(length - first, step))) : begin;
    memset(to, 0, (size_t)begin * sizeof *to);
    for (int64_t i = begin; i < end; i++) to[i] = from[first + i * step];
    memset(to + end, 0, (size_t)(size - end) * sizeof *to);
}

/* conv1d_direct.c */
int64_t LOCAL(direct_scratch)(const correlation *what, int64_t threads);
void LOCAL(direct)(const correlation *what, int64_t threads, float *scratch);

/* conv1d_toom_cook.c, for those correlations where it says that it is the faster. */
int32_t LOCAL(toom_cook_is_faster)(const correlation *what);
int64_t LOCAL(toom_cook_scratch)(const correlation *what, int64_t threads);
void LOCAL(toom_cook)(const correlation *what, int64_t threads, float *scratch);

/* conv1d_weight_gradient.c */
int64_t LOCAL(weight_gradient_scratch)(const conv1d_shape *shape, int64_t threads);
void LOCAL(weight_gradient)(const conv1d_shape *shape, const float *x, const float *dy, const float *gate,
                            float *dweight, float *dbias, int64_t threads, float *scratch);

/* conv1d_toom_cook_weights.c, the same for the gradient of the weights. */
int32_t LOCAL(toom_cook_weight_gradient_is_faster)(const conv1d_shape *shape);
int64_t LOCAL(toom_cook_weight_gradient_scratch)(const conv1d_shape *shape, int64_t threads);
void LOCAL(toom_cook_weight_gradient)(const conv1d_shape *shape, const float *x, const float *dy, const float *gate,
                                      float *dweight, float *dbias, int64_t threads, float *scratch);

#endif
