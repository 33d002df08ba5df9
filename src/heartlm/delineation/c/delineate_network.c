/* The network of heartlm.delineation over a lead: at every 8 ms the probabilities that it shows no wave, P, QRS and T.
 *
 *     250 Hz ─► 125 ─► 62.5 ─► 31.25 ─► 15.625 Hz ─► residual layers ─► 31.25 ─► 62.5 ─► 125 Hz ─► probabilities
 *
 * Every convolution pads with zeros and ends in a ReLU. On the way up a layer of kernel 1 is repeated twice and added to
 * the layer of the same rate on the way down. The lead is cut into tiles that fit in the cache; each is computed with
 * HALO samples on the sides where the lead continues, which is more than what an answer depends on, so that the tiles
 * leave no trace.
 *
 * A tile is COLUMNS consecutive pieces of the lead next to each other: [time in a piece, channel, piece]. All vectors lie
 * over pieces, so that halving the rate, doubling it and any dilation are steps in the first dimension. The ends of a
 * piece continue in its neighbours, from which MARGIN times before and after it are copied. */
#include "kernel.h"
#include "transpose.h"
#include "vector.h"

#define MOST_LAYERS 16
#define GROUP 8      /* outputs whose weights lie together: [outer / GROUP, kernel, inner, GROUP], then the bias */
#define COLUMNS 48   /* three vectors of 16 */
#define MARGIN 8     /* times that a tap reaches */
#define MOST_TIMES 256
#define HALO 304     /* samples */
#define MULTIPLE 16  /* of a piece: the rate is halved four times */
#define ALIGNED 64   /* bytes */
#define LEVELS 5
#define CLASSES 4
#define LEAST -13.8f /* a lead alone may not rule out what the others show */

#if defined(__AVX512F__)
#define OUTPUTS 8
#else
#define OUTPUTS 4
#endif
#define VECTORS 3

/* Layers in the order of the picture; kernels.h declares it for Python. */
struct delineator {
    int64_t num_residual, inner[MOST_LAYERS], outer[MOST_LAYERS], kernel[MOST_LAYERS], dilation[MOST_LAYERS];
    const float *weights;
};

typedef struct {
    const float *weights;
    int64_t inner, outer, kernel, dilation;
} Layer;

/* How the sums of a convolution become outputs. */
enum ending { LINEAR, RELU, RESIDUAL /* ReLU, then added to `add` */, RISE /* twice, ReLU after `add` is added */ };

/* Copy to the `reach` times before and after the pieces what their neighbours have there; zeros outside of the tile. */
static void fill_margins(float *x, int64_t times, int64_t channels, int64_t reach) {
    for (int64_t i = 0; i < 2 * reach; i++) {
        int64_t time = i < reach ? -1 - i : times + i - reach;
        int64_t piece = i < reach ? -(i / times) - 1 : (i - reach) / times + 1; /* relative to that of the column */
        const float *from = x + (time - piece * times) * channels * COLUMNS;
        float *to = x + time * channels * COLUMNS;
        for (int64_t c = 0; c < channels; c++, from += COLUMNS, to += COLUMNS)
            if (piece == -1) {
                to[0] = 0;
                memcpy(to + 1, from, (COLUMNS - 1) * sizeof(float));
            } else if (piece == 1) {
                memcpy(to, from + 1, (COLUMNS - 1) * sizeof(float));
                to[COLUMNS - 1] = 0;
            } else
                for (int64_t column = 0; column < COLUMNS; column++)
                    to[column] = column + piece >= 0 && column + piece < COLUMNS ? from[column + piece] : 0;
    }
}

/* `outputs` channels of a convolution at one time: of `num_runs` runs of rows of x, with gaps between them. */
static inline __attribute__((always_inline)) void convolve_group(
    const float *x, int64_t run, int64_t num_runs, int64_t gap, const float *weights, const float *bias, int outputs,
    enum ending ending, const float *add, float *out, int64_t next) {
    for (int64_t column = 0; column < COLUMNS; column += VECTORS * LANES) {
        vfloat sums[OUTPUTS][VECTORS], zero = {0};
        for (int o = 0; o < outputs; o++)
            for (int v = 0; v < VECTORS; v++) sums[o][v] = all_lanes(bias[o]);
        const float *w = weights, *at = x + column;
        for (int64_t k = 0; k < num_runs; k++, at += gap)
            for (int64_t i = 0; i < run; i++, w += GROUP, at += COLUMNS) {
                vfloat values[VECTORS];
                for (int v = 0; v < VECTORS; v++) values[v] = load(at + v * LANES);
                for (int o = 0; o < outputs; o++)
                    for (int v = 0; v < VECTORS; v++)
                        sums[o][v] = multiply_add(all_lanes(w[o]), values[v], sums[o][v]);
            }
        for (int o = 0; o < outputs; o++)
            for (int v = 0; v < VECTORS; v++) {
                int64_t place = o * COLUMNS + column + v * LANES;
                vfloat sum = ending == RELU || ending == RESIDUAL ? larger(sums[o][v], zero) : sums[o][v];
                if (ending == RISE) {
                    store(out + place, larger(sum + load(add + place), zero));
                    store(out + next + place, larger(sum + load(add + next + place), zero));
                } else
                    store(out + place, ending == RESIDUAL ? sum + load(add + place) : sum);
            }
    }
}

/* A convolution of x to `times` times of the output, or twice as many, of which `num` of the tile lie in the lead. */
static void convolve(const Layer *of, float *x, int64_t times, int64_t stride, enum ending ending, const float *add,
                     int64_t num, float *out) {
    int64_t reach = of->kernel / 2 * of->dilation, row = of->inner * COLUMNS, next = of->outer * COLUMNS;
    int64_t num_runs = of->dilation > 1 ? of->kernel : 1, run = of->inner * of->kernel / num_runs;
    int64_t gap = (of->dilation - 1) * row, group_size = of->inner * of->kernel * GROUP, twice = ending == RISE ? 2 : 1;
    const float *bias = of->weights + (of->outer + GROUP - 1) / GROUP * group_size;
    fill_margins(x, stride * times, of->inner, reach);
    for (int64_t t = 0; t < times; t++)
        for (int64_t o = 0; o < of->outer; o += OUTPUTS) {
            const float *from = x + (stride * t - reach) * row, *w = of->weights + o / GROUP * group_size + o % GROUP;
            int64_t place = twice * t * next + o * COLUMNS;
            if (of->outer - o >= OUTPUTS)
                convolve_group(from, run, num_runs, gap, w, bias + o, OUTPUTS, ending, add + place, out + place, next);
            else
                convolve_group(from, run, num_runs, gap, w, bias + o, 4, ending, add + place, out + place, next);
        }
    for (int64_t t = 0; num < twice * times * COLUMNS && t < twice * times; t++) {
        int64_t inside = num > t ? (num - t - 1) / (twice * times) + 1 : 0;
        for (float *own = out + t * next; own < out + (t + 1) * next; own += COLUMNS)
            memset(own + inside, 0, (size_t)(COLUMNS - inside) * sizeof(float));
    }
}

static int64_t most_channels(const struct delineator *d) {
    int64_t most = GROUP, num = 11 + d->num_residual;
    for (int64_t i = 0; i < num; i++) most = d->outer[i] > most ? d->outer[i] : most;
    return most;
}

static int64_t size_of(const struct delineator *d, int64_t times) {
    return (times + 2 * MARGIN) * most_channels(d) * COLUMNS;
}

/* Floats of scratch that `delineate_network` needs. */
int64_t HEARTLM(delineate_network_scratch)(const struct delineator *d) {
    int64_t total = ALIGNED / sizeof(float) + 2 * (MOST_TIMES + 2 * MARGIN) * COLUMNS;
    for (int depth = 1; depth < LEVELS; depth++) total += 3 * size_of(d, MOST_TIMES >> depth);
    return total;
}

/* Logarithms of how probable the classes are relative to the most probable one, [CLASSES, num_samples / 2], at least
 * LEAST, of a lead as `delineate_prepare` leaves it; the number of samples is a multiple of 16. */
void HEARTLM(delineate_network)(const struct delineator *d, const float *x, int64_t num_samples, float *scratch,
                                float *out) {
    Layer layers[MOST_LAYERS];
    const float *weights = d->weights;
    int64_t num_layers = 11 + d->num_residual, cells = num_samples / 2;
    for (int64_t i = 0; i < num_layers; i++) {
        layers[i] = (Layer){weights, d->inner[i], d->outer[i], d->kernel[i], d->dilation[i]};
        int64_t padded = (d->outer[i] + GROUP - 1) / GROUP * GROUP;
        weights += padded * (d->inner[i] * d->kernel[i] + 1);
    }
    const Layer *residual = layers + 4, *up = residual + d->num_residual;
    float *line = scratch + (-(uintptr_t)scratch % ALIGNED) / sizeof(float);
    float *down[LEVELS], *spare[LEVELS], *other[LEVELS];
    down[0] = line + (MOST_TIMES + 2 * MARGIN) * COLUMNS + MARGIN * COLUMNS;
    float *free = line + 2 * (MOST_TIMES + 2 * MARGIN) * COLUMNS + MARGIN * most_channels(d) * COLUMNS;
    for (int depth = 1; depth < LEVELS; depth++) {
        int64_t size = size_of(d, MOST_TIMES >> depth);
        down[depth] = free, spare[depth] = free + size, other[depth] = free + 2 * size, free += 3 * size;
    }
    for (int64_t begin = 0, end; begin < num_samples; begin = end) {
        int64_t first = begin ? begin - HALO : 0, left = num_samples - first;
        int64_t times = (left + COLUMNS * MULTIPLE - 1) / (COLUMNS * MULTIPLE) * MULTIPLE;
        times = times < MOST_TIMES ? times : MOST_TIMES;
        int64_t tile = times * COLUMNS, num = left < tile ? left : tile;
        end = left <= tile ? num_samples : first + tile - HALO;
        memcpy(line, x + first, (size_t)num * sizeof(float));
        memset(line + num, 0, (size_t)(tile - num) * sizeof(float));
        turn_matrix(line, COLUMNS, times, times, down[0], COLUMNS);
        for (int depth = 1; depth < LEVELS; depth++)
            convolve(layers + depth - 1, down[depth - 1], times >> depth, 2, RELU, down[0], num >> depth, down[depth]);
        float *h = down[LEVELS - 1], *to = spare[LEVELS - 1];
        for (int64_t i = 0; i < d->num_residual; i++) {
            convolve(residual + i, h, times >> (LEVELS - 1), 1, RESIDUAL, h, num >> (LEVELS - 1), to);
            float *swap = h;
            h = to, to = swap;
        }
        for (int depth = LEVELS - 2; depth > 0; depth--) {
            const Layer *layer = up + 2 * (LEVELS - 2 - depth);
            convolve(layer, h, times >> (depth + 1), 1, RISE, down[depth], num >> depth, spare[depth]);
            h = other[depth];
            convolve(layer + 1, spare[depth], times >> depth, 1, RELU, h, num >> depth, h);
        }
        convolve(up + 6, h, times / 2, 1, LINEAR, h, num / 2, spare[1]);
        for (float *row = spare[1]; row < spare[1] + tile / 2 * CLASSES; row += CLASSES * COLUMNS)
            for (int column = 0; column < COLUMNS; column += LANES) {
                vfloat largest = load(row + column);
                for (int c = 1; c < CLASSES; c++) largest = larger(largest, load(row + c * COLUMNS + column));
                for (float *at = row + column; at < row + CLASSES * COLUMNS; at += COLUMNS)
                    store(at, larger(load(at) - largest, all_lanes(LEAST)));
            }
        for (int c = 0; c < CLASSES; c++) {
            turn_matrix(spare[1] + c * COLUMNS, times / 2, COLUMNS, CLASSES * COLUMNS, line, times / 2);
            memcpy(out + c * cells + begin / 2, line + (begin - first) / 2, (size_t)(end - begin) / 2 * sizeof(float));
        }
    }
}
