/* Heartbeats in a signal, chunk by chunk.
 *
 *     samples -> decimated -> even and odd filter -> power -> smooth height -> candidates -> beats
 *
 * The even filter passes about 5 to 20 Hz; where its output is farthest from zero the beat has its mark. */
#include <math.h>
#include <string.h>

#include "detect_decide.h"
#include "kernel.h"
#include "vector.h"

static struct arrays arrays_of(const struct plan *p, struct detector *d) {
    struct arrays a;
    int64_t fine = p->reach + 2 + (p->fine_taps + p->factor) / p->factor;
    int64_t filters = p->even_taps > p->odd_taps ? p->even_taps : p->odd_taps;
    a.history = (fine > p->refractory ? fine : p->refractory) + p->refractory + p->smooth_taps + filters + 2;
    a.capacity = a.history + NEW_PLACES;
    a.samples = (float *)(d + 1);
    a.decimated = a.samples + a.capacity * p->factor;
    a.even = a.decimated + a.capacity;
    a.power = a.even + a.capacity;
    a.smooth = a.power + a.capacity;
    return a;
}

/* How much memory a detector takes. */
int64_t HEARTLM(detect_bytes)(const struct plan *p) {
    struct detector *none = NULL;
    return (int64_t)sizeof(struct detector) + arrays_of(p, none).capacity * (p->factor + 4) * (int64_t)sizeof(float);
}

/* Make a detector of memory that is zero: before its first sample a signal is taken to be flat. */
void HEARTLM(detect_begin)(const struct plan *p, struct detector *d) {
    d->base = -arrays_of(p, d).history;
    d->num_real = -1;
    d->rr = p->rr_start;
}

/* Move the arrays so that new samples find room behind what is still needed. */
static void make_room(const struct plan *p, struct detector *d, struct arrays *a) {
    int64_t shift = d->num_decimated - a->history - d->base;
    int64_t kept = a->history + 1;
    if (shift <= 0) return;
    memmove(a->samples, a->samples + shift * p->factor, (size_t)(kept * p->factor) * sizeof(float));
    float *each[] = {a->decimated, a->even, a->power, a->smooth};
    for (int i = 0; i < 4; i++) memmove(each[i], each[i] + shift, (size_t)(a->history) * sizeof(float));
    d->base += shift;
}

static void decimate(const struct plan *p, struct detector *d, struct arrays *a) {
    int64_t stop = d->num_samples / p->factor, factor = p->factor;
    float share = 1.0f / (float)factor;
    for (int64_t i = d->num_decimated - d->base; i < stop - d->base; i++) {
        float sum = a->samples[i * factor];
        for (int64_t j = 1; j < factor; j++) sum += a->samples[i * factor + j];
        a->decimated[i] = sum * share;
    }
    d->num_decimated = stop;
}

static void filter(const struct plan *p, struct detector *d, struct arrays *a, const float *even, const float *odd) {
    int64_t longest = p->even_taps > p->odd_taps ? p->even_taps : p->odd_taps;
    int64_t stop = d->num_decimated - longest;
    int64_t i = d->num_filtered - d->base, end = stop - d->base;
    if (stop <= d->num_filtered) return;
    for (; i + LANES <= end; i += LANES) {
        const float *x = a->decimated + i;
        vfloat e = even[0] * load(x), o = e - e;
        for (int64_t k = 1; k <= p->even_taps; k++) e += even[k] * (load(x - k) + load(x + k));
        for (int64_t k = 1; k <= p->odd_taps; k++) o += odd[k] * (load(x + k) - load(x - k));
        store(a->even + i, e);
        store(a->power + i, o * o + e * e);
    }
    for (; i < end; i++) {
        const float *x = a->decimated + i;
        float e = even[0] * x[0], o = 0;
        for (int64_t k = 1; k <= p->even_taps; k++) e += even[k] * (x[-k] + x[k]);
        for (int64_t k = 1; k <= p->odd_taps; k++) o += odd[k] * (x[k] - x[-k]);
        a->even[i] = e;
        a->power[i] = o * o + e * e;
    }
    d->num_filtered = stop;
}

static void smoothen(const struct plan *p, struct detector *d, struct arrays *a, const float *taps) {
    int64_t stop = d->num_filtered - p->smooth_taps;
    int64_t i = d->num_smooth - d->base, end = stop - d->base;
    if (stop <= d->num_smooth) return;
    for (; i + LANES <= end; i += LANES) {
        const float *x = a->power + i;
        vfloat sum = taps[0] * load(x);
        for (int64_t k = 1; k <= p->smooth_taps; k++) sum += taps[k] * (load(x - k) + load(x + k));
        store(a->smooth + i, sum);
    }
    for (; i < end; i++) {
        const float *x = a->power + i;
        float sum = taps[0] * x[0];
        for (int64_t k = 1; k <= p->smooth_taps; k++) sum += taps[k] * (x[-k] + x[k]);
        a->smooth[i] = sum;
    }
    for (int64_t place = d->num_smooth; place < stop;) {
        int64_t block = place / p->block, next = (block + 1) * p->block < stop ? (block + 1) * p->block : stop;
        float height = place == block * p->block ? 0 : d->block_height[block % NUM_BLOCKS];
        for (; place < next; place++) {
            float *x = a->smooth + (place - d->base);
            *x = sqrtf(*x);
            if (*x > height) height = *x;
        }
        d->block_height[block % NUM_BLOCKS] = height;
    }
    d->num_smooth = stop;
}

/* How far from zero x is at its peak near x[0]: a parabola through three values where the middle one is an extremum. */
static double peak_height(const float *x) {
    double sign = x[0] < 0 ? -1 : 1, before = sign * x[-1], here = sign * x[0], after = sign * x[1];
    double bend = before + after - 2 * here;
    return here >= before && here >= after && bend < 0 ? here - (after - before) * (after - before) / (8 * bend) : here;
}

/* The sample around `place` where the even filter's output is farthest from zero. */
static int64_t mark(const struct plan *p, struct detector *d, struct arrays *a, int64_t place, const float *fine) {
    double highest = -1;
    int64_t peak = place;
    for (int64_t i = place - p->reach; i <= place + p->reach; i++) {
        double height = peak_height(a->even + (i - d->base));
        if (height > highest) highest = height, peak = i;
    }
    float farthest = -1;
    int64_t centre = peak * p->factor + (p->factor - 1) / 2, position = centre;
    for (int64_t i = centre - p->factor; i <= centre + p->factor; i++) {
        const float *x = a->samples + (i - d->base * p->factor);
        float sum = fine[0] * x[0];
        for (int64_t k = 1; k <= p->fine_taps; k++) sum += fine[k] * (x[-k] + x[k]);
        if (fabsf(sum) > farthest) farthest = fabsf(sum), position = i;
    }
    return position;
}

/* Candidates are the places whose height nothing within the refractory time exceeds. */
static void find_candidates(const struct plan *p, struct detector *d, struct arrays *a, const float *fine) {
    for (; d->num_tested < d->num_smooth - p->refractory; d->num_tested++) {
        const float *x = a->smooth + (d->num_tested - d->base);
        if (!(x[0] > x[-1] && x[0] >= x[1])) continue;
        int64_t k = 2;
        while (k <= p->refractory && x[0] > x[-k] && x[0] >= x[k]) k++;
        if (k <= p->refractory || d->num_candidates == NUM_WAITING) continue;
        struct candidate *c = &d->candidates[d->num_candidates++];
        c->place = d->num_tested, c->height = x[0], c->position = mark(p, d, a, d->num_tested, fine);
    }
}

static void take_in(const struct plan *p, struct detector *d, struct arrays *a, const float *taps) {
    const float *even = taps, *odd = even + p->even_taps + 1, *smooth = odd + p->odd_taps + 1;
    decimate(p, d, a);
    filter(p, d, a, even, odd);
    smoothen(p, d, a, smooth);
    find_candidates(p, d, a, smooth + p->smooth_taps + 1);
}

/* Take in `num_samples` samples and write the positions of the beats that are certain now, ascending, to `beats`;
 * return how many. `taps` holds the even, the odd and the smoothing filter and the even one at the full rate. With `ends`
 * no more samples come: the last is repeated until all beats are out. */
int64_t HEARTLM(detect_push)(const struct plan *p, struct detector *d, const float *taps, const float *samples,
                             int64_t num_samples, int64_t ends, int64_t *beats) {
    struct arrays a = arrays_of(p, d);
    int64_t num_beats = 0, num_padding = ends ? (a.history + 1) * p->factor : 0;
    if (d->num_samples == 0 && num_samples) d->origin = samples[0];
    float last = d->num_samples ? a.samples[d->num_samples - 1 - d->base * p->factor] : 0;
    if (num_samples) last = samples[num_samples - 1] - d->origin;
    for (int64_t done = 0; done < num_samples + num_padding;) {
        make_room(p, d, &a);
        float *to = a.samples + (d->num_samples - d->base * p->factor);
        int64_t room = (d->base + a.capacity) * p->factor - d->num_samples;
        int64_t left = done < num_samples ? num_samples - done : num_samples + num_padding - done;
        int64_t count = left < room ? left : room;
        for (int64_t i = 0; i < count; i++) to[i] = done < num_samples ? samples[done + i] - d->origin : last;
        d->num_samples += count, done += count;
        if (ends && done == num_samples + num_padding) d->num_real = d->num_samples - num_padding;
        take_in(p, d, &a, taps);
        if (done <= num_samples || d->num_real >= 0) decide_ready(p, d, beats, &num_beats);
    }
    return num_beats;
}
