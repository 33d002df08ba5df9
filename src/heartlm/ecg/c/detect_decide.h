/* Which candidates are heartbeats: those high enough over the level around them, and, after a gap, the best of the
 * rest. */
#ifndef HEARTLM_DETECT_DECIDE_H
#define HEARTLM_DETECT_DECIDE_H

#include <math.h>

#include "detect.h"

static struct candidate *candidate(struct detector *d, int64_t number) {
    return &d->candidates[number & d->mask];
}

static float *shape_of(struct detector *d, int64_t number) {
    return (float *)(d->candidates + d->mask + 1) + (number & d->shape_mask) * d->shape_size;
}

/* A T wave or the end of a wide QRS complex, and no beat. */
static int is_hidden(const struct candidate *c) {
    return c->low && !c->fast;
}

/* Sums of the products of two shapes, and of their squares. */
struct products {
    double both, own, other;
};

static struct products products_of(const float *own, const float *other, int64_t length) {
    struct products sums = {0, 0, 0};
    for (int64_t i = 0; i < length; i++) {
        sums.both += (double)own[i] * other[i];
        sums.own += (double)own[i] * own[i];
        sums.other += (double)other[i] * other[i];
    }
    return sums;
}

/* Count the candidates up to a new one that follow each other as the beats of a fast rhythm: within `fast` places, about
 * as high, and alike. From `fast_beats` on they are a fast rhythm; the causal mode has decided on the first ones before. */
static void join_fast(const struct plan *p, struct detector *d, int64_t number) {
    struct candidate *c = candidate(d, number), *before = candidate(d, number - 1);
    c->fast = c->run = 0;
    if (number == 0 || c->place - before->place > p->fast) return;
    double low = c->height < before->height ? c->height : before->height;
    double high = c->height < before->height ? before->height : c->height;
    struct products sums = products_of(shape_of(d, number), shape_of(d, number - 1), d->shape_size);
    if (low < p->fast_height * high || sums.both < p->fast_shape * sqrt(sums.own * sums.other)) return;
    c->run = before->run + 1;
    if (c->run < p->fast_beats) return;
    c->fast = 1;
    if (p->looks_ahead && c->run == p->fast_beats)
        for (int64_t i = 1; i <= p->fast_beats; i++) candidate(d, number - i)->fast = 1;
}

/* Height of the highest candidate at places `first` to `last`. */
static double highest(struct detector *d, int64_t first, int64_t last) {
    double height = 0;
    int64_t oldest = d->num_found > d->mask ? d->num_found - d->mask - 1 : 0;
    for (int64_t i = d->num_found - 1; i >= oldest && candidate(d, i)->place >= first; i--)
        if (candidate(d, i)->place <= last && candidate(d, i)->height > height && !candidate(d, i)->low)
            height = candidate(d, i)->height;
    return height;
}

/* What a beat would be as high as around `place`: the lower of what two windows show, because a burst of noise fills one
 * of them only. At the ends of the signal a window is no shorter than the warm-up. */
static double level_around(const struct plan *p, struct detector *d, int64_t place) {
    int64_t first = place - p->window, last = place;
    double near = highest(d, first, first < 0 && last < p->warm_up ? p->warm_up : last), far;
    if (p->looks_ahead) {
        int64_t end = d->num_real < 0 ? INT64_MAX : d->num_real / p->factor - p->warm_up;
        far = highest(d, place > end ? end : place, place + p->window);
    } else {
        last = first - p->apart, first = last - p->window;
        far = highest(d, first, first < 0 && last < p->warm_up ? p->warm_up : last);
    }
    return near < far ? near : far;
}

static double mean_height_at(const struct plan *p, const struct detector *d, int64_t place) {
    return d->has_beat ? d->mean_height / (1 + (double)(place - d->last_beat) / p->decay) : 0;
}

/* Where a beat has its mark: on the side where it is farther from zero. Where that is in doubt and it has the usual shape,
 * on the side where most such beats are: two peaks about as high would else take turns, and RR intervals jump. */
static int64_t marked(const struct plan *p, struct detector *d, int64_t number) {
    const struct candidate *c = candidate(d, number);
    const float *shape = shape_of(d, number);
    int64_t length = 2 * p->shape + 1;
    double product = 0, own = 0, usual = 0, side = c->side;
    if (fabs(side) < p->doubt) {
        for (int64_t i = 0; i < length; i++) {
            product += shape[i] * d->usual_shape[i];
            own += (double)shape[i] * shape[i];
            usual += d->usual_shape[i] * d->usual_shape[i];
        }
        if (usual == 0 || product > p->same_shape * sqrt(own * usual)) {
            double weight = usual == 0 ? 1 : p->shape_weight;
            for (int64_t i = 0; i < length; i++) d->usual_shape[i] += weight * (shape[i] - d->usual_shape[i]);
            side = d->usual_side += weight * (side - d->usual_side);
        }
    }
    return c->positions[!(side >= 0)];
}

/* Candidate number `number` becomes a beat. */
static void accept(const struct plan *p, struct detector *d, int64_t number, int64_t *beats, int64_t *num_beats) {
    const struct candidate *c = candidate(d, number);
    double gap = (double)(c->place - d->last_beat);
    int64_t position = marked(p, d, number);
    if (d->has_beat && gap < p->rr_pause) {
        gap = gap < p->rr_low ? p->rr_low : gap > p->rr_high ? p->rr_high : gap;
        d->rr += p->rr_weight * (gap - d->rr);
    }
    d->has_beat = 1, d->last_beat = c->place, d->first_open = number + 1;
    if (position >= 0 && (d->num_real < 0 || position < d->num_real)) beats[(*num_beats)++] = position;
}

/* Where no beat came for long before `place`, take the rejected candidate that stands highest over its level, if it is
 * high enough. */
static void search_back(const struct plan *p, struct detector *d, int64_t place, int64_t *beats, int64_t *num_beats) {
    while (d->first_open < d->num_decided && d->has_beat && (double)(place - d->last_beat) > p->search_gap * d->rr) {
        int64_t best = -1;
        double highest_share = p->search_threshold;
        for (int64_t i = d->first_open; i < d->num_decided; i++) {
            if (is_hidden(candidate(d, i))) continue;
            double share = candidate(d, i)->height / candidate(d, i)->level;
            if (share > highest_share) highest_share = share, best = i;
        }
        if (best >= 0)
            accept(p, d, best, beats, num_beats);
        else
            d->first_open = d->num_decided;
    }
}

/* Decide the next candidate. */
static void decide(const struct plan *p, struct detector *d, int64_t *beats, int64_t *num_beats) {
    struct candidate *c = candidate(d, d->num_decided);
    search_back(p, d, c->place, beats, num_beats);
    double mean_height = mean_height_at(p, d, c->place);
    c->level = level_around(p, d, c->place);
    if (c->level < p->floor * mean_height) c->level = p->floor * mean_height;
    d->num_decided++;
    if (c->height > p->threshold * c->level) {
        d->mean_height = d->has_beat ? mean_height + p->height_weight * (c->height - mean_height) : c->height;
        accept(p, d, d->num_decided - 1, beats, num_beats);
    } else if (!d->has_beat) {
        d->first_open = d->num_decided;
    }
}

/* Decide every candidate that waits for nothing more. */
static void decide_ready(const struct plan *p, struct detector *d, int64_t *beats, int64_t *num_beats) {
    int64_t ended = d->num_real >= 0, known = d->num_smooth - p->refractory; /* all candidates before this place */
    if (!ended && known <= p->warm_up) return;
    while (d->num_decided < d->num_found) {
        int64_t last_needed = candidate(d, d->num_decided)->place + (p->looks_ahead ? p->window : 0);
        if (!ended && last_needed >= known) break;
        if (is_hidden(candidate(d, d->num_decided)))
            d->num_decided++;
        else
            decide(p, d, beats, num_beats);
    }
    int64_t open = d->num_decided < d->num_found ? candidate(d, d->num_decided)->place : known;
    search_back(p, d, open, beats, num_beats);
}

#endif
