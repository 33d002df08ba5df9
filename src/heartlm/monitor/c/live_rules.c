/* The rules of many streams, a second of each: from judged beats and windows of its leads to the kinds of alarms that
 * begin or end. heartlm.monitor.rules says what each threshold means and why it is there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "kernels.h"

enum { UNKNOWN, NORMAL, VENTRICULAR }; /* kinds of beats that rules tell apart */
#define BIT(kind) (1 << (kind))
#define NEVER (-1000000000)

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t kept_beats(const struct ruled *l) {
    return least(l->num_beats, BEATS);
}

static int64_t kept_seconds(const struct ruled *l) {
    return least(l->num_seconds, SECONDS);
}

/* Place of the beat, or the second, that is the `back`th from the end. */
static int64_t beat_place(const struct ruled *l, int64_t back) {
    return (l->num_beats - back) % BEATS;
}

static int64_t second_place(const struct ruled *l, int64_t back) {
    return (l->num_seconds - back) % SECONDS;
}

static int64_t sample_of(const struct ruled *l, int64_t back) {
    return l->samples[beat_place(l, back)];
}

/* The highest or lowest value of the last seconds, or of those before them, NaN if one is unknown. */
static double extreme(const struct ruled *l, const double *values, int64_t from, int64_t to, int highest) {
    double found = highest ? -INFINITY : INFINITY;
    for (int64_t back = from < 1 ? 1 : from; back <= to && back <= kept_seconds(l); back++) {
        double own = values[second_place(l, back)];
        if (isnan(own)) return NAN;
        if (highest ? own > found : own < found) found = own;
    }
    return found;
}

static double lowest(const struct ruled *l, const double *values, int64_t num) {
    return extreme(l, values, 1, num, 0);
}

static int any_below(const struct ruled *l, int64_t num, double limit) {
    for (int64_t back = 1; back <= num && back <= kept_seconds(l); back++)
        if (l->heights[second_place(l, back)] < limit) return 1;
    return 0;
}

static int is_quiet(const struct rules *r, const struct ruled *l) {
    return extreme(l, l->heights, 1, 4, 1) < r->quiet;
}

/* Mean probability of a class of windows in the last ones, of which unknown ones count as 0. */
static double mean_of(const struct ruled *l, int64_t class, int64_t num) {
    double sum = 0;
    for (int64_t back = least(num, kept_seconds(l)); back; back--) {
        int64_t place = second_place(l, back);
        if (l->has_wave[place]) sum += l->waves[place][class];
    }
    return sum / (double)num;
}

/* Mean probability of some classes over the last `num` windows that are known, NaN if none is. */
static double mean_of_known(const struct rules *r, const struct ruled *l, int64_t num, int with_vf) {
    double sum = 0;
    int64_t known = 0;
    for (int64_t back = 1; back <= kept_seconds(l) && known < num; back++) {
        const double *wave = l->waves[second_place(l, back)];
        if (!l->has_wave[second_place(l, back)]) continue;
        sum += wave[r->noise_wave] + (with_vf ? wave[r->vf_wave] : 0);
        known++;
    }
    return known ? sum / (double)known : NAN;
}

/* Take in a second: that of lead `at` of all leads of `s`. */
static void add_second(const struct rules *r, struct ruled *l, int64_t now, const struct streams *s, int64_t at) {
    if (!l->num_seconds) l->last_vf = l->last_noise = l->last_vt = NEVER, l->af_sum = r->af_head_start;
    int64_t place = l->num_seconds++ % SECONDS;
    l->heights[place] = s->heights[at], l->valid[place] = s->valid[at], l->has_wave[place] = s->has_wave[at];
    l->regular[place] = s->regular[at];
    for (int i = 0; i < WAVES && s->has_wave[at]; i++) l->waves[place][i] = s->waves[at * WAVES + i];
    l->num_added = 0;
    for (int64_t i = s->first_beat[at]; i < s->first_beat[at + 1]; i++) {
        /* The QRS complex may reach into the seconds next to that of its peak, which is this one or an earlier one. */
        int64_t back = 1 + (int64_t)floor((double)(now - 1 - s->samples[i]) / r->rate_hz);
        int silent = back <= kept_seconds(l) + 1 && extreme(l, l->heights, back - 1, back + 1, 1) < r->silent;
        if (s->faint[i] || silent || s->samples[i] < l->begin) continue;
        place = l->num_beats++ % BEATS, l->num_added++;
        l->samples[place] = s->samples[i], l->af[place] = s->af[i];
        l->kinds[place] = s->symbols[i] == 'N' ? NORMAL : s->symbols[i] == 'V' ? VENTRICULAR : UNKNOWN;
        l->probability[place] = s->probability[i], l->ventricular[place] = s->ventricular[i];
    }
    if (s->valid[at] < r->complete) /* a beat may be missing here, so no interval reaches across */
        l->begin = now, l->num_beats = l->num_added = 0, l->af_sum = 0;
    if (!l->lost) {
        l->lost = l->num_seconds >= r->lost_s && extreme(l, l->valid, 1, r->lost_s, 1) < r->valid;
    } else if (lowest(l, l->valid, r->found_s) >= r->valid) {
        int64_t first = now - r->found_s * llrint(r->rate_hz);
        l->lost = l->num_beats = l->num_added = 0;
        memset(l->has_wave, 0, sizeof l->has_wave);
        l->begin = l->begin > first ? l->begin : first;
    }
}

/* Whether a beat may be wrong because of noise. */
static int in_noise(const struct rules *r, const struct ruled *l, int64_t sample) {
    return (double)sample < (double)l->last_noise + r->window_s * r->rate_hz;
}

/* Log odds of AF of the beat of a lead at a sample, 0 if unknown or in noise. */
static double af_near(const struct rules *r, const struct ruled *l, int64_t sample) {
    for (int64_t back = least(r->beats_near, kept_beats(l)); back; back--)
        if ((double)llabs(sample_of(l, back) - sample) < r->same_beat_s * r->rate_hz)
            return in_noise(r, l, sample_of(l, back)) ? 0 : l->af[beat_place(l, back)];
    return 0;
}

/* Add the log odds of AF of the new beats of a lead, each the mean over the leads that have it, to the sum. */
static void add_af(const struct rules *r, struct ruled *leads, int64_t num_leads, struct ruled *l) {
    for (int64_t back = l->num_added; back; back--) {
        int64_t sample = sample_of(l, back), num = 1;
        double sum = l->af[beat_place(l, back)];
        if (l->af_sum == 0) l->af_onset = sample, l->af_told = 0;
        if (sum == 0) continue; /* too few intervals before it */
        for (int64_t i = 0; i < num_leads; i++) {
            double other = leads + i == l ? 0 : af_near(r, leads + i, sample);
            if (other != 0) sum += other, num++;
        }
        double gain = sum / (double)num, most = in_noise(r, l, sample) ? 0 : r->af_clip;
        gain = gain < -r->af_clip ? -r->af_clip : gain > most ? most : gain;
        l->af_sum += gain - r->af_drift;
        l->af_sum = l->af_sum < 0 ? 0 : l->af_sum > r->most_af ? r->most_af : l->af_sum;
    }
}

static int has_sure_beats(const struct rules *r, const struct ruled *l, int64_t now) {
    int64_t num = 0;
    for (int64_t back = 1; back <= kept_beats(l); back++) {
        int64_t place = beat_place(l, back);
        int recent = (double)(now - l->samples[place]) < (double)r->sure_s * r->rate_hz;
        num += recent && l->kinds[place] == NORMAL && l->probability[place] > r->sure;
    }
    return num >= r->sure_beats;
}

/* Whether the signal is good enough to veto alarms of another lead. */
static int is_clear(const struct rules *r, const struct ruled *l, int64_t now) {
    if (!(lowest(l, l->valid, 4) >= r->valid)) return 0;
    if (!(mean_of_known(r, l, 4, 1) >= r->veto_noise)) return 1;
    return mean_of_known(r, l, 4, 0) < r->noise_probability && has_sure_beats(r, l, now);
}

/* Mean rate since a sample in beats per minute, 0 with fewer than two beats. */
static double rate_since(const struct rules *r, const struct ruled *l, int64_t start) {
    int64_t num = kept_beats(l);
    while (num && sample_of(l, num) < start) num--;
    return num > 1 ? 60 * r->rate_hz * (double)(num - 1) / (double)(sample_of(l, 1) - sample_of(l, num)) : 0;
}

/* Mean probability that beats since a sample are ventricular, 0 without any. */
static double ventricular_since(const struct rules *r, const struct ruled *l, int64_t start) {
    double since = (double)start - r->same_beat_s * r->rate_hz, sum = 0;
    int64_t num = 0;
    for (int64_t back = 1; back <= kept_beats(l); back++)
        if ((double)sample_of(l, back) >= since) sum += l->ventricular[beat_place(l, back)], num++;
    return num ? sum / (double)num : 0;
}

/* Mean of this number of last intervals in seconds, NaN with fewer. */
static double mean_rr_s(const struct rules *r, const struct ruled *l, int64_t num) {
    if (kept_beats(l) <= num) return NAN;
    return (double)(sample_of(l, 1) - sample_of(l, num + 1)) / ((double)num * r->rate_hz);
}

static void find(struct ruled *l, int kind, int64_t start, double confidence) {
    l->found |= BIT(kind), l->starts[kind] = start, l->confidences[kind] = confidence;
}

/* Probability of VT from the last `vt_beats` beats and windows: a logistic regression. */
static double vt_probability(const struct rules *r, struct ruled *l) {
    double *m = l->vt_measures, num = (double)r->vt_beats, mean = mean_rr_s(r, l, r->vt_beats - 1), square = 0;
    m[0] = m[1] = 0;
    for (int64_t back = r->vt_beats; back; back--) {
        double own = l->ventricular[beat_place(l, back)];
        m[0] += own / num, m[1] += (own > r->perhaps) / num;
        double away = back > 1 ? (double)(sample_of(l, back - 1) - sample_of(l, back)) / r->rate_hz - mean : 0;
        square += away * away;
    }
    m[2] = mean_of(l, r->vt_wave, 3), m[3] = mean_of(l, r->noise_wave, 3);
    m[4] = 1 / mean, m[5] = sqrt(square / (num - 1)) / mean;
    double score = r->vt_bias;
    for (int i = 0; i < 6; i++) score += r->vt_weights[i] * m[i];
    return 1 / (1 + exp(-score));
}

/* Find extreme bradycardia over this number of beats, below this fraction of the limit. */
static void find_bradycardia(const struct rules *r, struct ruled *l, int64_t now, int64_t beats, double fraction,
                             int usual_known) {
    int64_t num = kept_beats(l), needed = beats - 1;
    for (int unended = 0; unended < 2; unended++) { /* the last interval has ended, or has not */
        if (num <= needed - unended) continue;
        int64_t first = sample_of(l, needed + 1 - unended);
        double until = unended ? (double)now - r->beat_delay_s * r->rate_hz : (double)sample_of(l, 1);
        double rr_s = (until - (double)first) / ((double)needed * r->rate_hz);
        int unhidden = (double)first >= (double)l->last_noise - r->before_noise_s * r->rate_hz;
        int may_lack_beats = rr_s < r->empty_rr_s || any_below(l, SECONDS, r->low);
        if (rr_s > 60 / (fraction * r->bradycardia_bpm) && usual_known && unhidden && may_lack_beats)
            find(l, EXTREME_BRADYCARDIA, first, 1);
    }
}

/* Find the kinds of alarms that hold in a lead by its beats, which are heartbeats; `active` hold since seconds before. */
static void judge_beats(const struct rules *r, struct ruled *l, int64_t active, int64_t now, double since_beat_s,
                        int usual_known) {
    double rate_hz = r->rate_hz, last_rr_s = mean_rr_s(r, l, 1);
    int64_t num = kept_beats(l), needed = r->tachycardia_beats - 1;
    if (last_rr_s >= r->pause_s && since_beat_s < r->pause_s) find(l, PAUSE, sample_of(l, 2), 1);
    double vt_wave = mean_of(l, r->vt_wave, r->vt_windows);
    if (vt_wave >= r->vt_waveform_probability) {
        int64_t first = now - llrint(r->vt_s * rate_hz);
        int no_beats = !num || sample_of(l, 1) < first;
        if (no_beats || ventricular_since(r, l, first) >= r->vt_mean) find(l, VT, first, vt_wave);
    }
    if (since_beat_s >= r->asystole_s) return;
    double margin = active & BIT(EXTREME_TACHYCARDIA) ? 1 - r->rate_margin : 1;
    if (mean_rr_s(r, l, needed) < 60 / (margin * r->tachycardia_bpm)) find(l, EXTREME_TACHYCARDIA, sample_of(l, needed + 1), 1);
    margin = active & BIT(EXTREME_BRADYCARDIA) ? 1 + r->rate_margin : 1;
    if (active & BIT(AF)) find_bradycardia(r, l, now, r->bradycardia_beats, 1 - r->af_margin, usual_known);
    needed = active & BIT(AF) ? r->bradycardia_in_af_beats : r->bradycardia_beats;
    find_bradycardia(r, l, now, needed, margin, usual_known);
    int64_t num_v = 0;
    double sum = 0;
    while (num_v < num && l->kinds[beat_place(l, num_v + 1)] == VENTRICULAR)
        sum += l->probability[beat_place(l, ++num_v)];
    if (num_v >= r->run_beats) find(l, RUN, sample_of(l, num_v), sum / (double)num_v);
    if (!(mean_rr_s(r, l, r->vt_beats - 1) <= 60 / r->vt_bpm)) return;
    int64_t others = 0;
    for (int64_t back = 1; back <= r->vt_beats; back++) others += l->ventricular[beat_place(l, back)] < r->other;
    if (others > r->most_others || (!usual_known && mean_of(l, r->vt_wave, 3) < r->least_vt_at_start)) return;
    /* 1.5 s reach to the second before this one, and no further */
    double before = (double)(now - l->last_vt) < 1.5 * rate_hz ? l->vt : 0, vt = vt_probability(r, l);
    l->vt = vt, l->last_vt = now;
    double least = active & BIT(VT) ? r->vt_margin * r->vt_probability : r->vt_probability_at_once;
    if (vt >= least || (vt >= r->vt_probability && before >= r->vt_probability))
        find(l, VT, sample_of(l, num_v > r->vt_beats ? num_v : r->vt_beats), vt);
}

/* Find the kinds of alarms that hold in a lead; those of `active` held in the stream a second before. */
static void judge(const struct rules *r, struct ruled *l, int64_t active, int64_t now) {
    double rate_hz = r->rate_hz, noise = mean_of_known(r, l, 4, 0), height = l->heights[second_place(l, 1)];
    int noisy = noise >= r->noise_probability, usual_known = !isnan(height);
    if (mean_of_known(r, l, 2, 0) >= r->noise_probability && !is_quiet(r, l)) /* hides no beat else */
        l->last_noise = now;
    double vf = mean_of(l, r->vf_wave, 3), slow_vf = r->slow_share * r->vf_probability;
    if (!usual_known) vf = fmin(vf, mean_of(l, r->vf_wave, r->start_windows));
    /* If each of six windows is at most 1 and their mean is slow_vf, the last three have at least 2 slow_vf - 1: that
     * holds by itself, and keeps VF that has ended from lasting where `slow_windows` is longer. */
    int lasting = usual_known && mean_of(l, r->vf_wave, r->slow_windows) >= slow_vf && vf >= 2 * slow_vf - 1;
    int64_t first = now - llrint(r->window_s * rate_hz);
    if (usual_known && kept_beats(l) >= r->vf_beats && sample_of(l, r->vf_beats) >= first &&
        ventricular_since(r, l, first) >= r->vf_beats_mean)
        vf = fmax(vf, mean_of(l, r->vf_wave, 2));
    int64_t regular = 0;
    for (int64_t back = least(3, kept_seconds(l)); back; back--) regular += l->regular[second_place(l, back)];
    if (vf >= r->vf_probability || lasting) {
        if (regular >= r->regular_windows) find(l, VT, now - llrint(r->vf_onset_s * rate_hz), vf);
        else l->last_vf = now;
    }
    int still_vf = active & BIT(VF) && vf >= r->vf_margin * r->vf_probability;
    if (still_vf || (double)l->last_vf > (double)now - r->vf_end_s * rate_hz)
        find(l, VF, now - llrint(r->vf_onset_s * rate_hz), vf);

    int64_t last = kept_beats(l) ? sample_of(l, 1) : l->begin;
    double since_beat_s = (double)(now - last) / rate_hz;
    int stands_still = since_beat_s >= r->asystole_s + r->beat_delay_s;
    int stood_still = mean_rr_s(r, l, 1) >= r->asystole_s && since_beat_s < r->asystole_ended_s;
    if ((stands_still || stood_still) && !(l->found & BIT(VF)) && (!noisy || is_quiet(r, l))) {
        double still = mean_of(l, r->asystole_wave, 3), confidence = fmax(still, 1 - mean_of(l, r->noise_wave, 3));
        int may_stand_still = usual_known ? any_below(l, 4, r->low) : still >= r->least_asystole;
        if (lowest(l, l->valid, 4) >= r->valid && may_stand_still) {
            if (stands_still) {
                find(l, ASYSTOLE, now - llrint(since_beat_s * rate_hz), confidence);
            } else if (sample_of(l, 2) >= l->last_noise) {
                /* A beat has just ended it, and it is high: lower ones may have been missed before. */
                int high = 0;
                for (int64_t back = 1; back <= least(3, kept_seconds(l)); back++)
                    high |= l->heights[second_place(l, back)] >= r->quiet;
                if (high) find(l, ASYSTOLE, sample_of(l, 2), confidence);
            }
        }
    }
    l->has_beats = !noisy && (double)l->last_vf <= (double)now - r->after_vf_s * rate_hz;
    if (l->has_beats) judge_beats(r, l, active, now, since_beat_s, usual_known);
}

/* Whether the last beats of a lead are all surely not ventricular. */
static int is_surely_without_v(const struct rules *r, const struct ruled *l) {
    for (int64_t back = 1; back <= r->vt_veto_beats; back++)
        if (back > kept_beats(l) || l->ventricular[beat_place(l, back)] >= r->vt_veto_below) return 0;
    return 1;
}

/* Whether a lead that is able to veto alarms denies the kind that others show since `start`. */
static int is_vetoed(const struct rules *r, const struct ruled *leads, int64_t num_leads, int64_t clear, int kind,
                     int64_t start, int64_t now) {
    int64_t first = now - llrint(60 / r->tachycardia_bpm * (double)r->tachycardia_beats * r->rate_hz), num = 0;
    int clear_has_it = 0, vetoed = 0;
    double ventricular = 0;
    for (int64_t i = 0; i < num_leads; i++)
        clear_has_it |= (clear & BIT(i)) && leads[i].begin <= start && (leads[i].found & BIT(kind));
    for (int64_t i = 0; i < num_leads; i++) {
        const struct ruled *l = leads + i;
        if (!(clear & BIT(i)) || l->begin > start) continue;
        int has_it = (l->found & BIT(kind)) != 0;
        if (kind == VF || kind == ASYSTOLE) {
            vetoed |= !has_it;
            continue;
        }
        if (!l->has_beats || (l->found & BIT(ASYSTOLE))) continue; /* a lead in standstill next to beats has come off */
        if (kind == VT || kind == RUN) {
            double own = ventricular_since(r, l, start);
            if (own > 0 || !has_it) ventricular += own, num++; /* VT may be found where beats are not */
        }
        if (kind == VT)
            vetoed |= !has_it && (rate_since(r, l, start) < r->veto_rate * r->vt_bpm || is_surely_without_v(r, l));
        else if (kind == EXTREME_TACHYCARDIA)
            vetoed |= rate_since(r, l, first) < (clear_has_it ? r->veto_rate : r->clear_veto_rate) * r->tachycardia_bpm;
        else if (kind != RUN) vetoed |= !has_it;
    }
    return vetoed || (num && ventricular / (double)num < (kind == RUN ? r->v_probability : r->veto_vt));
}

/* The kinds that hold in a stream and that no lead vetoes, as bits, each with its start and confidence. */
static int64_t combined(const struct rules *r, struct alarms *a, struct ruled *leads, int64_t num_leads, int64_t now,
                        int64_t *starts, double *confidences) {
    int64_t found = 0, clear = 0, kinds = 0, in_use = -1;
    for (int64_t i = 0; i < num_leads; i++) {
        struct ruled *l = leads + i;
        l->found = l->has_beats = 0, l->vt_measures[0] = NAN; /* none in this second */
        if (l->lost) continue;
        judge(r, l, a->active, now);
        kinds |= l->found;
        if (in_use < 0 && l->has_beats) in_use = i;
    }
    for (int64_t i = 0; i < num_leads && kinds; i++)
        if (!leads[i].lost && is_clear(r, leads + i, now)) clear |= BIT(i);
    for (int kind = 0; kind < KINDS; kind++) { /* those of a lead alone; AF is found in the stream */
        if (!(kinds & BIT(kind))) continue;
        int64_t start = INT64_MAX;
        double confidence = INFINITY;
        for (int64_t i = 0; i < num_leads; i++) {
            if (!(leads[i].found & BIT(kind))) continue;
            start = least(start, leads[i].starts[kind]), confidence = fmin(confidence, leads[i].confidences[kind]);
        }
        if (!is_vetoed(r, leads, num_leads, clear, kind, start, now))
            found |= BIT(kind), starts[kind] = start, confidences[kind] = confidence;
    }
    if (in_use < 0) /* alarms of beats continue: their end cannot be seen */
        return found | (a->active & ~(BIT(VF) | BIT(ASYSTOLE)));
    a->lead_in_use = in_use;
    const struct ruled *l = leads + in_use;
    double af = 1 / (1 + exp(r->af_excess - l->af_sum)); /* that it started, from the last beats */
    if (!l->af_told && af >= r->af_probability) a->af = af, a->af_onset = l->af_onset;
    if (a->af >= (a->active & BIT(AF) ? r->af_probability / 2 : r->af_probability)) {
        found |= BIT(AF), starts[AF] = a->af_onset, confidences[AF] = a->af;
        /* once the model of long windows has ended it, the same beats do not raise it again */
        for (int64_t i = 0; i < num_leads; i++) leads[i].af_told = 1;
    }
    return found;
}

/* Begin, continue or end the alarms of a stream, which last until their condition has been absent for `off_delay_s`. A
 * condition that holds again after `repeat_s` is a repetition. None is raised while one that outranks it lasts. */
static void keep_alarms(const struct rules *r, struct alarms *a, int64_t now, int64_t *starts,
                        const double *confidences, int64_t *raised, int64_t *repeated, int64_t *ended) {
    *raised = *repeated = *ended = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        double absent_s = a->absent[kind] ? (double)(now - a->absent[kind]) / r->rate_hz : 0;
        if (a->active & BIT(kind)) {
            if (a->absent[kind] && absent_s >= r->repeat_s) *repeated |= BIT(kind);
            a->absent[kind] = 0;
        } else if (a->open & BIT(kind)) {
            if (!a->absent[kind]) a->absent[kind] = now;
            if (absent_s < r->off_delay_s[kind]) continue;
            *ended |= BIT(kind), starts[kind] = a->absent[kind], a->absent[kind] = 0;
        }
    }
    a->open &= ~*ended;
    int64_t lasting = a->open | a->active;
    for (int kind = 0; kind < KINDS; kind++) {
        if (!(a->active & ~a->open & BIT(kind)) || (lasting & r->outranked_by[kind])) continue;
        /* A condition without an alarm that only continues, as its end cannot be seen, has no start. */
        if (!r->outranked_by[kind] || confidences[kind] > 0) *raised |= BIT(kind);
    }
    a->open |= *raised;
}

/* Add a second of each stream. */
void HEARTLM(live_rules)(const struct streams *s) {
    int64_t lead = 0; /* of all leads of all streams */
    for (int64_t row = 0; row < s->num; row++) {
        const struct rules *r = (const struct rules *)(intptr_t)s->rules[row];
        struct alarms *a = (struct alarms *)(intptr_t)s->states[row];
        struct ruled *leads = (struct ruled *)(a + 1);
        int64_t all_lost = 1, now = s->now[row], num_leads = s->num_leads[row];
        int64_t *starts = s->starts + row * KINDS;
        double *confidences = s->confidences + row * KINDS;
        for (int64_t i = 0; i < num_leads; i++) {
            add_second(r, leads + i, now, s, lead++);
            all_lost &= leads[i].lost;
        }
        for (int64_t i = 0; i < num_leads; i++) add_af(r, leads, num_leads, leads + i);
        if (!isnan(s->long_af[row])) a->af = s->long_af[row], a->af_onset = s->long_af_onset[row];
        if (all_lost && !a->lost) {
            a->af = 0, a->active = BIT(SIGNAL_LOST) & ~r->off;
            starts[SIGNAL_LOST] = now - r->lost_s * llrint(r->rate_hz), confidences[SIGNAL_LOST] = 1;
        } else if (!all_lost) {
            a->active &= ~BIT(SIGNAL_LOST);
            a->active = combined(r, a, leads, num_leads, now, starts, confidences) & ~r->off;
        }
        a->lost = all_lost;
        keep_alarms(r, a, now, starts, confidences, s->raised + row, s->repeated + row, s->ended + row);
    }
}
