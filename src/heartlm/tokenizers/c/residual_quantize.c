/* Residual vector quantisation: for every vector the nearest centroid of the first codebook, of what is then left the
 * nearest of the second, and so on.
 *
 * Most centroids are ruled out in a few dimensions. An orthonormal basis, the same for all levels, parts every vector x
 * and centroid c into a head, its coordinates in the basis, and the tail orthogonal to it. The nearest centroid has the
 * largest score <x, c> - |c|^2 / 2, and
 *
 *     score <= <head x, head c> + |tail x| |tail c| - |c|^2 / 2
 *
 * since a product is never larger than that of the lengths. The bounds of all centroids are one small matrix product.
 * The score of the centroid with the highest bound is then computed in full, and those of the few whose bound is not
 * below it. Where single precision cannot tell the best two apart, double precision decides, always in the same order:
 * the choice does not depend on the processor. */
#include "kernel.h"
#include "vector.h"

#include <math.h>

enum {
    BATCH = 32, /* vectors that go through a level together, so that its codebook is fetched once for all */
    GROUP = 4,  /* vectors that are computed side by side in registers */
    SUMS = 16,  /* sums the terms of an exact score are spread over */
    HEAD = 32,  /* dimensions of the head */
    MOST_CODES = 1024,
};

#if defined(__AVX512F__)
enum { WIDE = 4 };
#else
enum { WIDE = 2 };
#endif

/* Codebooks and what the bounds need, as laid out by heartlm.tokenizers.quantize. */
typedef struct {
    const float *centroids; /* [num_levels, num_codes, length], zeros after the points of the vector */
    const double *half;     /* |c|^2 / 2, [num_levels, num_codes] */
    const float *bias;      /* the same, negative, [num_levels, num_codes] */
    const float *heads;     /* [num_levels, num_codes, HEAD] */
    const float *columns;   /* the same, the lengths of the tails, and |c| / 1e5; [num_levels, HEAD + 2, num_codes] */
    const float *basis;     /* [length, HEAD] */
    int64_t num_levels, num_codes, length;
} Codebooks;

/* A batch on its way through the levels. */
typedef struct {
    float *rest;                 /* what is left of each vector, [BATCH, length] */
    float head[BATCH][HEAD + 2]; /* its head, the length of its tail, and the length the vector had at first */
} Batch;

static float product(const float *a, const float *b, int64_t length) {
    vfloat even = {0}, odd = {0};
    for (int64_t i = 0; i < length; i += 2 * LANES) {
        even = multiply_add(load(a + i), load(b + i), even);
        odd = multiply_add(load(a + i + LANES), load(b + i + LANES), odd);
    }
    return sum_of_lanes(even + odd);
}

static void subtract(float *a, const float *b, int64_t length) {
    for (int64_t i = 0; i < length; i += LANES) store(a + i, load(a + i) - load(b + i));
}

static double exact_score(const float *x, const float *centroid, int64_t length, double half) {
    double sums[SUMS] = {0};
    for (int64_t i = 0; i < length; i += SUMS)
        for (int j = 0; j < SUMS; j++) sums[j] += (double)x[i + j] * (double)centroid[i + j];
    for (int width = SUMS / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) sums[j] += sums[j + width];
    return sums[0] - half;
}

/* Heads of GROUP vectors. */
static void project(const Codebooks *books, const float *x, float head[GROUP][HEAD + 2]) {
    enum { PARTS = HEAD / LANES, AT_ONCE = PARTS < 4 ? PARTS : 4 };
    for (int part = 0; part < PARTS; part += AT_ONCE) {
        vfloat sums[GROUP][AT_ONCE] = {{{0}}};
        for (int64_t i = 0; i < books->length; i++) {
            const float *row = books->basis + i * HEAD + part * LANES;
            for (int v = 0; v < GROUP; v++) {
                vfloat value = x[v * books->length + i] - (vfloat){0};
                for (int w = 0; w < AT_ONCE; w++) sums[v][w] = multiply_add(value, load(row + w * LANES), sums[v][w]);
            }
        }
        for (int v = 0; v < GROUP; v++)
            for (int w = 0; w < AT_ONCE; w++) store(head[v] + (part + w) * LANES, sums[v][w]);
    }
}

/* Length of the tail of `x`, not less than it is. */
static float tail(const float *x, int64_t length, const float *head, float longest) {
    float whole = product(x, x, length);
    float outside = whole - product(head, head, HEAD);
    return sqrtf((outside > 0 ? outside : 0) + 2e-5f * longest * sqrtf(whole));
}

/* Bounds of the scores of GROUP vectors, [GROUP, num_codes], and the largest of each. The last row makes up for the
 * rounding of heads and sums. */
static void bound(const Codebooks *books, int64_t level, float head[GROUP][HEAD + 2], float bounds[GROUP][MOST_CODES],
                  float *highest) {
    int64_t num_codes = books->num_codes;
    const float *bias = books->bias + level * num_codes;
    const float *columns = books->columns + level * (HEAD + 2) * num_codes;
    vfloat best[GROUP];
    for (int v = 0; v < GROUP; v++) best[v] = (vfloat){0} - INFINITY;
    for (int64_t code = 0; code < num_codes; code += WIDE * LANES) {
        vfloat sums[GROUP][WIDE];
        for (int w = 0; w < WIDE; w++)
            for (int v = 0; v < GROUP; v++) sums[v][w] = load(bias + code + w * LANES);
        for (int64_t d = 0; d < HEAD + 2; d++) {
            vfloat row[WIDE];
            for (int w = 0; w < WIDE; w++) row[w] = load(columns + d * num_codes + code + w * LANES);
            for (int v = 0; v < GROUP; v++) {
                vfloat coordinate = head[v][d] - (vfloat){0};
                for (int w = 0; w < WIDE; w++) sums[v][w] = multiply_add(coordinate, row[w], sums[v][w]);
            }
        }
        for (int v = 0; v < GROUP; v++)
            for (int w = 0; w < WIDE; w++) {
                store(bounds[v] + code + w * LANES, sums[v][w]);
                best[v] = larger(best[v], sums[v][w]);
            }
    }
    for (int v = 0; v < GROUP; v++) highest[v] = largest_lane(best[v]);
}

/* Of the codes whose bound is at least `limit` the one with the highest exact score, the first of equals. */
static int64_t exactly_nearest(const Codebooks *books, int64_t level, const float *x, const float *bounds,
                               float limit) {
    const float *centroids = books->centroids + level * books->num_codes * books->length;
    const double *half = books->half + level * books->num_codes;
    double best_score = -INFINITY;
    int64_t best = 0;
    for (int64_t code = 0; code < books->num_codes; code++) {
        if (!(bounds[code] >= limit)) continue;
        double score = exact_score(x, centroids + code * books->length, books->length, half[code]);
        if (score > best_score) {
            best = code;
            best_score = score;
        }
    }
    return best;
}

/* How far rounding can put off a score computed in single precision, from the lengths of both factors. */
static float rounding(float length, float bias) {
    float centroid = sqrtf(-2 * bias);
    return 2e-6f * (length + centroid) * centroid;
}

/* The code with the highest score. `x` has the length `longest` or less. */
static int64_t nearest(const Codebooks *books, int64_t level, const float *x, float longest, const float *bounds,
                       float highest) {
    int64_t num_codes = books->num_codes;
    int64_t length = books->length;
    int64_t first = 0;
    const float *centroids = books->centroids + level * num_codes * length;
    const float *bias = books->bias + level * num_codes;
    uint64_t mask = 0;
    while (first < num_codes && !(mask = at_least(bounds + first, highest))) first += 64;
    if (!mask) return 0;
    first += __builtin_ctzll(mask);
    int64_t best = first;
    float best_score = product(x, centroids + first * length, length) + bias[first];
    float lowest = best_score - rounding(longest, bias[first]), others = -INFINITY;
    for (int64_t code = 0; code < num_codes; code += 64)
        for (mask = at_least(bounds + code, lowest); mask; mask &= mask - 1) {
            int64_t other = code + __builtin_ctzll(mask);
            if (other == first) continue;
            float score = product(x, centroids + other * length, length) + bias[other];
            float reach = score + rounding(longest, bias[other]);
            if (score > best_score) {
                reach = best_score + rounding(longest, bias[best]);
                best = other;
                best_score = score;
            }
            others = reach > others ? reach : others;
        }
    lowest = best_score - rounding(longest, bias[best]);
    return lowest > others ? best : exactly_nearest(books, level, x, bounds, lowest);
}

/* One level for a batch of vectors: choose a code for each, and take its centroid away. */
static void take_level(const Codebooks *books, int64_t level, int64_t size, Batch *batch, uint16_t *codes) {
    int64_t length = books->length;
    int64_t num_codes = books->num_codes;
    float bounds[GROUP][MOST_CODES], highest[GROUP];
    for (int64_t begin = 0; begin < size; begin += GROUP) {
        for (int64_t v = begin; v < begin + GROUP; v++)
            batch->head[v][HEAD] = tail(batch->rest + v * length, length, batch->head[v], batch->head[v][HEAD + 1]);
        bound(books, level, batch->head + begin, bounds, highest);
        for (int64_t v = begin; v < begin + GROUP && v < size; v++) {
            float *rest = batch->rest + v * length;
            float longest = batch->head[v][HEAD + 1];
            int64_t code = nearest(books, level, rest, longest, bounds[v - begin], highest[v - begin]);
            subtract(rest, books->centroids + (level * num_codes + code) * length, length);
            subtract(batch->head[v], books->heads + (level * num_codes + code) * HEAD, HEAD);
            codes[v * books->num_levels + level] = (uint16_t)code;
        }
    }
}

/* Codes of `num_vectors` vectors of `num_points` each, coarse to fine, to `codes` [num_vectors, num_levels]. Vectors
 * are multiplied by `weight` first. `length` is `num_points` filled up to a multiple of 32, `rest` scratch for BATCH
 * vectors of that. */
void HEARTLM(residual_quantize)(const float *vectors, const float *weight, int64_t num_vectors, int64_t num_points,
                                const float *centroids, const double *half, const float *bias, const float *heads,
                                const float *columns, const float *basis, int64_t num_levels, int64_t num_codes,
                                int64_t length, float *rest, uint16_t *codes) {
    const Codebooks books = {centroids, half, bias, heads, columns, basis, num_levels, num_codes, length};
    Batch batch = {.rest = rest};
    memset(rest, 0, (size_t)(BATCH * length) * sizeof(float));
    for (int64_t begin = 0; begin < num_vectors; begin += BATCH) {
        int64_t size = num_vectors - begin < BATCH ? num_vectors - begin : BATCH;
        for (int64_t v = 0; v < size; v++) {
            const float *vector = vectors + (begin + v) * num_points;
            for (int64_t i = 0; i < num_points; i++) rest[v * length + i] = vector[i] * weight[i];
            batch.head[v][HEAD + 1] = sqrtf(product(rest + v * length, rest + v * length, length));
        }
        for (int64_t v = 0; v < size; v += GROUP) project(&books, rest + v * length, batch.head + v);
        for (int64_t level = 0; level < num_levels; level++)
            take_level(&books, level, size, &batch, codes + begin * num_levels);
    }
}

/* Add each vector to the sum of its code. */
void HEARTLM(sums_by_code)(const float *restrict vectors, const uint16_t *codes, int64_t num_vectors,
                           int64_t num_points, double *restrict sums) {
    for (int64_t v = 0; v < num_vectors; v++) {
        double *own = sums + codes[v] * num_points;
        for (int64_t i = 0; i < num_points; i++) own[i] += vectors[v * num_points + i];
    }
}
