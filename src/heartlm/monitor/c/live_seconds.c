/* One second of each of many leads: its beats with their waveforms, and the window that the waveform network reads. Its
 * tests have the same in NumPy, with the same numbers to the last bit. */
#include <math.h>

#include "detect.h"
#include "kernel.h"
#include "read_off.h"

#define GRID 100         /* codes a second */
#define WINDOW 400       /* codes of a window */
#define MOST_WAITING 320 /* beats that may wait, or come out at once */

/* What all leads of one rate share; kernels.h declares it for Python. */
struct seconds {
    const struct plan *plan;
    const float *taps;
    int64_t detector_bytes, kept, raw_kept; /* samples of `recent` and of `raw` */
    int64_t longest_gap, step_length, flat_length, ahead, num_points, num_weights, num_grid_weights, num_levels;
    const double *offsets, *weights, *grid_weights, *power; /* power: of the slow average, after 1 to GRID codes */
    const float *levels;                                    /* voltages at which codes 2, 3, … begin */
    double rate_hz, shortest, quick;                        /* of a stretch, in samples; weight of a new voltage */
    double furthest, step; /* mV */
};

struct lead {
    int64_t num_seconds, num_samples, num_recent, num_raw, same, num_waiting, num_grid, has_average;
    int64_t has_stretch, begin, num_pushed, gap; /* of the detector's stretch */
    double average;
    float last_valid, last;
    int64_t waiting[MOST_WAITING];
    uint16_t grid[WINDOW];
    float recent[]; /* then raw, then which of the last samples pushed lie in a bridged gap, then the detector */
};

#define OF_DETECTOR(name) HEARTLM_JOIN(detect_##name, HEARTLM_VARIANT) /* of detect.c */
int64_t OF_DETECTOR(push)(const struct plan *p, struct detector *d, const float *taps, const float *samples,
                             int64_t num_samples, int64_t ends, int64_t *beats);
void OF_DETECTOR(begin)(const struct plan *p, struct detector *d);

static float *raw_of(const struct seconds *s, struct lead *l) { return l->recent + s->kept; }

/* Sample k of the stretch has the bit k modulo `kept`. */
static uint8_t *bridged_of(const struct seconds *s, struct lead *l) { return (uint8_t *)(raw_of(s, l) + s->raw_kept); }

/* Where the detector begins, in bytes; the memory of a lead begins at a multiple of 16. */
static int64_t before_detector(const struct seconds *s) {
    return ((int64_t)sizeof(struct lead) + (s->kept + s->raw_kept) * (int64_t)sizeof(float) + s->kept / 8 + 16) / 16 * 16;
}

static struct detector *detector_of(const struct seconds *s, struct lead *l) {
    return (struct detector *)((char *)l + before_detector(s));
}

/* How much memory a lead takes; it begins as zeros. */
int64_t HEARTLM(live_seconds_bytes)(const struct seconds *s) {
    return before_detector(s) + s->detector_bytes;
}

/* Append to the last `most` values; nothing to read from is `value`. */
static void append(float *kept, int64_t *num, int64_t most, const float *from, float value, int64_t count) {
    int64_t skip = count > most ? count - most : 0, stay = most - (count - skip) < *num ? most - (count - skip) : *num;
    memmove(kept, kept + *num - stay, (size_t)stay * sizeof(float));
    for (int64_t i = skip; i < count; i++) kept[stay + i - skip] = from ? from[i] : value;
    *num = stay + count - skip;
}

/* Beats of the detector that lie in no bridged gap go to those that wait. */
static void keep(const struct seconds *s, struct lead *l, const float *samples, int64_t count, int64_t ends) {
    int64_t beats[MOST_WAITING];
    int64_t found = OF_DETECTOR(push)(s->plan, detector_of(s, l), s->taps, samples, count, ends, beats);
    for (int64_t i = 0; i < found && l->num_waiting < MOST_WAITING; i++) {
        int64_t place = beats[i] % s->kept;
        if (!(bridged_of(s, l)[place / 8] >> place % 8 & 1)) l->waiting[l->num_waiting++] = l->begin + beats[i];
    }
}

/* Valid samples go to the detector, with a straight line over a short gap before them. */
static void push(const struct seconds *s, struct lead *l, const float *samples, int64_t count, int64_t place, float *line) {
    if (!l->has_stretch) {
        memset(detector_of(s, l), 0, (size_t)s->detector_bytes);
        OF_DETECTOR(begin)(s->plan, detector_of(s, l));
        l->has_stretch = 1, l->begin = place, l->num_pushed = l->gap = 0;
    }
    int64_t gap = l->gap;
    if (gap) {
        float slope = (samples[0] - l->last) / (float)(gap + 1);
        for (int64_t i = 0; i < gap; i++) line[i] = (float)(i + 1) * slope + l->last;
        memcpy(line + gap, samples, (size_t)count * sizeof(float));
        samples = line, count += gap, l->gap = 0;
    }
    for (int64_t i = 0, place = l->num_pushed % s->kept; i < count; i++, place = place + 1 < s->kept ? place + 1 : 0) {
        uint8_t *bits = bridged_of(s, l) + place / 8, bit = (uint8_t)(1 << place % 8);
        *bits = i < gap ? *bits | bit : *bits & (uint8_t)~bit;
    }
    l->last = samples[count - 1], l->num_pushed += count;
    keep(s, l, samples, count, 0);
}

/* A second goes to the detector: stretches of valid samples, and gaps (NaN), of which a long one ends a stretch. */
static void detect(const struct seconds *s, struct lead *l, const float *samples, int64_t count, int64_t place, float *line) {
    for (int64_t start = 0, stop; start < count; start = stop) {
        int valid = isfinite(samples[start]) != 0;
        for (stop = start + 1; stop < count && (isfinite(samples[stop]) != 0) == valid; stop++) {}
        if (valid) {
            push(s, l, samples + start, stop - start, place + start, line);
        } else if (l->has_stretch) {
            l->gap += stop - start;
            if (l->gap > s->longest_gap) {
                if ((double)l->num_pushed >= s->shortest) keep(s, l, samples, 0, 1);
                l->has_stretch = 0;
            }
        }
    }
}

/* `count` values from `from` on, smoothed, to `to`; the first and last continue. `line` is scratch. */
static void smoothed(const float *from, int64_t count, const double *weights, int64_t num, float *line, float *to) {
    int64_t half = num / 2;
    for (int64_t i = 0; i < half; i++) line[i] = from[0], line[half + count + i] = from[count - 1];
    memcpy(line + half, from, (size_t)count * sizeof(float));
    smooth(line, count, weights, num, to);
}

/* x [count] at a fractional place, by linear interpolation. */
static inline float between(const float *x, int64_t count, double place) {
    place = inside(place, (double)(count - 1));
    int64_t left = (int64_t)place, most = count > 2 ? count - 2 : 0;
    left = left < most ? left : most;
    int64_t right = left + 1 < count - 1 ? left + 1 : count - 1;
    float weight = (float)(place - (double)left);
    return x[left] * (1 - weight) + x[right] * weight;
}

static void waveform(const struct seconds *s, struct lead *l, int64_t sample, float *line, float *smooth_line, float *wave) {
    int64_t start = l->num_samples - l->num_recent, stop = sample + s->ahead + 1;
    int64_t first = sample + (int64_t)floor(s->offsets[0]) - s->num_weights / 2 - 1;
    first = first > start ? first : start, stop = stop < l->num_samples ? stop : l->num_samples;
    smoothed(l->recent + (first - start), stop - first, s->weights, s->num_weights, line, smooth_line);
    for (int64_t p = 0; p < s->num_points; p++)
        wave[p] = between(smooth_line, stop - first, (double)(sample - first) + s->offsets[p]);
}

/* The k-th smallest of values, which are put in another order. */
static float select_value(float *values, int64_t count, int64_t k) {
    for (int64_t low = 0, high = count - 1; low < high;) {
        float pivot = values[(low + high) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] < pivot) i++;
            while (pivot < values[j]) j--;
            if (i <= j) {
                float value = values[i];
                values[i++] = values[j], values[j--] = value;
            }
        }
        if (k <= j) high = j;
        else if (k >= i) low = i;
        else break;
    }
    return values[k];
}

/* The second without what is no number, too far from the median of the last seconds, or after a step; how many are left. */
static int64_t cleaned(const struct seconds *s, struct lead *l, const float *samples, int64_t count, float *line, float *out) {
    const float *raw = raw_of(s, l);
    float low = INFINITY, high = -INFINITY, before = raw[l->num_raw > count ? l->num_raw - count - 1 : 0];
    int64_t num = 0, num_known = 0;
    for (int64_t i = 0; i < count; i++) num_known += isfinite(samples[i]) != 0;
    for (int64_t i = 0; i < count; i++) out[i] = isfinite(samples[i]) ? samples[i] : NAN;
    if (!num_known) return 0;
    for (int64_t i = 0; i < l->num_raw; i++) {
        low = raw[i] < low ? raw[i] : low;
        high = raw[i] > high ? raw[i] : high;
    }
    if (!(high - low <= (float)s->furthest)) { /* else none is so far from the median */
        for (int64_t i = 0; i < l->num_raw; i++)
            if (!isnan(raw[i])) line[num++] = raw[i];
        float upper = select_value(line, num, num / 2);
        float median = num % 2 ? upper : (select_value(line, num, num / 2 - 1) + upper) / 2;
        for (int64_t i = 0; i < count; i++)
            if (!(fabsf(samples[i] - median) <= (float)s->furthest)) out[i] = NAN;
    }
    for (int64_t i = 0; i < count; before = samples[i++])
        if (fabsf(samples[i] - before) > (float)s->step)
            for (int64_t j = i; j < count && j < i + s->step_length; j++) out[j] = NAN;
    for (int64_t i = num_known = 0; i < count; i++) num_known += !isnan(out[i]);
    return num_known;
}

/* How many samples are valid: numbers, and in no long run of equal ones, which may reach back beyond this second. */
static int64_t count_valid(const struct seconds *s, struct lead *l, const float *samples, int64_t count) {
    float before = l->num_samples ? l->recent[l->num_recent - 1] : NAN;
    int64_t num = 0, run = l->same, begin = 0, first = 1; /* `run` counts those before this second while `first` */
    for (int64_t i = 0; i <= count; i++) {
        int same = i < count && samples[i] == (i ? samples[i - 1] : before);
        if (same) continue;
        int64_t length = i - begin, all = length + (first ? run : 0);
        if (length && all < s->flat_length)
            for (int64_t j = begin; j < i; j++) num += !isnan(samples[j]);
        if (i < count) num += !isnan(samples[i]), l->same = 0;
        else l->same = first ? run + length : length;
        begin = i + 1, first = 0;
    }
    return num;
}

/* Codes of this second, for the window; its range in mV without the slow average. */
static double extend_grid(const struct seconds *s, struct lead *l, const float *samples, int64_t count, float *line,
                          float *smooth_line) {
    int64_t halo = s->num_grid_weights < l->num_recent - count ? s->num_grid_weights : l->num_recent - count;
    int64_t length = count + halo, start = l->num_samples - count;
    smoothed(l->recent + (l->num_recent - length), length, s->grid_weights, s->num_grid_weights, line, smooth_line);
    if (l->num_grid == WINDOW) memmove(l->grid, l->grid + GRID, (WINDOW - GRID) * sizeof(uint16_t)), l->num_grid -= GRID;
    uint16_t *codes = l->grid + l->num_grid;
    double sum = 0, low = INFINITY, high = -INFINITY, slow = 0, ratio = s->rate_hz / GRID;
    for (int64_t i = 0; i < GRID; i++) {
        double place = (double)(l->num_seconds * GRID + i) * ratio - (double)start;
        double voltage = between(smooth_line, length, place + (double)halo);
        if (!l->has_average) l->average = voltage, l->has_average = 1;
        sum += voltage / s->power[i];
        slow = s->power[i] * (l->average + s->quick * sum);
        double centred = voltage - slow;
        low = centred < low ? centred : low, high = centred > high ? centred : high;
        float value = (float)centred;
        int64_t code = 0, nearest = (int64_t)inside(rint(place), (double)(count - 1));
        for (int64_t step = 512; step; step /= 2)
            if (code + step <= s->num_levels && value >= s->levels[code + step - 1]) code += step;
        codes[i] = isnan(samples[nearest]) ? 0 : (uint16_t)(code + 1);
    }
    l->average = slow, l->num_grid += GRID;
    return high - low;
}

/* Take in the next second of leads `first` to `num`, until `most` beats might not have room; how far it came.
 *
 * leads: addresses of their memory, at multiples of 16; samples: addresses of `counts` samples each, NaN where invalid.
 * windows: [num, WINDOW], written where `has_window`; shares [num] of valid samples; ranges [num] in mV, NaN where
 * unknown. num_beats: before and after; of_lead, beats, waves: [most], [most], [most, num_points]. A third of the scratch
 * has room for 9 s of samples and the longest weights. */
int64_t HEARTLM(live_seconds)(const struct seconds *s, const int64_t *leads, const int64_t *samples, const int64_t *counts,
                              int64_t first, int64_t num, uint16_t *windows, uint8_t *has_window, double *shares,
                              double *ranges, int64_t *num_beats, int64_t most, int64_t *of_lead, int64_t *beats,
                              float *waves, float *scratch, int64_t scratch_size) {
    float *line = scratch, *smooth_line = scratch + scratch_size / 3, *clean = scratch + scratch_size / 3 * 2;
    for (; first < num && *num_beats + MOST_WAITING <= most; first++) {
        struct lead *l = (struct lead *)(intptr_t)leads[first];
        const float *raw = (const float *)(intptr_t)samples[first];
        int64_t count = counts[first], ready = 0;
        append(raw_of(s, l), &l->num_raw, s->raw_kept, raw, 0, count);
        int64_t known = cleaned(s, l, raw, count, line, clean);
        int64_t place = l->num_samples;
        shares[first] = 0, ranges[first] = NAN, has_window[first] = 0;
        if (known) {
            shares[first] = (double)count_valid(s, l, clean, count) / (double)count;
            for (int64_t i = 0; i < count; i++) {
                l->last_valid = isnan(clean[i]) ? l->last_valid : clean[i];
                line[i] = l->last_valid;
            }
            append(l->recent, &l->num_recent, s->kept, line, 0, count);
        } else {
            append(l->recent, &l->num_recent, s->kept, NULL, l->last_valid, count);
        }
        l->num_samples += count;
        detect(s, l, clean, count, place, line);
        while (ready < l->num_waiting && (!known || l->waiting[ready] + s->ahead < l->num_samples)) {
            waveform(s, l, l->waiting[ready], line, smooth_line, waves + *num_beats * s->num_points);
            of_lead[*num_beats] = first, beats[(*num_beats)++] = l->waiting[ready++];
        }
        l->num_waiting -= ready;
        memmove(l->waiting, l->waiting + ready, (size_t)l->num_waiting * sizeof l->waiting[0]);
        if (known) {
            ranges[first] = extend_grid(s, l, clean, count, line, smooth_line);
            if (l->num_grid == WINDOW) {
                memcpy(windows + first * WINDOW, l->grid, sizeof l->grid);
                has_window[first] = 1;
            }
        } else {
            if (l->num_grid == WINDOW) memmove(l->grid, l->grid + GRID, (WINDOW - GRID) * sizeof(uint16_t)), l->num_grid -= GRID;
            memset(l->grid + l->num_grid, 0, GRID * sizeof(uint16_t));
            l->num_grid += GRID, l->has_average = l->same = 0;
        }
        l->num_seconds++;
    }
    return first;
}
