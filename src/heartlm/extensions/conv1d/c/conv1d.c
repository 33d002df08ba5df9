/* The doors of the one-dimensional convolution: each call is put as correlations, and the way that is fastest for its
 * shape computes them. See conv1d.h for layouts.
 *
 * The caller hands over scratch, as many floats as `conv1d_scratch` says, at the start of a cache line. */
#include "conv1d.h"

enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };

/* All of a call but the arrays: whether a forward pass ends in a ReLU, and how many threads may work. */
typedef struct {
    conv1d_shape shape;
    int64_t relu, threads;
} conv1d_call;

/* The places of the taps are listed at the start of the scratch: two lists of `kernel_size`. */
static int64_t lists_size(const conv1d_shape *shape) {
    return in_lines(2 * shape->kernel_size * (int64_t)(sizeof(int64_t) / sizeof(float)));
}

static correlation with_places(correlation what) {
    what.least_place = what.most_place = what.num_taps > 0 ? what.place[0] : 0;
    for (int64_t k = 1; k < what.num_taps; k++) {
        what.least_place = smaller(what.least_place, what.place[k]);
        what.most_place = greater(what.most_place, what.place[k]);
    }
    return what;
}

static correlation forward_of(const conv1d_shape *shape, int64_t *lists) {
    int64_t taps = shape->kernel_size;
    int64_t num_in = shape->in_channels / shape->groups;
    int64_t *place = lists;
    int64_t *tap = lists + taps;
    int64_t out_length = out_length_of(shape);
    for (int64_t k = 0; k < taps; k++) place[k] = k * shape->dilation, tap[k] = k;
    return with_places((correlation){
        .batch = shape->batch, .groups = shape->groups,
        .num_in = num_in, .num_out = shape->out_channels / shape->groups,
        .source_length = shape->length, .origin = -shape->padding, .step = shape->stride,
        .weight_group = shape->out_channels / shape->groups * num_in * taps, .weight_out = num_in * taps,
        .weight_in = taps, .num_taps = taps, .place = place, .tap = tap,
        .out_length = out_length, .out_first = 0, .out_step = 1, .num_outputs = out_length});
}

/* Input places whose distance from the first padded one leaves `residue` when divided by the stride meet the taps whose
 * place does so too, and these see the output gradient without steps. */
static correlation input_gradient_of(const conv1d_shape *shape, int64_t residue, int64_t *lists) {
    int64_t num_in = shape->in_channels / shape->groups;
    int64_t stride = shape->stride;
    int64_t taps = 0;
    int64_t *place = lists, *tap = lists + shape->kernel_size;
    for (int64_t k = 0; k < shape->kernel_size; k++)
        if (k * shape->dilation % stride == residue) {
            place[taps] = -(k * shape->dilation / stride);
            tap[taps++] = k;
        }
    int64_t first = (residue - shape->padding % stride + stride) % stride;
    return with_places((correlation){
        .batch = shape->batch, .groups = shape->groups,
        .num_in = shape->out_channels / shape->groups, .num_out = num_in,
        .source_length = out_length_of(shape), .origin = (first + shape->padding) / stride, .step = 1,
        .weight_group = shape->out_channels / shape->groups * num_in * shape->kernel_size,
        .weight_out = shape->kernel_size, .weight_in = num_in * shape->kernel_size,
        .num_taps = taps, .place = place, .tap = tap, .out_length = shape->length, .out_first = first,
        .out_step = stride, .num_outputs = first < shape->length ? (shape->length - first - 1) / stride + 1 : 0});
}

static int64_t scratch_of(const correlation *what, int64_t threads) {
    return LOCAL(toom_cook_is_faster)(what) ? LOCAL(toom_cook_scratch)(what, threads)
                                            : LOCAL(direct_scratch)(what, threads);
}

static void correlate(const correlation *what, int64_t threads, float *scratch) {
    if (LOCAL(toom_cook_is_faster)(what))
        LOCAL(toom_cook)(what, threads, scratch);
    else
        LOCAL(direct)(what, threads, scratch);
}

/* Floats of scratch that a call needs. */
int64_t HEARTLM(conv1d_scratch)(const conv1d_call *call, int64_t pass, int64_t *lists) {
    const conv1d_shape *shape = &call->shape;
    int64_t most = 0, threads = call->threads;
    if (pass == FORWARD) {
        const correlation what = forward_of(shape, lists);
        most = scratch_of(&what, threads);
    } else if (pass == INPUT_GRADIENT)
        for (int64_t residue = 0; residue < shape->stride; residue++) {
            const correlation what = input_gradient_of(shape, residue, lists);
            most = greater(most, scratch_of(&what, threads));
        }
    else if (LOCAL(toom_cook_weight_gradient_is_faster)(shape))
        most = LOCAL(toom_cook_weight_gradient_scratch)(shape, threads);
    else
        most = LOCAL(weight_gradient_scratch)(shape, threads);
    return lists_size(shape) + most;
}

/* out `[N, C_out, out_length]` from x `[N, C_in, L]`; no bias where that is null. */
void HEARTLM(conv1d_forward)(const conv1d_call *call, const float *x, const float *weight, const float *bias,
                             float *out, float *scratch) {
    correlation what = forward_of(&call->shape, (int64_t *)scratch);
    what.source = x, what.weight = weight, what.bias = bias, what.out = out, what.relu = call->relu != 0;
    correlate(&what, call->threads, scratch + lists_size(&call->shape));
}

/* dx `[N, C_in, L]` from dy `[N, C_out, out_length]`, which is zero where there is a gate of its shape that is not
 * positive: the result of a ReLU. */
void HEARTLM(conv1d_input_gradient)(const conv1d_call *call, const float *dy, const float *gate, const float *weight,
                                    float *dx, float *scratch) {
    const conv1d_shape *shape = &call->shape;
    for (int64_t residue = 0; residue < shape->stride; residue++) {
        correlation what = input_gradient_of(shape, residue, (int64_t *)scratch);
        what.source = dy, what.gate = gate, what.weight = weight, what.out = dx;
        if (what.num_outputs > 0)
            correlate(&what, call->threads, scratch + lists_size(shape));
    }
}

/* dweight and, unless that is null, dbias `[C_out]`; the gate is as above. */
void HEARTLM(conv1d_weight_gradient)(const conv1d_call *call, const float *x, const float *dy, const float *gate,
                                     float *dweight, float *dbias, float *scratch) {
    const conv1d_shape *shape = &call->shape;
    if (LOCAL(toom_cook_weight_gradient_is_faster)(shape))
        LOCAL(toom_cook_weight_gradient)(shape, x, dy, gate, dweight, dbias, call->threads, scratch);
    else
        LOCAL(weight_gradient)(shape, x, dy, gate, dweight, dbias, call->threads, scratch);
}
