/* The product at the heart of every way to convolve: a block of output channels times some vectors of positions, kept
 * in registers while all input channels and taps pass by.
 *
 *     positions t0 ...            +LANES          +2 LANES
 *     channel 0   [ sum 0,0 ]     [ sum 0,1 ]     [ sum 0,2 ]     each tap: load as many vectors of the input as there
 *     channel 1   [ sum 1,0 ]     [ sum 1,1 ]     [ sum 1,2 ]     are columns, shifted by the tap, and one weight a
 *     ...                                                         row, spread over the lanes; add products of all pairs
 *
 * A tall block loads little for each multiply-add; how tall it can be is a matter of registers: 32 of them with
 * AVX-512, 16 otherwise. */
#ifndef HEARTLM_CONV1D_TILE_H
#define HEARTLM_CONV1D_TILE_H

#include "conv1d.h"

#if defined(__AVX512F__)
#define MOST_CHANNELS 8
#define MOST_VECTORS 8
#else
#define MOST_CHANNELS 4
#define MOST_VECTORS 6
#endif

/* How many vectors go with a block of 1, 2, 4 or 8 channels. */
static inline int64_t vectors_beside(int64_t channels) {
#if defined(__AVX512F__)
    return channels == 8 ? 3 : channels == 4 ? 6 : 8;
#elif defined(__AVX2__)
    return channels == 4 ? 3 : channels == 2 ? 5 : 6;
#else
    return channels == 4 ? 2 : channels == 2 ? 4 : 6;
#endif
}

/* The block for what is left of the output channels. */
static inline int64_t channels_at_once(int64_t left) {
    return left >= MOST_CHANNELS ? MOST_CHANNELS : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Input channel i at tap k is the row at x + i * x_in + x_tap[k], its weight for channel o stands at
 * weight + o * weight_out + i * weight_in + weight_tap[k]. `last` lanes of the last vector are written. */
typedef struct {
    const float *x;
    int64_t x_in;
    const float *weight;
    int64_t weight_out, weight_in;
    const int64_t *x_tap, *weight_tap;
    int64_t num_in, num_taps;
    const float *bias;
    float *out;
    int64_t out_row, last;
    int32_t relu;
} tile;

ALWAYS void tile_of(const tile *restrict of, int channels, int vectors) {
    vfloat sum[MOST_CHANNELS][MOST_VECTORS];
#pragma GCC unroll 8
    for (int c = 0; c < channels; c++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sum[c][v] = (of->bias == NULL ? 0.0f : of->bias[c]) - (vfloat){0};
    const float *in_x = of->x, *in_weight = of->weight;
    int64_t weight_out = of->weight_out;
    for (int64_t i = 0; i < of->num_in; i++, in_x += of->x_in, in_weight += of->weight_in)
        for (int64_t k = 0; k < of->num_taps; k++) {
            const float *x = in_x + of->x_tap[k];
            const float *weight = in_weight + of->weight_tap[k];
            vfloat column[MOST_VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) column[v] = load(x + v * LANES);
#pragma GCC unroll 8
            for (int c = 0; c < channels; c++) {
                float row = weight[c * weight_out];
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) sum[c][v] += row * column[v];
            }
        }
    if (of->relu)
#pragma GCC unroll 8
        for (int c = 0; c < channels; c++)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) sum[c][v] = larger(sum[c][v], (vfloat){0});
    float *out = of->out;
    int64_t out_row = of->out_row, last = of->last;
#pragma GCC unroll 8
    for (int c = 0; c < channels; c++, out += out_row) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors - 1; v++) store(out + v * LANES, sum[c][v]);
        store_first(out + (vectors - 1) * LANES, sum[c][vectors - 1], last);
    }
}

#define TILE(channels, vectors)                                                                                        \
    static void tile_##channels##_##vectors(const tile *of) { tile_of(of, channels, vectors); }
#define TILES(channels)                                                                                                \
    TILE(channels, 1)                                                                                                  \
    TILE(channels, 2) TILE(channels, 3) TILE(channels, 4) TILE(channels, 5) TILE(channels, 6)
#define NAMES(channels)                                                                                                \
    tile_##channels##_1, tile_##channels##_2, tile_##channels##_3, tile_##channels##_4, tile_##channels##_5,           \
        tile_##channels##_6

TILES(1)
TILES(2)
TILES(4)
#if defined(__AVX512F__)
TILE(1, 7)
TILE(1, 8)
TILE(2, 7)
TILE(2, 8)
TILE(8, 1)
TILE(8, 2)
TILE(8, 3)
#endif

/* A block of 1, 2, 4 or 8 channels and at most as many vectors as go with it. */
static inline void run_tile(const tile *of, int64_t channels, int64_t vectors) {
    typedef void (*function)(const tile *);
#if defined(__AVX512F__)
    static const function functions[4][MOST_VECTORS] = {
        {NAMES(1), tile_1_7, tile_1_8}, {NAMES(2), tile_2_7, tile_2_8}, {NAMES(4)}, {tile_8_1, tile_8_2, tile_8_3}};
#else
    static const function functions[3][MOST_VECTORS] = {{NAMES(1)}, {NAMES(2)}, {NAMES(4)}};
#endif
    functions[channels == 8 ? 3 : channels / 2][vectors - 1](of);
}

#endif
