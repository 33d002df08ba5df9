/* A lead as the network of heartlm.delineation reads it: at 250 Hz, without baseline wander, divided by its usual range. */
#include "kernel.h"
#include "vector.h"

#define WINDOW 512         /* samples in which a range is measured */
#define NEAR 4             /* the usual range is the median of those of a window and of as many on either side */
#define PARTS 4            /* of a moving average, computed at the same time */
#define RADIUS 75          /* of the moving average, applied twice, that is the baseline */
#define LEAST_RANGE 0.05f  /* mV */

#define LARGEST 1e6f       /* mV; what is not below is as invalid as what is not a number */

static inline int is_valid(float x) { return x > -LARGEST && x < LARGEST; }

/* Lines over invalid samples; before the first valid one and after the last one, its value. */
static void fill(const float *signal, int64_t num_samples, float *out) {
    memcpy(out, signal, (size_t)num_samples * sizeof(float));
    for (int64_t t = 0, end; t < num_samples; t = end > t ? end : t) {
        int invalid = 0;
        end = t + 64 < num_samples ? t + 64 : num_samples;
        for (int64_t u = t; u < end; u++) invalid += !is_valid(signal[u]);
        for (; invalid && t < end; t++) {
            if (is_valid(signal[t])) continue;
            int64_t last = t - 1;
            while (t < num_samples && !is_valid(signal[t])) t++;
            float before = last >= 0 ? signal[last] : t < num_samples ? signal[t] : 0;
            float after = t < num_samples ? signal[t] : before;
            for (int64_t u = last + 1; u < t; u++)
                out[u] = before + (after - before) * (float)(u - last) / (float)(t - last);
        }
    }
}

/* out[j] = the filter of the nearest of `num_phases` fractions, a power of two, at place j * step of x. */
static void resample(const float *x, int64_t num_samples, double step, const float *taps, int64_t num_taps,
                     int64_t num_phases, int64_t num_out, float *out) {
    int64_t before = num_taps / 2;
    int shift = __builtin_ctzll((uint64_t)num_phases);
    for (int64_t j = 0; j < num_out; j++) {
        int64_t place = (int64_t)(j * step * (double)num_phases + 0.5), first = (place >> shift) - before;
        const float *weights = taps + (place & (num_phases - 1)) * num_taps;
        if (first >= 0 && first + num_taps <= num_samples) {
            vfloat sum = {0};
            for (int64_t k = 0; k < num_taps; k += LANES) {
                int64_t left = num_taps - k < LANES ? num_taps - k : LANES;
                sum = multiply_add(load_first(x + first + k, left), load_first(weights + k, left), sum);
            }
            out[j] = sum_of_lanes(sum);
        } else {
            float sum = 0;
            for (int64_t k = 0; k < num_taps; k++) {
                int64_t at = first + k < 0 ? 0 : first + k < num_samples ? first + k : num_samples - 1;
                sum += weights[k] * x[at];
            }
            out[j] = sum;
        }
    }
}

/* A moving average. One running sum alone would wait for each of its additions. */
static void average(const float *x, int64_t num, float *out) {
    double sums[PARTS] = {0};
    int64_t length = (num + PARTS - 1) / PARTS;
    for (int part = 0; part < PARTS; part++)
        for (int64_t t = part * length - RADIUS; t <= part * length + RADIUS; t++)
            sums[part] += x[t < 0 ? 0 : t < num ? t : num - 1];
    for (int64_t i = 0; i < length; i++)
        for (int64_t part = 0, t = i; part < PARTS && t < num; part++, t += length) {
            out[t] = (float)(sums[part] * (1.0 / (2 * RADIUS + 1)));
            int64_t next = t + RADIUS + 1 < num ? t + RADIUS + 1 : num - 1;
            sums[part] += (double)x[next] - (double)x[t > RADIUS ? t - RADIUS : 0];
        }
}

static float median_of(float *values, int64_t num) {
    for (int64_t i = 1; i < num; i++)
        for (int64_t j = i; j > 0 && values[j] < values[j - 1]; j--) {
            float swap = values[j];
            values[j] = values[j - 1], values[j - 1] = swap;
        }
    return num % 2 ? values[num / 2] : (values[num / 2 - 1] + values[num / 2]) / 2;
}

/* Divide x by the usual range, which is a line between the centres of the windows; the last window has the rest. */
static void divide_by_range(float *x, int64_t num, float *ranges) {
    int64_t windows = num < WINDOW ? 1 : num / WINDOW;
    float *usual = ranges + windows;
    for (int64_t i = 0; i < windows; i++) {
        int64_t end = i + 1 == windows ? num : (i + 1) * WINDOW;
        vfloat high = all_lanes(x[i * WINDOW]), negative_low = -high;
        int64_t t = i * WINDOW;
        for (; t + LANES <= end; t += LANES)
            high = larger(high, load(x + t)), negative_low = larger(negative_low, -load(x + t));
        for (; t < end; t++)
            high = larger(high, all_lanes(x[t])), negative_low = larger(negative_low, all_lanes(-x[t]));
        ranges[i] = largest_lane(high) + largest_lane(negative_low);
    }
    for (int64_t i = 0; i < windows; i++) {
        int64_t first = i > NEAR ? i - NEAR : 0, last = i + NEAR < windows ? i + NEAR + 1 : windows;
        float near[2 * NEAR + 1];
        for (int64_t j = first; j < last; j++) near[j - first] = ranges[j];
        usual[i] = median_of(near, last - first);
    }
    for (int64_t i = -1; i < windows; i++) { /* from the centre of window i to the next; the ends have no other one */
        int64_t first = i < 0 ? 0 : i * WINDOW + WINDOW / 2, end = i + 1 < windows ? first + WINDOW : num;
        end = i < 0 ? WINDOW / 2 : end;
        end = end < num ? end : num;
        float range = usual[i < 0 ? 0 : i], slope = i < 0 || i + 1 == windows ? 0 : (usual[i + 1] - range) / WINDOW;
        for (int64_t t = first; t < end; t++) {
            float here = range + slope * (float)(int32_t)(t - first);
            x[t] /= here > LEAST_RANGE ? here : LEAST_RANGE;
        }
    }
}

/* out [num_out] from a signal in mV at `step` samples for each of 250 Hz. taps [num_phases, num_taps], an odd number of
 * them, are not used where the step is 1. Scratch: num_samples + 2 num_out + 2 floats. */
void HEARTLM(delineate_prepare)(const float *signal, int64_t num_samples, double step, const float *taps,
                                int64_t num_taps, int64_t num_phases, float *scratch, int64_t num_out, float *out) {
    float *filled = scratch, *once = scratch + num_samples, *twice = once + num_out;
    fill(signal, num_samples, filled);
    if (step == 1)
        memcpy(out, filled, (size_t)num_out * sizeof(float));
    else
        resample(filled, num_samples, step, taps, num_taps, num_phases, num_out, out);
    average(out, num_out, once);
    average(once, num_out, twice);
    for (int64_t t = 0; t < num_out; t++) out[t] -= twice[t];
    divide_by_range(out, num_out, once);
}

static inline int changes(const float *signal, int64_t t) { return signal[t] != signal[t - 1] && is_valid(signal[t]); }

/* Which cells, of two samples of 250 Hz, lie in signal: 0 where it is constant or invalid for `longest` samples. */
void HEARTLM(delineate_usable)(const float *signal, int64_t num_samples, double step, int64_t longest, int64_t cells,
                               float *usable) {
    for (int64_t c = 0; c < cells; c++) usable[c] = 1;
    for (int64_t begin = 0; begin < num_samples;) { /* a change of the signal */
        int64_t reach = begin + longest < num_samples ? begin + longest : num_samples, t = reach - 1;
        while (t > begin && !changes(signal, t)) t--;
        if (t == begin && reach == begin + longest) {
            for (t = reach; t < num_samples && !changes(signal, t);) t++;
            int64_t last = (int64_t)((double)t / step / 2);
            for (int64_t c = (int64_t)((double)begin / step / 2); c <= last && c < cells; c++) usable[c] = 0;
        } else if (t == begin)
            return;
        begin = t;
    }
}
