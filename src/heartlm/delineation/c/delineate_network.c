/* The network of heartlm.delineation over a lead: at every 8 ms the probabilities that it shows no wave, P, QRS and T.
 *
 *     250 Hz ─► 125 ─► 62.5 ─► 31.25 ─► 15.625 Hz ─► residual layers ─► 31.25 ─► 62.5 ─► 125 Hz ─► probabilities
 *
 * Every convolution pads with zeros and ends in a ReLU. On the way up a layer of kernel 1 is repeated twice and added to
 * the layer of the same rate on the way down. The lead is cut into tiles that fit in the cache; each is computed with
 * HALO samples on either side, which is more than what an answer depends on, so that the tiles leave no trace. */
#include "kernel.h"
#include "vector.h"

#define MOST_LAYERS 16
#define GROUP 8   /* outputs whose weights lie next to each other: [outer / GROUP, inner, kernel, GROUP], then the bias */
#define PAD 64    /* floats before and after each row: what a tap reaches, and what the last vectors write too much */
#define TILE 5536 /* samples; with the halo every level is a whole number of three vectors of 16 */
#define HALO 304
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

/* A level of a tile: rows of `length` values, the first of which is number `start` of `total` of the lead. */
typedef struct {
    int64_t start, length, total, row;
} Level;

typedef struct {
    const float *weights;
    int64_t inner, outer, kernel, dilation;
} Layer;

static Level level_of(int64_t start, int64_t length, int64_t total, int depth) {
    return (Level){start >> depth, length >> depth, total >> depth, (length >> depth) + 2 * PAD};
}

/* Zero what lies outside of the lead, and the padding. */
static void clear_outside(const Level *of, float *rows, int64_t num) {
    int64_t begin = of->start < 0 ? -of->start : 0, end = of->total - of->start;
    end = end > of->length ? of->length : end < begin ? begin : end;
    begin = begin > end ? end : begin;
    for (int64_t i = 0; i < num; i++, rows += of->row) {
        memset(rows, 0, (size_t)(PAD + begin) * sizeof(float));
        memset(rows + PAD + end, 0, (size_t)(of->length - end + PAD) * sizeof(float));
    }
}

/* The even values of each row, then the odd ones, each as a row of the next level. */
static void split(const Level *from, const float *rows, int64_t num, const Level *to, float *out) {
    for (int64_t i = 0; i < num; i++, rows += from->row, out += 2 * to->row) {
        float *even = out, *odd = out + to->row;
        for (int64_t t = 0; t < to->row; t++) even[t] = odd[t] = 0;
        for (int64_t t = 0; t < to->length; t++)
            even[PAD + t] = rows[PAD + 2 * t], odd[PAD + t] = rows[PAD + 2 * t + 1];
    }
}

/* OUTPUTS rows of a convolution: `taps` says where each tap lies relative to an output. */
static inline void convolve_group(const float *x, int64_t inner, int64_t row, const int64_t *taps, int64_t kernel,
                                  const float *weights, const float *bias, int relu, const float *add, float *out,
                                  int64_t out_row, int64_t length) {
    vfloat zero = {0};
    for (int64_t t = 0; t < length; t += VECTORS * LANES) {
        vfloat sums[OUTPUTS][VECTORS];
        for (int o = 0; o < OUTPUTS; o++)
            for (int v = 0; v < VECTORS; v++) sums[o][v] = all_lanes(bias[o]);
        const float *w = weights;
        for (int64_t i = 0; i < inner; i++)
            for (int64_t k = 0; k < kernel; k++, w += GROUP) {
                const float *at = x + i * row + taps[k] + t;
                vfloat values[VECTORS];
                for (int v = 0; v < VECTORS; v++) values[v] = load(at + v * LANES);
                for (int o = 0; o < OUTPUTS; o++)
                    for (int v = 0; v < VECTORS; v++)
                        sums[o][v] = multiply_add(all_lanes(w[o]), values[v], sums[o][v]);
            }
        for (int o = 0; o < OUTPUTS; o++)
            for (int v = 0; v < VECTORS; v++) {
                vfloat sum = relu ? larger(sums[o][v], zero) : sums[o][v];
                int64_t place = o * out_row + t + v * LANES;
                store(out + place, add ? sum + load(add + place) : sum);
            }
    }
}

/* A convolution of x to rows of level `to`; with stride 2, x is split and its rows are pairs of them. */
static void convolve(const Layer *of, const float *x, int64_t row, int stride, int relu, const float *add, const Level *to,
                     float *out) {
    int64_t taps[32], half = of->kernel / 2, group_size = of->inner * of->kernel * GROUP;
    for (int64_t k = 0; k < of->kernel; k++) {
        int64_t shift = (k - half) * of->dilation;
        taps[k] = PAD + (stride == 2 ? (shift & 1) * row + (shift - (shift & 1)) / 2 : shift);
    }
    const float *bias = of->weights + (of->outer + GROUP - 1) / GROUP * group_size;
    for (int64_t o = 0; o < of->outer; o += OUTPUTS)
        convolve_group(x, of->inner, stride * row, taps, of->kernel, of->weights + o / GROUP * group_size + o % GROUP,
                       bias + o, relu, add ? add + o * to->row + PAD : NULL, out + o * to->row + PAD, to->row,
                       to->length);
    clear_outside(to, out, of->outer);
}

/* out = ReLU(rows of the level below, each value twice, + skip). */
static void rise(const Level *from, const float *rows, int64_t num, const Level *to, const float *skip, float *out) {
    for (int64_t i = 0; i < num; i++, rows += from->row, skip += to->row, out += to->row)
        for (int64_t t = 0; t < from->length; t++) {
            float even = rows[PAD + t] + skip[PAD + 2 * t], odd = rows[PAD + t] + skip[PAD + 2 * t + 1];
            out[PAD + 2 * t] = even > 0 ? even : 0, out[PAD + 2 * t + 1] = odd > 0 ? odd : 0;
        }
    clear_outside(to, out, num);
}

static int64_t most_rows(const struct delineator *d) {
    int64_t most = GROUP, num = 11 + d->num_residual;
    for (int64_t i = 0; i < num; i++) most = d->outer[i] > most ? d->outer[i] : most;
    return most;
}

/* Floats of scratch that `delineate_network` needs. */
int64_t HEARTLM(delineate_network_scratch)(const struct delineator *d) {
    int64_t samples = 0;
    for (int depth = 0; depth < LEVELS; depth++) samples += level_of(0, TILE + 2 * HALO, 0, depth).row;
    return 5 * samples * most_rows(d);
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
    for (int64_t begin = 0; begin < num_samples; begin += TILE) {
        Level levels[LEVELS];
        float *down[LEVELS], *pairs[LEVELS], *rows[LEVELS], *other[LEVELS], *free = scratch;
        for (int depth = 0; depth < LEVELS; depth++) {
            levels[depth] = level_of(begin - HALO, TILE + 2 * HALO, num_samples, depth);
            int64_t size = levels[depth].row * most_rows(d);
            down[depth] = free, rows[depth] = free + size, other[depth] = free + 2 * size, pairs[depth] = free + 3 * size;
            free += 5 * size;
        }
        const Level *all = levels;
        int64_t first = begin - HALO < 0 ? 0 : begin - HALO, last = begin + TILE + HALO;
        last = last > num_samples ? num_samples : last;
        clear_outside(all, down[0], 1);
        memcpy(down[0] + PAD + first - all->start, x + first, (size_t)(last - first) * sizeof(float));
        for (int depth = 1; depth < LEVELS; depth++) {
            const Layer *layer = layers + depth - 1;
            split(all + depth - 1, down[depth - 1], layer->inner, all + depth, pairs[depth]);
            convolve(layer, pairs[depth], all[depth].row, 2, 1, NULL, all + depth, down[depth]);
        }
        float *h = down[LEVELS - 1], *spare = rows[LEVELS - 1];
        for (int64_t i = 0; i < d->num_residual; i++) {
            convolve(residual + i, h, all[LEVELS - 1].row, 1, 1, h, all + LEVELS - 1, spare);
            float *swap = h;
            h = spare, spare = swap;
        }
        for (int depth = LEVELS - 2; depth > 0; depth--) {
            const Layer *layer = up + 2 * (LEVELS - 2 - depth);
            convolve(layer, h, all[depth + 1].row, 1, 0, NULL, all + depth + 1, other[depth + 1]);
            rise(all + depth + 1, other[depth + 1], layer->outer, all + depth, down[depth], rows[depth]);
            convolve(layer + 1, rows[depth], all[depth].row, 1, 1, NULL, all + depth, pairs[depth]);
            h = pairs[depth];
        }
        const Level *of = all + 1;
        convolve(up + 6, h, of->row, 1, 0, NULL, of, other[1]);
        int64_t own = cells - begin / 2 < TILE / 2 ? cells - begin / 2 : TILE / 2;
        const float *logits = other[1] + PAD + HALO / 2;
        for (int64_t t = 0; t < own; t += LANES) {
            int64_t left = own - t < LANES ? own - t : LANES;
            vfloat largest = load(logits + t);
            for (int c = 1; c < CLASSES; c++) largest = larger(largest, load(logits + c * of->row + t));
            for (int c = 0; c < CLASSES; c++)
                store_first(out + c * cells + begin / 2 + t,
                            larger(load(logits + c * of->row + t) - largest, all_lanes(LEAST)), left);
        }
    }
}
