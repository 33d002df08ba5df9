/* The last values of a series, kept in order: what running medians stand on. NaN is never among them. */
#ifndef HEARTLM_SORTED_WINDOW_H
#define HEARTLM_SORTED_WINDOW_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* How many of the `count` ordered values are less than `value`. */
static inline int64_t place_of(const double *ordered, int64_t count, double value) {
    int64_t low = 0;
    while (count > 0) {
        int64_t half = count / 2;
        int less = ordered[low + half] < value;
        low = less ? low + half + 1 : low;
        count = less ? count - half - 1 : half;
    }
    return low;
}

static inline void insert_value(double *ordered, int64_t *count, double value) {
    if (isnan(value)) return;
    int64_t place = place_of(ordered, *count, value);
    memmove(ordered + place + 1, ordered + place, (size_t)(*count - place) * sizeof(double));
    ordered[place] = value;
    *count += 1;
}

/* The value is among them: what is removed was inserted, with the same bits. */
static inline void remove_value(double *ordered, int64_t *count, double value) {
    if (isnan(value)) return;
    int64_t place = place_of(ordered, *count, value);
    *count -= 1;
    memmove(ordered + place, ordered + place + 1, (size_t)(*count - place) * sizeof(double));
}

/* The middle value, or the mean of the two middle ones; NaN of nothing. */
static inline double median_of(const double *ordered, int64_t count) {
    return count ? 0.5 * (ordered[(count - 1) / 2] + ordered[count / 2]) : NAN;
}

#endif
