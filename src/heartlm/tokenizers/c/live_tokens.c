/* The next beat of each of many leads: its waveform, its deviation and its comparisons with the beats before, from which
 * its token is read. The reference is heartlm.tokenizers.beat.BeatTokenizer of the whole lead, causal; what a lead
 * remembers is one block of memory that begins as zeros. */
#include <math.h>
#include <string.h>

#include "kernel.h"
#include "median.h"
#include "sorted_window.h"

/* Of which points a part of a beat consists. */
struct part {
    int64_t first, num;
};

/* What all leads share; kernels.h declares it for Python. */
struct tokens {
    int64_t num_points, look_back, every, num_ranges;
    int64_t long_mean, longest, recent, near, around, steady; /* numbers of intervals, as in comparisons.py and rr.py */
    int64_t fewest_usual, fewest_ranges;
    struct part qrs, t, p, active;
    double shortest_s, longest_s, irregular, sudden, usual, clip, least_scale, faint, alike, step_s;
};

enum { RR = 3, RHYTHM = 7, MORPHOLOGY = 12 }; /* values of a beat */

/* What is remembered of a lead. Of beat k, rings have the place k modulo their length. */
struct numbers {
    int64_t num_beats, num_recent, num_ordered;
    double sums[4]; /* of the `longest` intervals in s; how many; of the last changes, how many are great; how many */
    double usual_mv, log_slow, last_change;
    float log_width, consistency;
};

struct memory {
    struct numbers *of;
    double *log_rr, *medians;          /* rings: [longest + 1], and of the last `steady` [2 steady] */
    double *recent;                    /* the last intervals, in order [recent] */
    double *ranges, *ordered;          /* of the last waveforms: ring, and in order [num_ranges] */
    int64_t *sample;                   /* ring [look_back + 1] */
    float *log_widths;                 /* ring [look_back] */
    float *dominant, *qrs, *slow_qrs, *t, *p, *slow_p; /* medians, by points */
    float *p_waves;                    /* ring [2 near, points] */
    int16_t *shape;                    /* ring [look_back, num_points], where INT16_MAX is `clip` */
    char *end;
};

static struct memory memory_at(const struct tokens *t, char *at) {
    struct memory m = {.of = (struct numbers *)at};
    double **doubles[] = {&m.log_rr, &m.medians, &m.recent, &m.ranges, &m.ordered};
    int64_t lengths[] = {t->longest + 1, 2 * t->steady, t->recent, t->num_ranges, t->num_ranges};
    at += sizeof(struct numbers);
    for (int i = 0; i < 5; at += lengths[i++] * (int64_t)sizeof(double)) *doubles[i] = (double *)at;
    m.sample = (int64_t *)at, at += (t->look_back + 1) * (int64_t)sizeof(int64_t);
    float **floats[] = {&m.log_widths, &m.dominant, &m.qrs, &m.slow_qrs, &m.t, &m.p, &m.slow_p, &m.p_waves};
    int64_t sizes[] = {t->look_back, t->num_points, t->qrs.num, t->qrs.num, t->t.num, t->p.num, t->p.num, 2 * t->near * t->p.num};
    for (int i = 0; i < 8; at += sizes[i++] * (int64_t)sizeof(float)) *floats[i] = (float *)at;
    m.shape = (int16_t *)at, m.end = at + t->look_back * t->num_points * (int64_t)sizeof(int16_t);
    return m;
}

/* How much memory a lead takes. */
int64_t HEARTLM(live_tokens_bytes)(const struct tokens *t) {
    return memory_at(t, NULL).end - (char *)NULL;
}

/* Pearson correlation; 0 where either is constant. Eight sums run side by side, in one order on every processor. */
static float correlation(const float *a, const float *b, int64_t num) {
    float of_a[8] = {0}, of_b[8] = {0}, aa[8] = {0}, bb[8] = {0}, ab[8] = {0};
    for (int64_t i = 0; i < num; i++) of_a[i % 8] += a[i], of_b[i % 8] += b[i];
    for (int l = 4; l; l /= 2)
        for (int i = 0; i < l; i++) of_a[i] += of_a[i + l], of_b[i] += of_b[i + l];
    float mean_a = of_a[0] / (float)num;
    float mean_b = of_b[0] / (float)num;
    for (int64_t i = 0; i < num; i += 8)
        for (int l = 0; l < 8; l++) {
            float x = i + l < num ? a[i + l] - mean_a : 0;
            float y = i + l < num ? b[i + l] - mean_b : 0;
            aa[l] += x * x, bb[l] += y * y, ab[l] += x * y;
        }
    for (int l = 4; l; l /= 2)
        for (int i = 0; i < l; i++) aa[i] += aa[i + l], bb[i] += bb[i + l], ab[i] += ab[i + l];
    float power = sqrtf(aa[0] * bb[0]);
    return power > 1e-9f ? ab[0] / power : 0;
}

static float mean_square(const float *a, const float *b, int64_t num) {
    float sum = 0;
    for (int64_t i = 0; i < num; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum / (float)num;
}

static float range_of(const float *x, int64_t num) {
    float low = x[0], high = x[0];
    for (int64_t i = 1; i < num; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    return high - low;
}

static float median_of_floats(const float *x, int64_t num, int32_t *keys) {
    for (int64_t i = 0; i < num; i++) keys[i] = to_key(x[i]);
    Middle middle = about_the_middle(keys, num, extremes_of(keys, num));
    return median_from(keys, num, &middle);
}

enum { TOGETHER = 32 }; /* points whose medians are found together */
typedef int16_t Shorts __attribute__((vector_size(2 * TOGETHER)));
typedef int16_t UnalignedShorts __attribute__((vector_size(2 * TOGETHER), aligned(2), may_alias));

static Shorts chosen(Shorts mask, Shorts yes, Shorts no) {
    return (yes & mask) | (no & ~mask);
}

/* Medians of `num_points` columns from `first` on, of those rows of `values` [, width] that are chosen, times `unit`.
 *
 * They are found bit by bit: the lower of the two middle values is the greatest with less than half of the values below. */
static void medians_of(const int16_t *values, int64_t width, int64_t first, int64_t num_points, const int64_t *rows,
                       int64_t num, float unit, float *out) {
    for (int64_t begin = first; begin < first + num_points; begin += TOGETHER) {
        int64_t at = begin + TOGETHER <= width ? begin : width - TOGETHER;
        Shorts lower = {0}, upper = {0}, rank = {0}, up_to = {0}, most = {0};
        lower += INT16_MIN, upper += INT16_MAX, most += INT16_MAX, rank += (int16_t)((num - 1) / 2);
        for (int bit = 15; bit >= 0; bit--) {
            Shorts tried = lower + (int16_t)(bit == 15 ? INT16_MIN : 1 << bit), below = {0}; /* wraps around */
            for (int64_t i = 0; i < num; i++)
                below -= *(const UnalignedShorts *)(values + rows[i] * width + at) < tried;
            lower = chosen(below <= rank, tried, lower);
        }
        for (int64_t i = 0; i < num && num % 2 == 0; i++) {
            Shorts own = *(const UnalignedShorts *)(values + rows[i] * width + at), above = own > lower;
            up_to -= ~above, own = chosen(above, own, most), upper = chosen(own < upper, own, upper);
        }
        upper = num % 2 ? lower : chosen(up_to > rank + 1, lower, upper);
        for (int64_t point = begin; point < begin + TOGETHER && point < first + num_points; point++)
            out[point - first] = ((float)lower[point - at] * unit + (float)upper[point - at] * unit) / 2;
    }
}

/* The median of the known ones of a few values, which are put in order. */
static double median_of_few(double *ordered, const double *values, int64_t num) {
    int64_t count = 0;
    for (int64_t i = 0; i < num; i++) insert_value(ordered, &count, values[i]);
    return median_of(ordered, count);
}

/* Put the values in such an order that none before `place` is greater than that at `place`, and none after it less
 * (Hoare, Communications of the ACM 4:321, 1961). */
static void part_at(double *values, int64_t num, int64_t place) {
    for (int64_t first = 0, last = num - 1; first < last;) {
        double pivot = values[first + (last - first) / 2];
        int64_t low = first, high = last;
        while (low <= high) {
            while (values[low] < pivot) low++;
            while (values[high] > pivot) high--;
            if (low > high) break;
            double value = values[low];
            values[low++] = values[high], values[high--] = value;
        }
        if (place <= high) last = high;
        else if (place >= low) first = low;
        else return;
    }
}

/* What `share` of the values do not exceed, interpolated between two as NumPy does. */
static double quantile(double *values, int64_t num, double share) {
    double place = share * (double)(num - 1);
    int64_t low = (int64_t)place;
    part_at(values, num, low);
    double part = place - (double)low;
    double next = low + 1 < num ? values[low + 1] : values[low];
    for (int64_t i = low + 2; i < num; i++) next = values[i] < next ? values[i] : next;
    double step = next - values[low];
    return part >= 0.5 ? next - step * (1 - part) : values[low] + step * part;
}

/* A P wave without the line between its ends. */
static void p_wave(const struct tokens *t, const float *shape, float *p) {
    const float *from = shape + t->p.first;
    float rise = from[t->p.num - 1] - from[0];
    float step = 1.0f / (float)(t->p.num - 1);
    for (int64_t i = 0; i < t->p.num; i++) p[i] = from[i] - (from[0] + rise * ((float)i * step));
}

static float log_width(const struct tokens *t, const float *shape, int32_t *keys) {
    float middle = median_of_floats(shape, t->num_points, keys), most = 0;
    const float *from = shape + t->active.first;
    int64_t wide = 0;
    for (int64_t i = 0; i < t->active.num; i++) most = fabsf(from[i] - middle) > most ? fabsf(from[i] - middle) : most;
    for (int64_t i = 0; i < t->active.num; i++) wide += fabsf(from[i] - middle) > 0.35f * most;
    return logf((float)wide * (float)t->step_s + 0.01f);
}

static double interval_s(const struct tokens *t, const struct memory *m, int64_t beat, double rate_hz) {
    int64_t size = t->look_back + 1;
    return beat ? (double)(m->sample[beat % size] - m->sample[(beat - 1) % size]) / rate_hz : NAN;
}

/* Scratch of one beat, and of the medians of a lead. */
struct scratch {
    int64_t *rows, *slow_rows; /* [look_back] each */
    double *values;            /* [longest + 1] */
    int32_t *keys;             /* [look_back + num_points] */
    float *qrs, *p;            /* [look_back, points], [look_back + points] */
    int16_t *p_waves;          /* [look_back, p_width] */
    char *end;
};

/* Length of a row of P waves: `medians_of` reads whole vectors. */
static int64_t p_width(const struct tokens *t) {
    return t->p.num > TOGETHER ? t->p.num : TOGETHER;
}

static struct scratch scratch_at(const struct tokens *t, char *at) {
    struct scratch s = {.rows = (int64_t *)at};
    at += t->look_back * (int64_t)sizeof(int64_t);
    s.slow_rows = (int64_t *)at, at += t->look_back * (int64_t)sizeof(int64_t);
    s.values = (double *)at, at += (t->longest + 1) * (int64_t)sizeof(double);
    s.keys = (int32_t *)at, at += (t->look_back + t->num_points) * (int64_t)sizeof(int32_t);
    s.qrs = (float *)at, at += t->look_back * t->qrs.num * (int64_t)sizeof(float);
    s.p = (float *)at, at += (t->look_back + t->p.num) * (int64_t)sizeof(float);
    s.p_waves = (int16_t *)at, s.end = at + t->look_back * p_width(t) * (int64_t)sizeof(int16_t);
    return s;
}

int64_t HEARTLM(live_tokens_scratch)(const struct tokens *t) {
    return scratch_at(t, NULL).end - (char *)NULL;
}

/* Compute the medians of the last beats again, of which `last` is the last. */
static void renew(const struct tokens *t, const struct memory *m, int64_t last, double rate_hz, const struct scratch *s) {
    int64_t num = last + 1 < t->look_back ? last + 1 : t->look_back;
    int64_t points = t->num_points;
    int64_t width = p_width(t);
    float unit = (float)(t->clip / INT16_MAX);
    for (int64_t row = 0; row < num; row++) {
        const int16_t *shape = m->shape + row * points;
        const int16_t *from = shape + t->p.first;
        for (int64_t i = 0; i < t->qrs.num; i++) s->qrs[row * t->qrs.num + i] = (float)shape[t->qrs.first + i] * unit;
        float rise = (float)(from[t->p.num - 1] - from[0]) / (float)(t->p.num - 1); /* as in p_wave */
        for (int64_t i = 0; i < t->p.num; i++) {
            float own = (float)(from[i] - from[0]) - rise * (float)i;
            own = own < INT16_MIN ? INT16_MIN : own > INT16_MAX ? INT16_MAX : own;
            s->p_waves[row * width + i] = (int16_t)lrintf(own);
        }
    }
    for (int64_t i = 0; i < num; i++) s->rows[i] = i;
    medians_of(m->shape, points, 0, points, s->rows, num, unit, m->dominant);
    m->of->log_width = median_of_floats(m->log_widths, num, s->keys);

    int64_t known = 0, kept = last < t->longest ? last + 1 : t->longest + 1;
    for (int64_t i = 0; i < kept; i++)
        if (!isnan(m->log_rr[i])) s->values[known++] = m->log_rr[i];
    m->of->log_slow = known ? quantile(s->values, known, 0.9) : NAN;

    int64_t alike = num;
    for (int turn = 0; turn < 2; turn++) {
        medians_of(m->shape, points, t->qrs.first, t->qrs.num, s->rows, alike, unit, m->qrs);
        alike = 0;
        for (int64_t i = 0; i < num; i++)
            if (correlation(s->qrs + i * t->qrs.num, m->qrs, t->qrs.num) > (float)t->usual) s->rows[alike++] = i;
        if (alike >= t->fewest_usual) continue;
        for (alike = 0; alike < num; alike++) s->rows[alike] = alike;
    }
    medians_of(m->shape, points, t->t.first, t->t.num, s->rows, alike, unit, m->t);
    medians_of(s->p_waves, width, 0, t->p.num, s->rows, alike, unit, m->p);

    double interval[2]; /* that three of four are shorter than: of those alike, and of all */
    for (int all = 0; all < 2; all++) {
        int64_t count = all ? num : alike;
        for (int64_t i = 0; i < count; i++) {
            int64_t row = all ? i : s->rows[i];
            int64_t beat = last - (last - row) % t->look_back;
            double own = interval_s(t, m, beat, rate_hz);
            s->values[i] = isnan(own) ? 0 : own;
        }
        interval[all] = quantile(s->values, count, 0.75);
    }
    for (int all = 0; all < 2; all++) {
        int64_t slow = 0;
        for (int64_t i = 0; i < (all ? num : alike); i++) {
            int64_t row = all ? i : s->rows[i];
            int64_t beat = last - (last - row) % t->look_back;
            double own = interval_s(t, m, beat, rate_hz);
            if ((isnan(own) ? 0 : own) >= interval[all]) s->slow_rows[slow++] = row;
        }
        if (all) {
            medians_of(m->shape, points, t->qrs.first, t->qrs.num, s->slow_rows, slow, unit, m->slow_qrs);
        } else {
            float *found = s->p + t->p.num;
            medians_of(s->p_waves, width, 0, t->p.num, s->slow_rows, slow, unit, m->slow_p);
            for (int64_t i = 0; i < slow; i++) {
                for (int64_t point = 0; point < t->p.num; point++)
                    s->p[point] = (float)s->p_waves[s->slow_rows[i] * width + point] * unit;
                found[i] = correlation(s->p, m->slow_p, t->p.num);
            }
            m->of->consistency = median_of_floats(found, slow, s->keys);
        }
    }
}

/* Add `sign` times a value to a sum, or whether it exceeds `limit`, and one to the number of known values. */
static void count(double *sums, double value, double limit, double sign) {
    if (isnan(value)) return;
    sums[0] += sign * (isnan(limit) ? value : (double)(value > limit)), sums[1] += sign;
}

/* Comparisons of the intervals; those of the last beat are in the rings already. */
static void compare_intervals(const struct tokens *t, const struct memory *m, int64_t beat, double *rhythm) {
    int64_t size = t->longest + 1, steady = t->steady;
    double last = m->log_rr[beat % size], values[64], ordered[64], near = 0, share = 0;
    int64_t num = 0, num_near = 0;
    for (int64_t back = 0; back <= 2 * t->near && back <= beat; back++) {
        double own = m->log_rr[(beat - back) % size];
        if (!isnan(own)) near += exp(own), num_near++;
    }
    for (int64_t back = 0; back <= 2 * t->around && back < beat; back++) {
        double change = fabs(m->log_rr[(beat - back) % size] - m->log_rr[(beat - back - 1) % size]);
        if (isnan(change)) continue;
        values[num++] = change, share += change > t->irregular;
    }
    /* The rate changed `steady / 2` beats before the last that is known of, if the medians differ most there. */
    double greatest = -1, at_middle = 0;
    int64_t place = 0;
    for (int64_t i = 0; i < steady; i++) {
        int64_t before = beat - 2 * steady + 1 + i;
        double change = before < 0 ? NAN : m->medians[(before + steady) % (2 * steady)] - m->medians[before % (2 * steady)];
        change = isnan(change) ? 0 : change;
        if (fabs(change) > greatest) greatest = fabs(change), place = i;
        if (i == steady / 2) at_middle = change;
    }
    if (place == steady / 2 && fabs(at_middle) > t->sudden) m->of->last_change = at_middle;
    const double *sums = m->of->sums;
    rhythm[0] = last - log(sums[0] / sums[1]);
    rhythm[1] = last - m->of->log_slow;
    rhythm[2] = last - log(near / (double)num_near);
    rhythm[3] = median_of_few(ordered, values, num);
    rhythm[4] = num ? share / (double)num : NAN;
    rhythm[5] = sums[3] > 0 ? sums[2] / sums[3] : NAN;
    rhythm[6] = m->of->last_change;
}

/* Comparisons of the waveform with the medians. */
static void compare_waveform(const struct tokens *t, const struct memory *m, int64_t beat, const float *shape,
                             float width, float *out) {
    const float *qrs = shape + t->qrs.first;
    float *p = m->p_waves + beat % (2 * t->near) * t->p.num, own[256];
    float size = range_of(m->qrs, t->qrs.num) + 1e-6f;
    p_wave(t, shape, own);
    float difference = sqrtf(mean_square(own, m->slow_p, t->p.num)) / (range_of(m->slow_p, t->p.num) + 0.02f);
    out[0] = correlation(qrs, m->qrs, t->qrs.num);
    out[1] = correlation(qrs, m->slow_qrs, t->qrs.num);
    out[2] = sqrtf(mean_square(qrs, m->qrs, t->qrs.num)) / size;
    out[3] = width;
    out[4] = width - m->of->log_width;
    out[5] = logf(range_of(qrs, t->qrs.num) / size + 1e-3f);
    out[6] = correlation(shape + t->t.first, m->t, t->t.num);
    out[7] = correlation(own, m->slow_p, t->p.num);
    out[8] = logf(difference + 1e-3f);
    int64_t earlier = beat < 2 * t->near ? beat : 2 * t->near;
    double near = out[7];
    for (int64_t i = 0; i < earlier; i++) near += correlation(m->p_waves + i * t->p.num, m->slow_p, t->p.num);
    out[9] = (float)(near / (double)(earlier + 1));
    out[10] = m->of->consistency;
    out[11] = correlation(own, m->p, t->p.num);
    memcpy(p, own, (size_t)t->p.num * sizeof(float));
}

/* Take in the next beat of each of `num` leads.
 *
 * leads: addresses of their memory, at multiples of 8; samples, rates: of each beat; waves: [num, num_points] in mV.
 * shape, away: [num, num_points], the normalised waveform and its deviation. rr: [num, RR]; rhythm: [num, RHYTHM];
 * morphology: [num, MORPHOLOGY]. usual_mv: of each lead; faint: of each beat. */
void HEARTLM(live_tokens)(const struct tokens *t, const int64_t *leads, const int64_t *samples, const double *rates,
                          const float *waves, int64_t num, char *scratch, float *shape, float *away, double *rr,
                          double *rhythm, float *morphology, double *usual_mv, uint8_t *faint) {
    struct scratch s = scratch_at(t, scratch);
    int64_t points = t->num_points, steady = t->steady;
    for (int64_t row = 0; row < num; row++, waves += points, shape += points, away += points) {
        struct memory m = memory_at(t, (char *)(intptr_t)leads[row]);
        int64_t beat = m.of->num_beats++;
        int64_t size = t->longest + 1;
        int64_t place = beat % size;
        if (!beat) m.of->usual_mv = NAN;

        m.sample[beat % (t->look_back + 1)] = samples[row];
        double last = interval_s(t, &m, beat, rates[row]), own[64], ordered[64];
        if (beat > t->recent) remove_value(m.recent, &m.of->num_recent, interval_s(t, &m, beat - t->recent, rates[row]));
        insert_value(m.recent, &m.of->num_recent, last);
        int64_t span = beat < t->long_mean ? beat : t->long_mean;
        double mean = (double)(samples[row] - m.sample[(beat - span) % (t->look_back + 1)]) / rates[row] / (double)span;
        rr[row * RR] = last, rr[row * RR + 1] = last / median_of(m.recent, m.of->num_recent), rr[row * RR + 2] = last / mean;

        if (beat >= size) count(m.of->sums, exp(m.log_rr[place]), NAN, -1);
        m.log_rr[place] = isnan(last) ? NAN : log(last < t->shortest_s ? t->shortest_s : last > t->longest_s ? t->longest_s : last);
        count(m.of->sums, exp(m.log_rr[place]), NAN, 1);
        if (beat) count(m.of->sums + 2, fabs(m.log_rr[place] - m.log_rr[(beat - 1) % size]), t->irregular, 1);
        int64_t gone = beat - t->look_back - 1;
        if (gone > 0) count(m.of->sums + 2, fabs(m.log_rr[gone % size] - m.log_rr[(gone - 1) % size]), t->irregular, -1);
        for (int64_t i = 0; i < steady; i++) own[i] = beat < i ? NAN : m.log_rr[(beat - i) % size];
        m.medians[beat % (2 * steady)] = median_of_few(ordered, own, steady);

        double range = range_of(waves, points);
        if (beat >= t->num_ranges) remove_value(m.ordered, &m.of->num_ordered, m.ranges[beat % t->num_ranges]);
        m.ranges[beat % t->num_ranges] = range, insert_value(m.ordered, &m.of->num_ordered, range);
        if (m.of->num_ordered >= t->fewest_ranges) {
            int64_t low = (m.of->num_ordered - 1) / 4;
            int64_t part = (m.of->num_ordered - 1) % 4;
            m.of->usual_mv = m.ordered[low] + (double)part / 4 * (m.ordered[low + 1] - m.ordered[low]);
        }
        float scale = (float)median_of(m.ordered, m.of->num_ordered);
        float clip = (float)t->clip;
        float middle = median_of_floats(waves, points, s.keys);
        scale = scale > (float)t->least_scale ? scale : (float)t->least_scale;
        int16_t *kept = m.shape + beat % t->look_back * points;
        for (int64_t i = 0; i < points; i++) {
            float value = (waves[i] - middle) / scale;
            shape[i] = value < -clip ? -clip : value > clip ? clip : value;
            kept[i] = (int16_t)lrintf(shape[i] * (float)(INT16_MAX / t->clip));
        }
        float width = m.log_widths[beat % t->look_back] = log_width(t, shape, s.keys);
        if (beat % t->every == 0) renew(t, &m, beat, rates[row], &s);
        for (int64_t i = 0; i < points; i++) away[i] = shape[i] - m.dominant[i];

        compare_intervals(t, &m, beat, rhythm + row * RHYTHM);
        compare_waveform(t, &m, beat, shape, width, morphology + row * MORPHOLOGY);
        usual_mv[row] = m.of->usual_mv;
        faint[row] = morphology[row * MORPHOLOGY] < (float)t->alike && range < t->faint * m.of->usual_mv;
    }
}
