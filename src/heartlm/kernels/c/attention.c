/* Attention with rotary positions, forwards and backwards, for windows of heartbeats: some hundred tokens, narrow
 * heads.
 *
 * Per window and head everything stays in a scratch of a few hundred kilobytes: queries and keys are turned by their
 * position as they are copied there, ROWS queries at a time look at all keys, and only the output and one number a
 * query (the logarithm of its sum of exponentials) go back to memory. The backward pass computes the probabilities
 * again from that number, as FlashAttention does (Dao 2022, arXiv 2205.14135).
 *
 * qkv is `[B, T, 3, H, W]`, out `[B, T, H, W]`, T tokens, W a multiple of 16. */
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

typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4)));

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

/* row[i] = e^(row[i] - shift). */
static void exponentials(float *row, int64_t size, float shift) {
    for (int64_t i = 0; i < size; i++) row[i] = row[i] - shift < -87.0f ? -87.0f : row[i] - shift;
    for (int64_t i = 0; i < size; i++) row[i] = exponential(row[i]);
}

static float largest(const float *row, int64_t size) {
    float lane[16];
    for (int l = 0; l < 16; l++) lane[l] = row[0];
    int64_t whole = size / 16 * 16;
    for (int64_t i = 0; i < whole; i += 16)
        for (int l = 0; l < 16; l++) lane[l] = row[i + l] > lane[l] ? row[i + l] : lane[l];
    for (int64_t i = whole; i < size; i++) lane[0] = row[i] > lane[0] ? row[i] : lane[0];
    float found = lane[0];
    for (int l = 1; l < 16; l++) found = lane[l] > found ? lane[l] : found;
    return found;
}

static float total(const float *row, int64_t size) {
    float lane[16] = {0}, sum = 0.0f;
    int64_t whole = size / 16 * 16;
    for (int64_t i = 0; i < whole; i += 16)
        for (int l = 0; l < 16; l++) lane[l] += row[i + l];
    for (int64_t i = whole; i < size; i++) lane[i - whole] += row[i];
    for (int l = 0; l < 16; l++) sum += lane[l];
    return sum;
}

/* Copy rows of a head, `[T, W]`, `stride` apart, to `to`, turned by their position (forwards 1, back -1) and scaled. */
static void turned(const float *from, int64_t stride, const float *cosine, const float *sine, int64_t tokens,
                   int64_t width, float scale, float *to) {
    int64_t half = width / 2;
    for (int64_t t = 0; t < tokens; t++, from += stride, to += width, cosine += half, sine += half)
        for (int64_t i = 0; i < half; i++) {
            to[i] = (from[i] * cosine[i] - from[half + i] * sine[i]) * scale;
            to[half + i] = (from[i] * sine[i] + from[half + i] * cosine[i]) * scale;
        }
}

static void turned_back(const float *from, const float *cosine, const float *sine, int64_t tokens, int64_t width,
                        float scale, float *to, int64_t stride) {
    int64_t half = width / 2;
    for (int64_t t = 0; t < tokens; t++, from += width, to += stride, cosine += half, sine += half)
        for (int64_t i = 0; i < half; i++) {
            to[i] = (from[i] * cosine[i] + from[half + i] * sine[i]) * scale;
            to[half + i] = (from[half + i] * cosine[i] - from[i] * sine[i]) * scale;
        }
}

static void copied(const float *from, int64_t from_stride, int64_t rows, int64_t width, float *to, int64_t to_stride) {
    for (int64_t t = 0; t < rows; t++) memcpy(to + t * to_stride, from + t * from_stride, (size_t)width * sizeof *to);
}

/* Columns `[W, padded T]` of rows `[T, W]`; the padding is zero. */
static void transposed(const float *from, int64_t tokens, int64_t width, float *to) {
    int64_t across = padded(tokens);
    for (int64_t w = 0; w < width; w++) {
        for (int64_t t = 0; t < tokens; t++) to[w * across + t] = from[t * width + w];
        for (int64_t t = tokens; t < across; t++) to[w * across + t] = 0.0f;
    }
}

/* How many keys query `row` sees. */
static inline int64_t seen(int64_t row, int64_t tokens, int32_t causal) { return causal ? row + 1 : tokens; }

static int64_t scratch_of(int64_t tokens, int64_t width) {
    return padded(tokens) * width * 2 + 6 * tokens * width + 2 * ROWS * padded(tokens);
}

/* Floats of scratch that one thread needs. */
int64_t HEARTLM(attention_scratch)(int64_t tokens, int64_t width) { return scratch_of(tokens, width); }

/* out and lse, `[B, H, T]`, of qkv. `scratch` holds `attention_scratch` floats for each of `threads`. */
void HEARTLM(attention_forward)(const float *restrict qkv, const float *restrict cosine, const float *restrict sine,
                                int64_t batch, int64_t tokens, int64_t heads, int64_t width, int32_t causal,
                                int32_t threads, float *restrict scratch, float *restrict out, float *restrict lse) {
    int64_t across = padded(tokens), stride = 3 * heads * width, size = scratch_of(tokens, width);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int32_t thread = 0; thread < threads; thread++) {
        float *columns = scratch + thread * size, *q = columns + across * width, *k = q + tokens * width;
        float *v = k + tokens * width, *score = v + tokens * width;
        int64_t stop = batch * heads * (thread + 1) / threads;
        for (int64_t pair = batch * heads * thread / threads; pair < stop; pair++) {
            int64_t b = pair / heads, h = pair % heads;
            const float *from = qkv + b * tokens * stride + h * width;
            turned(from, stride, cosine, sine, tokens, width, 1.0f / sqrtf((float)width), q);
            turned(from + heads * width, stride, cosine, sine, tokens, width, 1.0f, k);
            transposed(k, tokens, width, columns);
            copied(from + 2 * heads * width, stride, tokens, width, v, width);
            for (int64_t first = 0; first < tokens; first += ROWS) {
                int64_t rows = tokens - first < ROWS ? tokens - first : ROWS;
                int64_t keys = seen(first + rows - 1, tokens, causal);
                wide_product(q + first * width, width, 1, columns, across, score, across, rows, padded(keys), width);
                for (int64_t row = 0; row < rows; row++) {
                    float *line = score + row * across;
                    int64_t sees = seen(first + row, tokens, causal);
                    float peak = largest(line, sees);
                    exponentials(line, sees, peak);
                    float sum = total(line, sees), share = 1.0f / sum;
                    for (int64_t i = 0; i < sees; i++) line[i] *= share;
                    for (int64_t i = sees; i < keys; i++) line[i] = 0.0f;
                    lse[(b * heads + h) * tokens + first + row] = peak + logf(sum);
                }
                tall_product(score, across, 1, v, width, out + ((b * tokens + first) * heads + h) * width,
                             heads * width, rows, width, keys);
            }
        }
    }
}

/* dqkv of the above, from `dout` of the shape of out. */
void HEARTLM(attention_backward)(const float *restrict qkv, const float *restrict cosine, const float *restrict sine,
                                 const float *restrict out, const float *restrict lse, const float *restrict dout,
                                 int64_t batch, int64_t tokens, int64_t heads, int64_t width, int32_t causal,
                                 int32_t threads, float *restrict scratch, float *restrict dqkv) {
    int64_t across = padded(tokens), stride = 3 * heads * width, size = scratch_of(tokens, width);
    float scale = 1.0f / sqrtf((float)width);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int32_t thread = 0; thread < threads; thread++) {
        float *columns = scratch + thread * size, *v_columns = columns + across * width;
        float *q = v_columns + across * width, *k = q + tokens * width, *dq = k + tokens * width;
        float *dk = dq + tokens * width, *dv = dk + tokens * width, *v = dv + tokens * width;
        float *score = v + tokens * width, *slope = score + ROWS * across;
        int64_t stop = batch * heads * (thread + 1) / threads;
        for (int64_t pair = batch * heads * thread / threads; pair < stop; pair++) {
            int64_t b = pair / heads, h = pair % heads;
            const float *from = qkv + b * tokens * stride + h * width;
            float *to = dqkv + b * tokens * stride + h * width;
            turned(from, stride, cosine, sine, tokens, width, scale, q);
            turned(from + heads * width, stride, cosine, sine, tokens, width, 1.0f, k);
            copied(from + 2 * heads * width, stride, tokens, width, v, width);
            transposed(k, tokens, width, columns);
            transposed(v, tokens, width, v_columns);
            memset(dk, 0, (size_t)(2 * tokens * width) * sizeof *dk);
            for (int64_t first = 0; first < tokens; first += ROWS) {
                int64_t rows = tokens - first < ROWS ? tokens - first : ROWS;
                int64_t keys = seen(first + rows - 1, tokens, causal);
                int64_t place = ((b * tokens + first) * heads + h) * width;
                const float *above = dout + place;
                wide_product(q + first * width, width, 1, columns, across, score, across, rows, padded(keys), width);
                wide_product(above, heads * width, 1, v_columns, across, slope, across, rows, padded(keys), width);
                for (int64_t row = 0; row < rows; row++) {
                    float *line = score + row * across, *up = slope + row * across, level = 0.0f;
                    int64_t sees = seen(first + row, tokens, causal);
                    for (int64_t i = 0; i < width; i++)
                        level += above[row * heads * width + i] * out[place + row * heads * width + i];
                    exponentials(line, sees, lse[(b * heads + h) * tokens + first + row]);
                    for (int64_t i = 0; i < sees; i++) up[i] = line[i] * (up[i] - level);
                    for (int64_t i = sees; i < keys; i++) line[i] = up[i] = 0.0f;
                }
                tall_product(slope, across, 1, k, width, dq + first * width, width, rows, width, keys);
                tall_sum(slope, 1, across, q + first * width, width, dk, width, keys, width, rows);
                tall_sum(score, 1, across, above, heads * width, dv, width, keys, width, rows);
            }
            turned_back(dq, cosine, sine, tokens, width, scale, to, stride);
            turned_back(dk, cosine, sine, tokens, width, 1.0f, to + heads * width, stride);
            copied(dv, width, tokens, width, to + 2 * heads * width, stride);
        }
    }
}
