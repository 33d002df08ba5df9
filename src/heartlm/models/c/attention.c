/* Attention with rotary positions, forwards and backwards, for windows of heartbeats: some hundred tokens, narrow
 * heads.
 *
 * Per window and head everything stays in a scratch of a few hundred kilobytes: queries and keys are turned by their
 * position as they are copied there, ROWS queries at a time look at all keys, and only the output and one number a
 * query (the logarithm of its sum of exponentials) go back to memory. The backward pass computes the probabilities
 * again from that number, as FlashAttention does (Dao 2022, arXiv 2205.14135).
 *
 * Keys and values are `[B, T, H, W]`, queries and out `[N, H, W]`, T tokens, W a multiple of 16; rows of queries, keys
 * and values may lie apart, as side by side in one array. Queries of window b are rows first[b] to first[b + 1], at
 * the tokens `place`, ascending; where `first` is null there is one for each token. With `keys`, one a window, a
 * `share` of the probabilities is dropped, as models/dropout.py says. */
#include <math.h>
#include <string.h>

#include "exponential.h"
#include "kernel.h"

#if defined(__AVX512F__)
#define WIDTH 16
#define WIDE_ROWS 6
#define WIDE_VECTORS 4
#define TALL_ROWS 12
#elif defined(__AVX2__)
#define WIDTH 8
#define WIDE_ROWS 6
#define WIDE_VECTORS 2
#define TALL_ROWS 6
#else
#define WIDTH 4
#define WIDE_ROWS 4
#define WIDE_VECTORS 2
#define TALL_ROWS 4
#endif
#define TALL_VECTORS 2
#define MOST_ROWS (WIDE_ROWS > TALL_ROWS ? WIDE_ROWS : TALL_ROWS)
#define MOST_VECTORS (WIDE_VECTORS > TALL_VECTORS ? WIDE_VECTORS : TALL_VECTORS)
#define PAD 64
#define ROWS 48
#define AHEAD 16      /* rows */
#define CACHE_LINE 16 /* floats */

typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef int32_t integers __attribute__((vector_size(4 * WIDTH), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(4 * WIDTH)));

static inline int64_t padded(int64_t size) { return (size + PAD - 1) / PAD * PAD; }

/* c[m][n] (+)= sum over k of a[m * a_row + k * a_step] * b[k * b_row + n], for `rows` times `vectors` vectors of c. */
static inline __attribute__((always_inline)) void tile(const float *a, int64_t a_row, int64_t a_step, const float *b,
                                                       int64_t b_row, float *c, int64_t c_row, int64_t depth,
                                                       int rows, int vectors, int add) {
    vector sum[MOST_ROWS][MOST_VECTORS];
#pragma GCC unroll 12
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sum[m][v] = add ? *(vector *)(c + m * c_row + v * WIDTH) : (vector){0};
    for (int64_t k = 0; k < depth; k++) {
        vector right[MOST_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) right[v] = *(const vector *)(b + k * b_row + v * WIDTH);
#pragma GCC unroll 12
        for (int m = 0; m < rows; m++) {
            float left = a[m * a_row + k * a_step];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[m][v] += left * right[v];
        }
    }
#pragma GCC unroll 12
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) *(vector *)(c + m * c_row + v * WIDTH) = sum[m][v];
}

#define PRODUCT(name, ROWS_OF_TILE, VECTORS, ADD)                                                                      \
    static void name(const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row, float *c,           \
                     int64_t c_row, int64_t rows, int64_t columns, int64_t depth) {                                    \
        for (int64_t n = 0; n < columns; n += VECTORS * WIDTH) {                                                       \
            int64_t m = 0;                                                                                             \
            for (; m + ROWS_OF_TILE <= rows; m += ROWS_OF_TILE)                                                        \
                tile(a + m * a_row, a_row, a_step, b + n, b_row, c + m * c_row + n, c_row, depth, ROWS_OF_TILE,        \
                     VECTORS, ADD);                                                                                    \
            for (; m + 4 <= rows; m += 4)                                                                              \
                tile(a + m * a_row, a_row, a_step, b + n, b_row, c + m * c_row + n, c_row, depth, 4, VECTORS, ADD);    \
            for (; m < rows; m++)                                                                                      \
                tile(a + m * a_row, a_row, a_step, b + n, b_row, c + m * c_row + n, c_row, depth, 1, VECTORS, ADD);    \
        }                                                                                                              \
    }

PRODUCT(wide_product, WIDE_ROWS, WIDE_VECTORS, 0) /* columns a multiple of WIDE_VECTORS * WIDTH: tokens */
#if WIDTH == 16
PRODUCT(tall_product_1, TALL_ROWS, 1, 0) /* columns a multiple of 16: the width of a head */
PRODUCT(tall_sum_1, TALL_ROWS, 1, 1)
#endif
PRODUCT(tall_product_2, TALL_ROWS, TALL_VECTORS, 0)
PRODUCT(tall_sum_2, TALL_ROWS, TALL_VECTORS, 1)

static void tall_product(const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row, float *c,
                         int64_t c_row, int64_t rows, int64_t columns, int64_t depth) {
#if WIDTH == 16
    if (columns % 32) {
        tall_product_1(a, a_row, a_step, b, b_row, c, c_row, rows, columns, depth);
        return;
    }
#endif
    tall_product_2(a, a_row, a_step, b, b_row, c, c_row, rows, columns, depth);
}

static void tall_sum(const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row, float *c,
                     int64_t c_row, int64_t rows, int64_t columns, int64_t depth) {
#if WIDTH == 16
    if (columns % 32) {
        tall_sum_1(a, a_row, a_step, b, b_row, c, c_row, rows, columns, depth);
        return;
    }
#endif
    tall_sum_2(a, a_row, a_step, b, b_row, c, c_row, rows, columns, depth);
}

static inline float summed(vector lanes) {
    float sum = 0.0f;
    for (int l = 0; l < WIDTH; l++) sum += lanes[l];
    return sum;
}

/* The logits of a query, `size` of them in whole vectors, to e^(logit - peak). */
typedef struct {
    float peak, sum;
} softmax;

static softmax exponentiated(float *line, int64_t size) {
    int64_t whole = (size + WIDTH - 1) / WIDTH * WIDTH;
    for (int64_t i = size; i < whole; i++) line[i] = -1e30f;
    vector lanes = *(vector *)line, sums = {0};
    for (int64_t i = WIDTH; i < whole; i += WIDTH) lanes = larger(lanes, *(vector *)(line + i));
    float peak = lanes[0];
    for (int l = 1; l < WIDTH; l++) peak = lanes[l] > peak ? lanes[l] : peak;
    for (int64_t i = 0; i < whole; i += WIDTH) {
        vector share = exponentials(*(vector *)(line + i) - peak);
        *(vector *)(line + i) = share;
        sums += share;
    }
    return (softmax){peak, summed(sums)};
}

/* What drops probabilities of a window: a key, and from which hash on one is kept; all are kept where `scale` is 1. */
typedef struct {
    uint32_t key;
    int32_t least;
    float scale;
} drops;

static drops drops_of(const int32_t *keys, double share, int64_t window) {
    if (keys == NULL)
        return (drops){.scale = 1.0f};
    return (drops){
        .key = (uint32_t)keys[window],
        .least = (int32_t)((int64_t)(share * 4294967296.0) - 2147483648),
        .scale = (float)(1.0 / (1.0 - share)),
    };
}

/* All bits set where the probabilities from `place` on are kept. */
static inline integers kept(drops by, uint32_t place) {
    bits x;
    for (int l = 0; l < WIDTH; l++) x[l] = place + (uint32_t)l;
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    x = (x ^ x >> 16) + by.key;
    x = (x ^ x >> 16) * 0x7FEB352Du;
    x = (x ^ x >> 15) * 0x846CA68Bu;
    return (integers)x >= by.least;
}

static inline vector where(integers mask, vector a) { return (vector)((integers)a & mask); }

static void drop(drops by, uint32_t place, float *line, int64_t size) {
    for (int64_t i = 0; i < size; i += WIDTH)
        *(vector *)(line + i) = where(kept(by, place + (uint32_t)i), *(vector *)(line + i));
}

/* Logits to probabilities, and slopes of probabilities to slopes of logits; `level` is their mean slope. */
static void slopes_of_logits(float *line, float *slope, int64_t size, float lse, float level) {
    for (int64_t i = 0; i < size; i += WIDTH) {
        vector probability = exponentials(*(vector *)(line + i) - lse);
        *(vector *)(line + i) = probability;
        *(vector *)(slope + i) = probability * (*(vector *)(slope + i) - level);
    }
}

/* The same where some were dropped. */
static void slopes_with_drops(drops by, uint32_t place, float *line, float *slope, int64_t size, float lse,
                              float level) {
    for (int64_t i = 0; i < size; i += WIDTH) {
        integers is_kept = kept(by, place + (uint32_t)i);
        vector probability = exponentials(*(vector *)(line + i) - lse);
        *(vector *)(line + i) = where(is_kept, probability) * by.scale;
        *(vector *)(slope + i) = probability * (where(is_kept, *(vector *)(slope + i)) * by.scale - level);
    }
}

static float dot(const float *a, const float *b, int64_t width) {
    vector sums = {0};
    for (int64_t i = 0; i < width; i += WIDTH) sums += *(const vector *)(a + i) * *(const vector *)(b + i);
    return summed(sums);
}

static void scaled(float *row, int64_t width, float by) {
    for (int64_t i = 0; i < width; i += WIDTH) *(vector *)(row + i) *= by;
}

/* Cosines and sines of the positions, `[T, W / 2]` each. */
typedef struct {
    const float *cosine, *sine;
} angles;

/* Queries of a window: how many, and at which tokens; `place` is null where there is one for each token. */
typedef struct {
    int64_t first, num;
    const int64_t *place;
} queries;

static inline queries queries_of(const int64_t *first, const int64_t *place, int64_t window, int64_t tokens) {
    if (first == NULL)
        return (queries){window * tokens, tokens, NULL};
    return (queries){first[window], first[window + 1] - first[window], place + first[window]};
}

static inline int64_t token_of(const int64_t *place, int64_t row) { return place == NULL ? row : place[row]; }

/* Rows of a head lie too far apart for the processor to guess the next: ask for it some rows ahead. */
static inline void ask_to_read(const float *row, int64_t width) {
    for (int64_t i = 0; i < width; i += CACHE_LINE) __builtin_prefetch(row + i, 0);
}

static inline void ask_to_write(const float *row, int64_t width) {
    for (int64_t i = 0; i < width; i += CACHE_LINE) __builtin_prefetch(row + i, 1);
}

/* Copy rows of a head, `stride` apart, to `to`, turned by the position of their token and scaled. */
static void turned(const float *from, int64_t stride, angles by, const int64_t *place, int64_t rows, int64_t width,
                   float scale, float *to) {
    int64_t half = width / 2;
    for (int64_t row = 0; row < rows; row++, from += stride, to += width) {
        const float *cosine = by.cosine + token_of(place, row) * half;
        const float *sine = by.sine + token_of(place, row) * half;
        ask_to_read(from + AHEAD * stride, width);
        for (int64_t i = 0; i < half; i++) {
            to[i] = (from[i] * cosine[i] - from[half + i] * sine[i]) * scale;
            to[half + i] = (from[i] * sine[i] + from[half + i] * cosine[i]) * scale;
        }
    }
}

static void turned_back(const float *from, angles by, const int64_t *place, int64_t rows, int64_t width, float scale,
                        float *to, int64_t stride) {
    int64_t half = width / 2;
    for (int64_t row = 0; row < rows; row++, from += width, to += stride) {
        const float *cosine = by.cosine + token_of(place, row) * half;
        const float *sine = by.sine + token_of(place, row) * half;
        ask_to_write(to + AHEAD * stride, width);
        for (int64_t i = 0; i < half; i++) {
            to[i] = (from[i] * cosine[i] + from[half + i] * sine[i]) * scale;
            to[half + i] = (from[half + i] * cosine[i] - from[i] * sine[i]) * scale;
        }
    }
}

static void copied(const float *from, int64_t from_stride, int64_t rows, int64_t width, float *to, int64_t to_stride) {
    for (int64_t t = 0; t < rows; t++) {
        ask_to_read(from + (t + AHEAD) * from_stride, width);
        ask_to_write(to + (t + AHEAD) * to_stride, width);
        memcpy(to + t * to_stride, from + t * from_stride, (size_t)width * sizeof *to);
    }
}

typedef float four __attribute__((vector_size(16), aligned(4)));

/* Four rows of four numbers as columns. */
static inline void transposed_four(const float *from, int64_t row, float *to, int64_t column) {
    four a = *(const four *)from, b = *(const four *)(from + row), c = *(const four *)(from + 2 * row),
         d = *(const four *)(from + 3 * row);
    four ab = {a[0], b[0], a[1], b[1]}, ab_end = {a[2], b[2], a[3], b[3]};
    four cd = {c[0], d[0], c[1], d[1]}, cd_end = {c[2], d[2], c[3], d[3]};
    *(four *)to = (four){ab[0], ab[1], cd[0], cd[1]};
    *(four *)(to + column) = (four){ab[2], ab[3], cd[2], cd[3]};
    *(four *)(to + 2 * column) = (four){ab_end[0], ab_end[1], cd_end[0], cd_end[1]};
    *(four *)(to + 3 * column) = (four){ab_end[2], ab_end[3], cd_end[2], cd_end[3]};
}

/* Columns `[W, padded T]` of rows `[T, W]`; the padding is zero. */
static void transposed(const float *from, int64_t tokens, int64_t width, float *to) {
    int64_t across = padded(tokens);
    int64_t fours = tokens / 4 * 4;
    for (int64_t w = 0; w < width; w += 4)
        for (int64_t t = 0; t < fours; t += 4) transposed_four(from + t * width + w, width, to + w * across + t, across);
    for (int64_t w = 0; w < width; w++) {
        for (int64_t t = fours; t < tokens; t++) to[w * across + t] = from[t * width + w];
        for (int64_t t = tokens; t < across; t++) to[w * across + t] = 0.0f;
    }
}

/* How many keys a query at `token` sees. */
static inline int64_t seen(int64_t token, int64_t tokens, int32_t causal) { return causal ? token + 1 : tokens; }

/* The place in a window of the first probability of a query, from 1. */
static inline uint32_t place_of(int64_t head, int64_t token, int64_t tokens) {
    return (uint32_t)(1 + (head * tokens + token) * tokens);
}

/* Columns of keys and values; queries, keys, values and their slopes; logits and slopes of ROWS queries. Queries have
 * the room of keys, so a window has at most one for each token. */
static int64_t scratch_of(int64_t tokens, int64_t width) {
    return padded(tokens) * width * 2 + 6 * tokens * width + 2 * ROWS * padded(tokens);
}

/* Floats of scratch that one thread needs. */
int64_t HEARTLM(attention_scratch)(int64_t tokens, int64_t width) { return scratch_of(tokens, width); }

/* out and lse, `[H, N]`. `scratch` holds `attention_scratch` floats for each of `threads`. */
void HEARTLM(attention_forward)(const float *restrict query, int64_t query_stride, const float *restrict key,
                                const float *restrict value, int64_t key_stride, const float *restrict cosine,
                                const float *restrict sine, const int64_t *restrict first_query,
                                const int64_t *restrict place, int64_t num_queries, int64_t batch, int64_t tokens,
                                int64_t heads, int64_t width, int32_t causal, const int32_t *restrict keys,
                                double share, int32_t threads, float *restrict scratch, float *restrict out,
                                float *restrict lse) {
    int64_t across = padded(tokens);
    int64_t size = scratch_of(tokens, width);
    const angles turn = {cosine, sine};
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int32_t thread = 0; thread < threads; thread++) {
        float *columns = scratch + thread * size;
        float *q = columns + across * width;
        float *k = q + tokens * width;
        float *v = k + tokens * width;
        float *score = v + tokens * width;
        int64_t stop = batch * heads * (thread + 1) / threads;
        for (int64_t pair = batch * heads * thread / threads; pair < stop; pair++) {
            int64_t b = pair / heads;
            int64_t h = pair % heads;
            int64_t keys_begin = b * tokens * key_stride + h * width;
            const queries of = queries_of(first_query, place, b, tokens);
            const drops by = drops_of(keys, share, b);
            turned(query + of.first * query_stride + h * width, query_stride, turn, of.place, of.num, width,
                   1.0f / sqrtf((float)width), q);
            turned(key + keys_begin, key_stride, turn, NULL, tokens, width, 1.0f, k);
            transposed(k, tokens, width, columns);
            copied(value + keys_begin, key_stride, tokens, width, v, width);
            for (int64_t first = 0; first < of.num; first += ROWS) {
                int64_t rows = of.num - first < ROWS ? of.num - first : ROWS;
                int64_t num_keys = seen(token_of(of.place, first + rows - 1), tokens, causal);
                int64_t whole = padded(num_keys);
                wide_product(q + first * width, width, 1, columns, across, score, across, rows, whole, width);
                float sums[ROWS], *to = out + ((of.first + first) * heads + h) * width;
                for (int64_t row = 0; row < rows; row++) {
                    ask_to_write(to + row * heads * width, width);
                    float *line = score + row * across;
                    int64_t sees = seen(token_of(of.place, first + row), tokens, causal);
                    const softmax found = exponentiated(line, sees);
                    if (keys != NULL)
                        drop(by, place_of(h, token_of(of.place, first + row), tokens), line, sees);
                    for (int64_t i = sees; i < num_keys; i++) line[i] = 0.0f;
                    sums[row] = found.sum;
                    lse[h * num_queries + of.first + first + row] = found.peak + logf(found.sum);
                }
                tall_product(score, across, 1, v, width, to, heads * width, rows, width, num_keys);
                for (int64_t row = 0; row < rows; row++) scaled(to + row * heads * width, width, by.scale / sums[row]);
            }
        }
    }
}

/* Gradients of the above, from `dout` of the shape of out, each laid out as what it belongs to. */
void HEARTLM(attention_backward)(const float *restrict query, int64_t query_stride, const float *restrict key,
                                 const float *restrict value, int64_t key_stride, const float *restrict cosine,
                                 const float *restrict sine, const int64_t *restrict first_query,
                                 const int64_t *restrict place, int64_t num_queries, int64_t batch, int64_t tokens,
                                 int64_t heads, int64_t width, int32_t causal, const int32_t *restrict keys,
                                 double share, int32_t threads, float *restrict scratch, const float *restrict out,
                                 const float *restrict lse, const float *restrict dout, float *restrict dquery,
                                 float *restrict dkey, float *restrict dvalue) {
    int64_t across = padded(tokens);
    int64_t size = scratch_of(tokens, width);
    const angles turn = {cosine, sine};
    float scale = 1.0f / sqrtf((float)width);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int32_t thread = 0; thread < threads; thread++) {
        float *columns = scratch + thread * size;
        float *v_columns = columns + across * width;
        float *q = v_columns + across * width;
        float *k = q + tokens * width;
        float *dq = k + tokens * width;
        float *dk = dq + tokens * width;
        float *dv = dk + tokens * width;
        float *v = dv + tokens * width;
        float *score = v + tokens * width;
        float *slope = score + ROWS * across;
        int64_t stop = batch * heads * (thread + 1) / threads;
        for (int64_t pair = batch * heads * thread / threads; pair < stop; pair++) {
            int64_t b = pair / heads;
            int64_t h = pair % heads;
            int64_t keys_begin = b * tokens * key_stride + h * width;
            const queries of = queries_of(first_query, place, b, tokens);
            const drops by = drops_of(keys, share, b);
            int64_t queries_begin = of.first * query_stride + h * width;
            int64_t outs_begin = (of.first * heads + h) * width;
            int64_t soon = of.num < ROWS ? of.num : ROWS;
            for (int64_t row = 0; row < soon; row++) {
                ask_to_read(dout + outs_begin + row * heads * width, width);
                ask_to_read(out + outs_begin + row * heads * width, width);
            }
            turned(query + queries_begin, query_stride, turn, of.place, of.num, width, scale, q);
            turned(key + keys_begin, key_stride, turn, NULL, tokens, width, 1.0f, k);
            copied(value + keys_begin, key_stride, tokens, width, v, width);
            transposed(k, tokens, width, columns);
            transposed(v, tokens, width, v_columns);
            memset(dk, 0, (size_t)(2 * tokens * width) * sizeof *dk);
            for (int64_t first = 0; first < of.num; first += ROWS) {
                int64_t rows = of.num - first < ROWS ? of.num - first : ROWS;
                int64_t num_keys = seen(token_of(of.place, first + rows - 1), tokens, causal);
                int64_t begin = ((of.first + first) * heads + h) * width;
                const float *above = dout + begin;
                int64_t whole = padded(num_keys);
                wide_product(q + first * width, width, 1, columns, across, score, across, rows, whole, width);
                wide_product(above, heads * width, 1, v_columns, across, slope, across, rows, whole, width);
                for (int64_t row = 0; row < rows; row++) {
                    float *line = score + row * across;
                    float *up = slope + row * across;
                    int64_t sees = seen(token_of(of.place, first + row), tokens, causal);
                    int64_t at = row * heads * width;
                    ask_to_read(above + at + ROWS * heads * width, width);
                    ask_to_read(out + begin + at + ROWS * heads * width, width);
                    float level = dot(above + at, out + begin + at, width);
                    float log_sum = lse[h * num_queries + of.first + first + row];
                    if (keys == NULL)
                        slopes_of_logits(line, up, sees, log_sum, level);
                    else
                        slopes_with_drops(by, place_of(h, token_of(of.place, first + row), tokens), line, up, sees,
                                          log_sum, level);
                    for (int64_t i = sees; i < num_keys; i++) line[i] = up[i] = 0.0f;
                }
                tall_product(slope, across, 1, k, width, dq + first * width, width, rows, width, num_keys);
                tall_sum(slope, 1, across, q + first * width, width, dk, width, num_keys, width, rows);
                tall_sum(score, 1, across, above, heads * width, dv, width, num_keys, width, rows);
            }
            turned_back(dq, turn, of.place, of.num, width, scale, dquery + queries_begin, query_stride);
            turned_back(dk, turn, NULL, tokens, width, 1.0f, dkey + keys_begin, key_stride);
            copied(dv, width, tokens, width, dvalue + keys_begin, key_stride);
        }
    }
}
