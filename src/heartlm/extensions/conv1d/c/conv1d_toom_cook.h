/* Points, and the values of polynomials there: what both passes of Toom and Cook's way to convolve share.
 *
 * Four outputs of r taps are products of polynomials and known from r + 3 points. These are 0, 1, -1, 2, -2 and
 * infinity, which serve three taps; 1/2 makes four, -1/2 five. Pairs of opposite points share their even and odd parts.
 * With them the largest error, relative to the largest output, stays about 1e-6; more points cost digits quickly
 * (Barabasz et al. 2020, arXiv 1803.10986). An input that is not finite spoils all outputs of its tiles.
 *
 * More taps are cut into chunks of four, whose values are those of the following tiles; the last may have five. */
#ifndef HEARTLM_CONV1D_TOOM_COOK_H
#define HEARTLM_CONV1D_TOOM_COOK_H

#include "conv1d.h"

#define OUTPUTS 4
#define MOST_POINTS 8
#define MOST_TAPS (MOST_POINTS - OUTPUTS + 1)

static const double points[MOST_POINTS - 1] = {0, 1, -1, 2, -2, 0.5, -0.5};

/* The fewest points for a number of taps; eight where they spare a chunk of one tap. */
static inline int64_t points_for(int64_t num_taps) { return num_taps <= 3 ? 6 : num_taps % 4 == 1 ? 8 : 7; }

/* Taps that a chunk can have. */
static inline int64_t taps_of(int64_t num_points) { return num_points - OUTPUTS + 1; }

static inline int64_t chunks_for(int64_t num_taps, int64_t num_points) {
    return quotient_up(greater(1, num_taps - greater(0, taps_of(num_points) - OUTPUTS)), OUTPUTS);
}

/* The chunks that count at a point: all, but at infinity only those that have the highest tap. */
static inline void chunks_at(int64_t point, int64_t num_taps, int64_t num_points, int64_t *first, int64_t *end) {
    int64_t num_chunks = chunks_for(num_taps, num_points);
    int64_t most = taps_of(num_points);
    *first = 0, *end = num_chunks;
    if (point < num_points - 1)
        return;
    *first = most > OUTPUTS ? num_chunks - 1 : 0;
    *end -= num_taps < OUTPUTS * (num_chunks - 1) + most;
}

/* Calls a function whose last argument is the number of points, with that as a constant, so that each number has code
 * of its own. */
#define WITH_POINTS(number, call, ...)                                                                                 \
    ((number) == 6 ? call(__VA_ARGS__, 6) : (number) == 7 ? call(__VA_ARGS__, 7) : call(__VA_ARGS__, 8))

/* Coefficients of the values of a filter at the points, divided as the interpolation wants it. */
static inline void filter_matrix(int64_t num_points, float matrix[MOST_POINTS][MOST_TAPS]) {
    int64_t taps = taps_of(num_points);
    for (int64_t i = 0; i < num_points - 1; i++) {
        double factor = 1;
        for (int64_t j = 0; j < num_points - 1; j++) factor *= i == j ? 1 : points[i] - points[j];
        double power = 1 / factor;
        for (int64_t k = 0; k < taps; k++, power *= points[i]) matrix[i][k] = (float)power;
    }
    for (int64_t k = 0; k < taps; k++) matrix[num_points - 1][k] = k == taps - 1;
}

/* Values at 0, 1, -1, 2, -2 and infinity of the tile d; the last two lie apart, since other points come before. */
ALWAYS void evaluate_six(const vfloat *d, float *to, int64_t point, int64_t infinity) {
    vfloat even1 = d[4] - 4 * d[2], odd1 = d[3] - 4 * d[1], even2 = d[4] - d[2], odd2 = 2 * (d[3] - d[1]);
    store(to, 4 * d[0] - 5 * d[2] + d[4]);
    store(to + point, even1 + odd1);
    store(to + 2 * point, even1 - odd1);
    store(to + 3 * point, even2 + odd2);
    store(to + 4 * point, even2 - odd2);
    store(to + infinity * point, 4 * d[1] - 5 * d[3] + d[5]);
}

/* The values of the tile d at all points, `point` floats apart. Factors x - 1/2 and x^2 - 1/4 of the polynomials of the
 * six points come first. */
ALWAYS void evaluate(const vfloat *d, float *to, int64_t point, int num_points) {
    vfloat rest[6];
    if (num_points == 6) {
        evaluate_six(d, to, point, 5);
        return;
    }
    if (num_points == 7) {
#pragma GCC unroll 6
        for (int i = 0; i < 6; i++) rest[i] = d[i + 1] - 0.5f * d[i];
        store(to + 5 * point, 4 * d[1] - 5 * d[3] + d[5]);
    } else {
#pragma GCC unroll 6
        for (int i = 0; i < 6; i++) rest[i] = d[i + 2] - 0.25f * d[i];
        vfloat even = 4 * d[2] - 5 * d[4] + d[6], odd = 2 * d[1] - 2.5f * d[3] + 0.5f * d[5];
        store(to + 5 * point, even + odd);
        store(to + 6 * point, even - odd);
    }
    evaluate_six(rest, to, point, num_points - 1);
}

#endif
