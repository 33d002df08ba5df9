/* One beat of each of many streams through a causal transformer, whose keys and values of the last beats each stream
 * keeps. The reference is heartlm.monitor.models.LiveTrunk, with the same caches. */
#include <math.h>

#include "half.h"
#include "kernel.h"
#include "live.h"

/* Shape and weights of the model; kernels.h declares it for Python. */
struct trunk {
    int64_t facets, width, depth, heads, head_width, feed, kept, classes;
    const float *table;       /* [codes of all facets, width] */
    const float *blocks;      /* of each block: norm [width], qkv [3 width, width], attention_out [width, width],
                                 norm [width], gate_up [2 feed, width], feed_out [width, feed] */
    const float *norm, *head, *bias; /* [width], [classes, width], [classes] */
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

/* Attention of one beat, column `c` of qkv [3 width, columns], to the beats in its cache [2, heads, kept, head_width] of
 * half floats, into which its own key and value go; the result replaces its query. `turn` holds cosines, then sines;
 * `line` is scratch for 3 width + kept floats and one more. */
static void attend(const struct trunk *t, float *qkv, int64_t columns, int64_t c, int64_t position, const float *turn,
                   uint16_t *cache, float *line) {
    int64_t width = t->width, size = t->head_width, half = size / 2, place = position % t->kept;
    int64_t num = position < t->kept ? position + 1 : t->kept;
    float *shares = line + 3 * width, scale = 1.0f / sqrtf((float)size);
    for (int64_t i = 0; i < 3 * width; i++) line[i] = qkv[i * columns + c];
    for (int64_t first = 0; first < 2 * width; first += size) /* queries and keys */
        for (int64_t i = first; i < first + half; i++) {
            float a = line[i], b = line[i + half], cosine = turn[i - first], sine = turn[half + i - first];
            line[i] = a * cosine - b * sine, line[i + half] = a * sine + b * cosine;
        }
    for (int64_t head = 0; head < t->heads; head++) {
        float *query = line + head * size, peak = -INFINITY, sum = 0;
        uint16_t *keys = cache + head * t->kept * size, *values = keys + width * t->kept;
        for (int64_t i = 0; i < size; i++) keys[place * size + i] = to_half(query[width + i]);
        for (int64_t i = 0; i < size; i++) values[place * size + i] = to_half(query[2 * width + i]);
        for (int64_t i = 0; i < size; i++) query[i] *= scale;
        for (int64_t i = 0; i < num; i++) {
            __builtin_prefetch(values + i * size); /* what is kept of thousands of streams is far away */
            shares[i] = dot(query, keys + i * size, size);
            peak = shares[i] > peak ? shares[i] : peak;
        }
        for (int64_t i = 0; i < num; i++) shares[i] = shares[i] - peak < -87.0f ? -87.0f : shares[i] - peak;
        for (int64_t i = 0; i < num; i++) shares[i] = exponential(shares[i]);
        for (int64_t i = 0; i < num; i++) sum += shares[i];
        shares[num] = 0; /* rows go by two, so that sums need not wait for each other */
        for (int64_t first = 0; first < size; first += LANES) {
            vfloat even = {0}, odd = {0};
            for (int64_t i = 0; i < num; i += 2) {
                const uint16_t *from = values + i * size + first;
                even = multiply_add(all_lanes(shares[i]), load_halves(from, size - first), even);
                odd = multiply_add(all_lanes(shares[i + 1]), load_halves(from + (i + 1 < num ? size : 0), size - first), odd);
            }
            store_first(query + first, (even + odd) / sum, size - first);
        }
        for (int64_t i = 0; i < size; i++) qkv[(head * size + i) * columns + c] = query[i];
    }
}

/* Judge one beat of each of `num` streams.
 *
 * codes: rows of the table, [num, facets]; position: beats before each, [num]; caches: addresses of
 * [depth, 2, heads, kept, head_width] half floats each, into which the beat is written. scratch: see
 * `live_beats_scratch`. out: probabilities [num, classes]. */
void HEARTLM(live_beats)(const struct trunk *t, const int64_t *codes, const int64_t *position,
                         const int64_t *caches, int64_t num, float *scratch, float *out) {
    int64_t width = t->width, feed = t->feed, half = t->head_width / 2;
    for (int64_t begin = 0; begin < num;) {
        int vectors = num - begin > LANES ? 2 : 1;
        int64_t columns = vectors * LANES, own = num - begin < columns ? num - begin : columns;
        float *x = scratch, *normal = x + width * columns, *inner = normal + width * columns;
        float *turns = inner + (2 * feed > 3 * width ? 2 * feed : 3 * width) * columns, *line = turns + 2 * half * columns;
        memset(x, 0, (size_t)(width * columns) * sizeof(float));
        for (int64_t c = 0; c < own; c++) {
            memset(line, 0, (size_t)width * sizeof(float));
            for (int64_t f = 0; f < t->facets; f++) {
                const float *row = t->table + codes[(begin + c) * t->facets + f] * width;
                for (int64_t i = 0; i < width; i++) line[i] += row[i];
            }
            for (int64_t i = 0; i < width; i++) x[i * columns + c] = line[i];
            for (int64_t i = 0; i < half; i++) {
                double angle = (double)position[begin + c] * t->frequency[i];
                turns[c * 2 * half + i] = (float)cos(angle), turns[(c * 2 + 1) * half + i] = (float)sin(angle);
            }
        }
        const float *w = t->blocks;
        for (int64_t layer = 0; layer < t->depth; layer++) {
            normed(x, w, width, vectors, normal), w += width;
            product(w, 3 * width, width, normal, NULL, 0, vectors, inner), w += 3 * width * width;
            for (int64_t c = 0; c < own; c++)
                attend(t, inner, columns, c, position[begin + c], turns + c * 2 * half,
                       (uint16_t *)(intptr_t)caches[begin + c] + layer * 2 * width * t->kept, line);
            product(w, width, width, inner, NULL, 0, vectors, normal), w += width * width;
            for (int64_t i = 0; i < width * columns; i++) x[i] += normal[i];
            normed(x, w, width, vectors, normal), w += width;
            product(w, 2 * feed, width, normal, NULL, 0, vectors, inner), w += 2 * feed * width;
            for (int64_t i = 0; i < feed * columns; i += LANES) {
                vfloat gate = load(inner + i);
                float power[LANES];
                for (int l = 0; l < LANES; l++) power[l] = -gate[l] < -87.0f ? -87.0f : -gate[l];
                for (int l = 0; l < LANES; l++) power[l] = power[l] > 87.0f ? 87.0f : power[l];
                for (int l = 0; l < LANES; l++) power[l] = exponential(power[l]);
                store(inner + i, gate / (1.0f + load(power)) * load(inner + feed * columns + i));
            }
            product(w, width, feed, inner, NULL, 0, vectors, normal), w += width * feed;
            for (int64_t i = 0; i < width * columns; i++) x[i] += normal[i];
        }
        normed(x, t->norm, width, vectors, normal);
        product(t->head, t->classes, width, normal, t->bias, 0, vectors, inner);
        class_shares(inner, t->classes, columns, own, out + begin * t->classes);
        begin += own;
    }
}

/* Floats of scratch that `live_beats` needs. */
int64_t HEARTLM(live_beats_scratch)(const struct trunk *t) {
    int64_t inner = 2 * t->feed > 3 * t->width ? 2 * t->feed : 3 * t->width;
    return (2 * t->width + inner + t->head_width + t->classes) * COLUMNS + 3 * t->width + t->kept + LANES;
}
