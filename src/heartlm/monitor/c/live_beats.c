/* One beat of each of many streams through a causal transformer, whose keys and values of the last beats each stream
 * keeps. The reference is heartlm.monitor.models.LiveTrunk, with the same caches. */
#include <math.h>

#include "half.h"
#include "kernel.h"
#include "live.h"
#include "transpose.h"

/* Shape and weights of the model; kernels.h declares it for Python. */
struct trunk {
    int64_t facets, width, depth, heads, head_width, feed, kept, classes, extra;
    const float *table;       /* [codes of all facets, width] */
    const float *blocks;      /* of each block: norm [width], qkv [3 width, width], attention_out [width, width],
                                 norm [width], gate_up [2 feed, width], feed_out [width, feed] */
    const float *norm, *head, *bias; /* [width], [classes + extra, width], [classes + extra] */
    const double *frequency;  /* [head_width / 2] */
};

/* Columns of x [width, columns] over their root mean square, times `weight`. */
static void normed(const float *x, const float *weight, int64_t width, int vectors, float *out) {
    for (int v = 0; v < vectors; v++) {
        vfloat sum = {0}, scale = {0};
        for (int64_t i = 0; i < width; i++) {
            vfloat own = load(x + (i * vectors + v) * LANES);
            sum = multiply_add(own, own, sum);
        }
        for (int l = 0; l < LANES; l++) scale[l] = 1.0f / sqrtf(sum[l] / (float)width + 1e-5f);
        for (int64_t i = 0; i < width; i++)
            store(out + (i * vectors + v) * LANES, load(x + (i * vectors + v) * LANES) * scale * weight[i]);
    }
}

static inline float dot(const float *a, const uint16_t *b, int64_t size) {
    vfloat sum = {0};
    for (int64_t i = 0; i < size; i += LANES)
        sum = multiply_add(load_first(a + i, size - i), load_halves(b + i, size - i), sum);
    return sum_of_lanes(sum);
}

static inline void store_first_halves(uint16_t *to, vfloat value, int64_t count) {
    uint16_t halves[LANES];
    store_halves(halves, value);
    memcpy(to, halves, sizeof(uint16_t) * (size_t)(count < LANES ? count : LANES));
}

/* Attention of one beat to the beats in its cache [2, heads, kept, head_width] of half floats, into which its own key and
 * value go. `line` is its query, key and value; the result replaces the query. `turn` holds cosines, then sines; `shares`
 * is scratch for kept and LANES more. */
static void attend(const struct trunk *t, float *line, int64_t position, const float *turn, uint16_t *cache,
                   float *shares) {
    int64_t width = t->width, size = t->head_width, half = size / 2, place = position % t->kept;
    int64_t num = position < t->kept ? position + 1 : t->kept;
    float scale = 1.0f / sqrtf((float)size);
    for (int64_t first = 0; first < 2 * width; first += size) /* queries and keys */
        for (int64_t i = first; i < first + half; i++) {
            float a = line[i], b = line[i + half], cosine = turn[i - first], sine = turn[half + i - first];
            line[i] = a * cosine - b * sine, line[i + half] = a * sine + b * cosine;
        }
    for (int64_t i = 0; i < width; i++) line[i] *= scale;
    for (int64_t head = 0; head < t->heads; head++) {
        float *query = line + head * size, *key = query + width, *value = key + width, peak = -INFINITY;
        uint16_t *keys = cache + head * t->kept * size, *values = keys + width * t->kept;
        for (int64_t first = 0; first < size; first += LANES) {
            store_first_halves(keys + place * size + first, load(key + first), size - first);
            store_first_halves(values + place * size + first, load(value + first), size - first);
        }
        for (int64_t i = 0; i < num; i++) {
            __builtin_prefetch(values + i * size); /* what is kept of thousands of streams is far away */
            shares[i] = dot(query, keys + i * size, size);
            peak = shares[i] > peak ? shares[i] : peak;
        }
        for (int64_t i = num; i < num + LANES; i++) shares[i] = -INFINITY;
        vfloat sum = {0};
        for (int64_t first = 0; first < num; first += LANES) {
            vfloat own = load(shares + first);
            own = (vfloat)((vint)exponentials(own - peak) & (own > -INFINITY));
            store(shares + first, own), sum = sum + own;
        }
        float total = sum_of_lanes(sum);
        for (int64_t first = 0; first < size; first += LANES) {
            vfloat even = {0}, odd = {0}; /* by two, so that sums need not wait for each other */
            for (int64_t i = 0; i < num; i += 2) {
                const uint16_t *from = values + i * size + first;
                even = multiply_add(all_lanes(shares[i]), load_halves(from, size - first), even);
                odd = multiply_add(all_lanes(shares[i + 1]), load_halves(from + (i + 1 < num ? size : 0), size - first), odd);
            }
            store_first(query + first, (even + odd) / total, size - first);
        }
    }
}

/* Judge one beat of each of `num` streams.
 *
 * codes: rows of the table, [num, facets]; position: beats before each, [num]; caches: addresses of
 * [depth, 2, heads, kept, head_width] half floats each, into which the beat is written. scratch: see
 * `live_beats_scratch`. out: probabilities [num, classes]. rest: what the last rows of `head` say, [num, extra]. */
void HEARTLM(live_beats)(const struct trunk *t, const int64_t *codes, const int64_t *position,
                         const int64_t *caches, int64_t num, float *scratch, float *out, float *rest) {
    int64_t width = t->width, feed = t->feed, half = t->head_width / 2, line_size = 3 * width + LANES;
    for (int64_t begin = 0; begin < num;) {
        int vectors = num - begin > LANES ? 2 : 1;
        int64_t columns = vectors * LANES, own = num - begin < columns ? num - begin : columns;
        float *x = scratch, *normal = x + width * columns, *inner = normal + width * columns;
        float *turns = inner + (2 * feed > 3 * width ? 2 * feed : 3 * width) * columns, *shares = turns + 2 * half * columns;
        float *lines = shares + t->kept + LANES; /* of each column, one after the other */
        memset(lines, 0, (size_t)(line_size * columns) * sizeof(float));
        for (int64_t c = 0; c < own; c++) {
            for (int64_t f = 0; f < t->facets; f++) {
                const float *row = t->table + codes[(begin + c) * t->facets + f] * width;
                for (int64_t i = 0; i < width; i++) lines[c * line_size + i] += row[i];
            }
            for (int64_t i = 0; i < half; i++) {
                double angle = (double)position[begin + c] * t->frequency[i];
                turns[c * 2 * half + i] = (float)cos(angle), turns[(c * 2 + 1) * half + i] = (float)sin(angle);
            }
        }
        turn_matrix(lines, columns, width, line_size, x, columns);
        const float *w = t->blocks;
        for (int64_t layer = 0; layer < t->depth; layer++) {
            normed(x, w, width, vectors, normal), w += width;
            product(w, 3 * width, width, normal, NULL, 0, vectors, inner), w += 3 * width * width;
            turn_matrix(inner, 3 * width, columns, columns, lines, line_size);
            for (int64_t c = 0; c < own; c++)
                attend(t, lines + c * line_size, position[begin + c], turns + c * 2 * half,
                       (uint16_t *)(intptr_t)caches[begin + c] + layer * 2 * width * t->kept, shares);
            turn_matrix(lines, columns, width, line_size, inner, columns);
            product(w, width, width, inner, NULL, 0, vectors, normal), w += width * width;
            for (int64_t i = 0; i < width * columns; i++) x[i] += normal[i];
            normed(x, w, width, vectors, normal), w += width;
            product(w, 2 * feed, width, normal, NULL, 0, vectors, inner), w += 2 * feed * width;
            for (int64_t i = 0; i < feed * columns; i += LANES) {
                vfloat gate = load(inner + i);
                vfloat power = exponentials(-larger(gate, all_lanes(-87.0f)));
                store(inner + i, gate / (1.0f + power) * load(inner + feed * columns + i));
            }
            product(w, width, feed, inner, NULL, 0, vectors, normal), w += width * feed;
            for (int64_t i = 0; i < width * columns; i++) x[i] += normal[i];
        }
        normed(x, t->norm, width, vectors, normal);
        product(t->head, t->classes + t->extra, width, normal, t->bias, 0, vectors, inner);
        class_shares(inner, t->classes, columns, own, out + begin * t->classes);
        for (int64_t c = 0; c < own; c++)
            for (int64_t i = 0; i < t->extra; i++)
                rest[(begin + c) * t->extra + i] = inner[(t->classes + i) * columns + c];
        begin += own;
    }
}

/* Floats of scratch that `live_beats` needs. */
int64_t HEARTLM(live_beats_scratch)(const struct trunk *t) {
    int64_t inner = 2 * t->feed > 3 * t->width ? 2 * t->feed : 3 * t->width;
    int64_t a_column = 2 * t->width + inner + t->head_width + t->classes + t->extra + 3 * t->width + LANES;
    return a_column * COLUMNS + t->kept + LANES;
}
