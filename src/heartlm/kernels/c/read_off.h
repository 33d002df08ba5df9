/* Reading a lead off at fractional positions. Only samples near them are smoothed, and nothing as long as the lead is
 * written. */
#ifndef HEARTLM_READ_OFF_H
#define HEARTLM_READ_OFF_H

#include "vector.h"

/* Weighted sums of `num_weights` values from each of `count` places on; reads, and writes, up to LANES more. */
static inline void smooth(const float *from, int64_t count, const double *weights, int64_t num_weights, float *to) {
    for (int64_t i = 0; i < count; i += LANES) {
        vdouble low = {0}, high = {0};
        for (int64_t k = 0; k < num_weights; k++) {
            low += weights[k] * load_doubles(from + i + k);
            high += weights[k] * load_doubles(from + i + LANES / 2 + k);
        }
        store_doubles(to + i, low);
        store_doubles(to + i + LANES / 2, high);
    }
}

/* A lead, and how it is smoothed. */
typedef struct {
    const float *signal;
    int64_t num_samples;
    const double *weights;
    int64_t num_weights;
    float *padded; /* scratch for the longest stretch, its neighbours and LANES more */
} Lead;

/* Smoothed samples `first` to `first + count`; beyond the ends of the lead its first and last samples continue. */
static inline void smooth_stretch(const Lead *lead, int64_t first, int64_t count, float *to) {
    int64_t begin = first - lead->num_weights / 2;
    int64_t length = count + lead->num_weights - 1 + LANES;
    const float *from = lead->signal + begin;
    if (begin < 0 || begin + length > lead->num_samples) {
        for (int64_t i = 0; i < length; i++) {
            int64_t place = begin + i < 0 ? 0 : begin + i;
            lead->padded[i] = lead->signal[place < lead->num_samples ? place : lead->num_samples - 1];
        }
        from = lead->padded;
    }
    smooth(from, count, lead->weights, lead->num_weights, to);
}

static inline double inside(double position, double last) {
    position = position < 0 ? 0 : position;
    return position > last ? last : position;
}

enum { PART = 64 };

/* The lead at `num_points` fractional positions, ascending, by linear interpolation between smoothed samples;
 * `smoothed` is scratch as long as `padded`. */
static inline void read_off(const Lead *lead, const double *positions, int64_t num_points, float *restrict smoothed,
                            float *restrict to) {
    int64_t last = lead->num_samples - 1;
    double last_position = (double)last;
    int64_t first = (int64_t)inside(positions[0], last_position);
    int64_t end = (int64_t)inside(positions[num_points - 1], last_position) + 1;
    if (first > last - 1) first = last > 0 ? last - 1 : 0;
    if (end > last) end = last;
    smooth_stretch(lead, first, end - first + 1, smoothed);
    int32_t rightmost = (int32_t)(end - first);
    int32_t leftmost = rightmost > 0 ? rightmost - 1 : 0;
    int32_t left[PART];
    float weight[PART];
    for (int64_t begin = 0; begin < num_points; begin += PART) {
        int64_t count = num_points - begin < PART ? num_points - begin : PART;
        for (int64_t p = 0; p < count; p++) {
            double position = inside(positions[begin + p], last_position) - (double)first;
            int32_t whole = (int32_t)position;
            left[p] = whole < leftmost ? whole : leftmost;
            weight[p] = (float)(position - (double)left[p]);
        }
        for (int64_t p = 0; p < count; p++) {
            int32_t right = left[p] < rightmost ? left[p] + 1 : rightmost;
            to[begin + p] = smoothed[left[p]] * (1 - weight[p]) + smoothed[right] * weight[p];
        }
    }
}

#endif
