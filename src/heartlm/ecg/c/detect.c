/* Heartbeats in a signal, chunk by chunk.
 *
 *     samples -> decimated -> even and odd filter -> power -> smooth height -> candidates -> beats
 *
 * The even filter passes about 5 to 20 Hz; where its output is far from zero the beat has its mark. */
#include <math.h>
#include <string.h>

#include "detect_decide.h"
#include "kernel.h"
#include "vector.h"

/* Where the arrays begin, in bytes. */
static int64_t before_arrays(const struct plan *p) {
    int64_t shape_bytes = (2 * p->shape + 1) * (int64_t)sizeof(float);
    return (int64_t)sizeof(struct detector) + p->num_candidates * (int64_t)sizeof(struct candidate) +
           (p->num_shapes * shape_bytes + 7) / 8 * 8;
}

static struct arrays arrays_of(const struct plan *p, struct detector *d) {
    struct arrays a;
    int64_t fine = p->reach + 2 + (p->fine_taps + p->factor) / p->factor;
    int64_t filters = p->even_taps > p->odd_taps ? p->even_taps : p->odd_taps;
    a.history = (fine > p->refractory ? fine : p->refractory) + p->refractory + p->smooth_taps + filters + 2;
    a.capacity = a.history + p->new_places;
    a.samples = (float *)((char *)d + before_arrays(p));
    a.decimated = a.samples + a.capacity * p->factor;
    a.even = a.decimated + a.capacity;
    a.power = a.even + a.capacity;
    a.smooth = a.power + a.capacity;
    return a;
}

/* How much memory a detector takes. */
int64_t HEARTLM(detect_bytes)(const struct plan *p) {
    struct detector *none = NULL;
    return before_arrays(p) + arrays_of(p, none).capacity * (p->factor + 4) * (int64_t)sizeof(float);
}

/* Make a detector of memory that is zero: before its first sample a signal is taken to be flat. */
void HEARTLM(detect_begin)(const struct plan *p, struct detector *d) {
    d->base = -arrays_of(p, d).history;
    d->num_real = -1;
    d->rr = p->rr_start;
    d->mask = p->num_candidates - 1;
    d->shape_mask = p->num_shapes - 1;
    d->shape_size = 2 * p->shape + 1;
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

/* Means of `factor` samples each; inlined for the usual factors, so that they are known when it is compiled. */
static inline void means(const float *samples, int64_t factor, int64_t count, float *out) {
    float share = 1.0f / (float)factor;
    for (int64_t i = 0; i < count; i++) {
        float sum = samples[i * factor];
        for (int64_t j = 1; j < factor; j++) sum += samples[i * factor + j];
        out[i] = sum * share;
    }
}

static void decimate(const struct plan *p, struct detector *d, struct arrays *a) {
    int64_t stop = d->num_samples / p->factor, first = d->num_decimated - d->base, count = stop - d->num_decimated;
    const float *from = a->samples + first * p->factor;
    float *to = a->decimated + first;
    switch (p->factor) {
    case 1: means(from, 1, count, to); break;
    case 2: means(from, 2, count, to); break;
    case 3: means(from, 3, count, to); break;
    case 4: means(from, 4, count, to); break;
    case 9: means(from, 9, count, to); break;
    default: means(from, p->factor, count, to);
    }
    d->num_decimated = stop;
}

/* `num` vectors of the sum over taps of what stands before and after x, added up or, for an odd filter, subtracted. */
static inline void filter_vectors(const float *x, const float *taps, int64_t last_tap, int odd, int num, float *out) {
    vfloat sum[4];
    for (int v = 0; v < num; v++) sum[v] = taps[0] * load(x + v * LANES);
    for (int64_t k = 1; k <= last_tap; k++)
        for (int v = 0; v < num; v++) {
            vfloat after = load(x + v * LANES + k), before = load(x + v * LANES - k);
            sum[v] += taps[k] * (odd ? after - before : after + before);
        }
    for (int v = 0; v < num; v++) store(out + v * LANES, sum[v]);
}

/* Filter `count` values from x on. `odd` is a constant wherever this is called. */
static inline void filter(const float *x, const float *taps, int64_t last_tap, int odd, int64_t count, float *out) {
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) filter_vectors(x + i, taps, last_tap, odd, 4, out + i);
    for (; i + LANES <= count; i += LANES) filter_vectors(x + i, taps, last_tap, odd, 1, out + i);
    for (; i < count; i++) {
        float sum = taps[0] * x[i];
        for (int64_t k = 1; k <= last_tap; k++)
            sum += taps[k] * (odd ? x[i + k] - x[i - k] : x[i + k] + x[i - k]);
        out[i] = sum;
    }
}

static void filter_both(const struct plan *p, struct detector *d, struct arrays *a, const float *even, const float *odd) {
    int64_t longest = p->even_taps > p->odd_taps ? p->even_taps : p->odd_taps;
    int64_t first = d->num_filtered - d->base, count = d->num_decimated - longest - d->num_filtered;
    if (count <= 0) return;
    filter(a->decimated + first, even, p->even_taps, 0, count, a->even + first);
    filter(a->decimated + first, odd, p->odd_taps, 1, count, a->power + first);
    for (int64_t i = first; i < first + count; i++)
        a->power[i] = a->power[i] * a->power[i] + a->even[i] * a->even[i];
    d->num_filtered += count;
}

static void smoothen(const struct plan *p, struct detector *d, struct arrays *a, const float *taps) {
    int64_t first = d->num_smooth - d->base, count = d->num_filtered - p->smooth_taps - d->num_smooth;
    if (count <= 0) return;
    filter(a->power + first, taps, p->smooth_taps, 0, count, a->smooth + first);
    d->num_smooth += count;
}

/* The value of x at its peak near x[0]: a parabola through three values where the middle one is farthest from zero. */
static double peak_height(const float *x) {
    double before = x[-1], here = x[0], after = x[1], bend = before + after - 2 * here;
    int is_peak = here < 0 ? here <= before && here <= after && bend > 0 : here >= before && here >= after && bend < 0;
    return is_peak ? here - (after - before) * (after - before) / (8 * bend) : here;
}

/* The sample around the place `peak` where the even filter's output is farthest above zero (`sign` 1) or below (-1). */
static int64_t mark(const struct plan *p, struct detector *d, struct arrays *a, int64_t peak, float sign, const float *fine) {
    float farthest = -1;
    int64_t centre = peak * p->factor + (p->factor - 1) / 2, position = centre;
    for (int64_t first = centre - p->factor; first <= centre + p->factor; first += LANES) {
        float values[LANES];
        filter(a->samples + (first - d->base * p->factor), fine, p->fine_taps, 0, LANES, values);
        for (int64_t i = 0; i < LANES && first + i <= centre + p->factor; i++)
            if (sign * values[i] > farthest) farthest = sign * values[i], position = first + i;
    }
    return position;
}

/* Where the beat at a candidate's place may have its mark, and what it looks like if that is in doubt. */
static void look_at(const struct plan *p, struct detector *d, struct arrays *a, int64_t number, const float *fine) {
    struct candidate *c = candidate(d, number);
    double above = 0, below = 0;
    int64_t highest = c->place, lowest = c->place;
    for (int64_t i = c->place - p->reach; i <= c->place + p->reach; i++) {
        double height = peak_height(a->even + (i - d->base));
        if (height > above) above = height, highest = i;
        if (-height > below) below = -height, lowest = i;
    }
    c->side = above + below > 0 ? (above - below) / (above + below) : 0;
    if (c->side > -p->doubt) c->positions[0] = mark(p, d, a, highest, 1, fine);
    if (c->side < p->doubt) c->positions[1] = mark(p, d, a, lowest, -1, fine);
    memcpy(shape_of(d, number), a->even + (c->place - p->shape - d->base), (size_t)d->shape_size * sizeof(float));
}

/* Whether the power has a peak at x[0]. */
static int is_peak(const float *x) { return x[0] > x[-1] && x[0] >= x[1]; }

/* Candidates are the peaks of the power without a higher one within the closest distance. Where the power is higher
 * within the refractory time, the candidate can be a beat in a fast rhythm only. */
static void find_candidates(const struct plan *p, struct detector *d, struct arrays *a, const float *fine) {
    int64_t refractory = p->refractory, stop = d->num_smooth - refractory;
    for (int64_t place = d->num_tested; place < stop; place++) {
        const float *x = a->smooth + (place - d->base);
        if (!is_peak(x)) continue;
        int64_t after = 1, before = 1, near = 1;
        while (near <= p->closest && !(x[near] > x[0] && is_peak(x + near)) && !(x[-near] >= x[0] && is_peak(x - near)))
            near++;
        if (near <= p->closest) continue;
        while (after <= refractory && x[after] <= x[0]) after++;
        while (before <= refractory && x[-before] < x[0]) before++;
        struct candidate *c = candidate(d, d->num_found++);
        c->place = place, c->height = sqrt(x[0]), c->low = after <= refractory || before <= refractory;
        look_at(p, d, a, d->num_found - 1, fine);
        join_fast(p, d, d->num_found - 1);
    }
    d->num_tested = stop > d->num_tested ? stop : d->num_tested;
}

static void take_in(const struct plan *p, struct detector *d, struct arrays *a, const float *taps) {
    const float *even = taps, *odd = even + p->even_taps + 1, *smooth = odd + p->odd_taps + 1;
    decimate(p, d, a);
    filter_both(p, d, a, even, odd);
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
