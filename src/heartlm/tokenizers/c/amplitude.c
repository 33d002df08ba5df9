/* A lead as amplitude levels on a grid of times: smoothed, read off, without its slow average, in running amplitudes.
 * All looks back alone, so that a lead goes through second by second. */
#include "kernel.h"
#include "median.h"
#include "read_off.h"
#include "sorted_window.h"

#include <math.h>

enum { MOST_POINTS = 1024 };

/* Take the running average away; returns it after the last point. */
static double centre(const float *grid, int64_t count, double keep, double state, float *centred) {
    for (int64_t i = 0; i < count; i++) {
        double average = (1 - keep) * (double)grid[i] + state;
        state = keep * average;
        centred[i] = (float)((double)grid[i] - average);
    }
    return state;
}

static void to_levels(const float *centred, int64_t count, float scale, float limit, float step, float highest,
                      uint16_t *codes) {
    for (int64_t i = 0; i < count; i++) {
        float level = (centred[i] / scale + limit) / step;
        level = level > 0 ? level : 0;
        codes[i] = (uint16_t)(int32_t)(level < highest ? level : highest);
    }
}

static float range_of(const float *values, int64_t count, int32_t *keys) {
    for (int64_t i = 0; i < count; i++) keys[i] = to_key(values[i]);
    Extremes extremes = extremes_of(keys, count);
    return from_key(extremes.high) - from_key(extremes.low);
}

/* Levels at `num_points` grid points of a lead, the sample nearest to each, and the amplitude each was divided by.
 * The first second is divided by `first_scale`, every other by the median range of the whole seconds before it.
 * `padded` and `smoothed` are scratch for the samples of a second, its neighbours and LANES more, `ranges` for a
 * number a second, `ordered` for `scale_seconds`. A second has at most MOST_POINTS grid points. */
void HEARTLM(amplitude_levels)(const float *signal, int64_t num_samples, const double *weights, int64_t num_weights,
                               double points_apart, int64_t second, double keep, int64_t scale_seconds,
                               float first_scale, float least_scale, float limit, float step, int64_t num_levels,
                               int64_t num_points, float *padded, float *smoothed, double *ranges, double *ordered,
                               uint16_t *codes, int64_t *sample, float *scale) {
    const Lead lead = {signal, num_samples, weights, num_weights, padded};
    double positions[MOST_POINTS], state = 0, last = (double)(num_samples - 1);
    float grid[MOST_POINTS], centred[MOST_POINTS], amplitude = first_scale;
    int32_t keys[MOST_POINTS];
    int64_t count = 0;
    for (int64_t begin = 0, passed = 0; begin < num_points; begin += second, passed++) {
        int64_t length = num_points - begin < second ? num_points - begin : second;
        for (int64_t i = 0; i < length; i++) positions[i] = (double)(begin + i) * points_apart;
        read_off(&lead, positions, length, smoothed, grid);
        if (begin == 0) state = keep * (double)grid[0];
        state = centre(grid, length, keep, state, centred);
        to_levels(centred, length, amplitude, limit, step, (float)(num_levels - 1), codes + begin);
        for (int64_t i = 0; i < length; i++) {
            double nearest = rint(positions[i]);
            sample[begin + i] = (int64_t)(nearest > last ? last : nearest);
            scale[begin + i] = amplitude;
        }
        if (length < second) break;
        ranges[passed] = range_of(centred, second, keys);
        if (passed >= scale_seconds) remove_value(ordered, &count, ranges[passed - scale_seconds]);
        insert_value(ordered, &count, ranges[passed]);
        amplitude = (float)median_of(ordered, count);
        amplitude = amplitude > least_scale ? amplitude : least_scale;
    }
}
