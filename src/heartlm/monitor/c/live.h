/* Matrix products of models that judge many streams at once. The streams are the columns, side by side in vectors, so
 * each stream's sums run over the rows in one order whatever streams are judged with it. */
#ifndef HEARTLM_LIVE_H
#define HEARTLM_LIVE_H

#include "exponential.h"
#include "vector.h"

#define ROWS 8                        /* rows of a matrix that are stored together */
#define TILE (LANES == 16 ? ROWS : 4) /* of these, rows whose sums fit into the registers */
#define COLUMNS (2 * LANES)           /* streams that are judged together, at most */

/* `num` rows of the product below, of `step` that are stored together; the compiler knows `num`, `step`, `vectors`. */
static inline __attribute__((always_inline)) void product_rows(const float *w, int64_t step, int64_t depth,
                                                               const float *x, const float *bias, int relu, int num,
                                                               int vectors, float *out) {
    vfloat sum[TILE][2];
#pragma GCC unroll 8
    for (int m = 0; m < num; m++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[m][v] = all_lanes(bias ? bias[m] : 0);
    for (int64_t k = 0; k < depth; k++)
#pragma GCC unroll 8
        for (int m = 0; m < num; m++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sum[m][v] = multiply_add(all_lanes(w[k * step + m]), load(x + (k * vectors + v) * LANES), sum[m][v]);
#pragma GCC unroll 8
    for (int m = 0; m < num; m++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            store(out + (m * vectors + v) * LANES, relu ? larger(sum[m][v], (vfloat){0}) : sum[m][v]);
}

/* out [rows, columns] = w [rows, depth] x [depth, columns] + bias [rows] or 0, of which with `relu` what is negative
 * becomes 0. There are 1 or 2 vectors of columns. Of w, ROWS rows are stored together, as [depth, ROWS]; those that are
 * left, one after the other. */
static inline void product(const float *w, int64_t rows, int64_t depth, const float *x, const float *bias, int relu,
                           int vectors, float *out) {
    int64_t m = 0;
    for (; m + ROWS <= rows; m += ROWS)
        for (int64_t part = 0; part < ROWS; part += TILE) {
            const float *from = w + m * depth + part, *own = bias ? bias + m + part : NULL;
            float *to = out + (m + part) * vectors * LANES;
            if (vectors == 2) product_rows(from, ROWS, depth, x, own, relu, TILE, 2, to);
            else product_rows(from, ROWS, depth, x, own, relu, TILE, 1, to);
        }
    for (; m < rows; m++) {
        const float *from = w + m * depth, *own = bias ? bias + m : NULL;
        if (vectors == 2) product_rows(from, 1, depth, x, own, relu, 1, 2, out + m * 2 * LANES);
        else product_rows(from, 1, depth, x, own, relu, 1, 1, out + m * LANES);
    }
}

/* Softmax of each of the first `num` columns of `logits` [classes, columns] to rows of `out` [num, classes]. */
static inline void class_shares(const float *logits, int64_t classes, int64_t columns, int64_t num, float *out) {
    for (int64_t c = 0; c < num; c++) {
        float peak = logits[c], sum = 0;
        for (int64_t i = 1; i < classes; i++) peak = logits[i * columns + c] > peak ? logits[i * columns + c] : peak;
        for (int64_t i = 0; i < classes; i++) {
            float low = logits[i * columns + c] - peak;
            sum += out[c * classes + i] = exponential(low < -87.0f ? -87.0f : low);
        }
        for (int64_t i = 0; i < classes; i++) out[c * classes + i] /= sum;
    }
}

#endif
