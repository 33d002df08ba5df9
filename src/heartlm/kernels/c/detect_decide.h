/* Which candidates are heartbeats: those high enough over the level around them, and, after a gap, the best of the
 * rest. */
#ifndef HEARTLM_DETECT_DECIDE_H
#define HEARTLM_DETECT_DECIDE_H

#include "detect.h"

/* The highest of blocks `first` to `last`. */
static double highest(const struct detector *d, int64_t first, int64_t last) {
    float height = 0;
    for (int64_t b = first > 0 ? first : 0; b <= last; b++)
        if (d->block_height[b % NUM_BLOCKS] > height) height = d->block_height[b % NUM_BLOCKS];
    return height;
}

/* What a beat would be as high as, around block b: the lower of what two windows show, one after the other. A burst of
 * noise fills one of them only; looking back, a block between them keeps one on their border out of one. */
static double level_around(const struct plan *p, const struct detector *d, int64_t b, int64_t num_blocks) {
    double near, far;
    if (p->ahead) {
        int64_t end = b + p->window < num_blocks - 1 ? b + p->window : num_blocks - 1;
        near = highest(d, b - p->window, b), far = highest(d, b, end);
        if (b < p->window && b + p->window >= num_blocks) return near > far ? near : far;
        if (b < p->window) return far;
        if (b + p->window >= num_blocks) return near;
    } else {
        int64_t warm = (p->warm_up < num_blocks ? p->warm_up : num_blocks) - 1;
        near = highest(d, b - p->window, b < p->window && b < warm ? warm : b);
        int64_t end = b - p->window - 2, first = end - p->window + 1;
        far = highest(d, first, first < 0 && end < warm ? warm : end);
    }
    return near < far ? near : far;
}

static double mean_height_at(const struct plan *p, const struct detector *d, int64_t place) {
    return d->has_beat ? d->mean_height / (1 + (double)(place - d->last_beat) / p->decay) : 0;
}

/* The first `count` candidates need not be remembered. */
static void forget(struct detector *d, int64_t count) {
    d->num_candidates -= count, d->num_decided -= count;
    for (int64_t i = 0; i < d->num_candidates; i++) d->candidates[i] = d->candidates[i + count];
}

/* The candidate becomes a beat; it and those before it are forgotten. */
static void accept(const struct plan *p, struct detector *d, int64_t which, int64_t *beats, int64_t *num_beats) {
    const struct candidate *c = &d->candidates[which];
    double gap = (double)(c->place - d->last_beat);
    if (d->has_beat && gap < p->rr_pause) {
        gap = gap < p->rr_low ? p->rr_low : gap > p->rr_high ? p->rr_high : gap;
        d->rr += p->rr_weight * (gap - d->rr);
    }
    d->has_beat = 1, d->last_beat = c->place;
    if (c->position >= 0 && (d->num_real < 0 || c->position < d->num_real)) beats[(*num_beats)++] = c->position;
    forget(d, which + 1);
}

/* Where no beat came for long before `place`, take the rejected candidate that stands highest over its level, if it is
 * high enough. */
static void search_back(const struct plan *p, struct detector *d, int64_t place, int64_t *beats, int64_t *num_beats) {
    while (d->num_decided && d->has_beat && (double)(place - d->last_beat) > p->search_gap * d->rr) {
        int64_t best = -1;
        double highest_share = p->search_threshold;
        for (int64_t i = 0; i < d->num_decided; i++) {
            double share = d->candidates[i].height / d->candidates[i].level;
            if (share > highest_share) highest_share = share, best = i;
        }
        if (best >= 0)
            accept(p, d, best, beats, num_beats);
        else
            forget(d, d->num_decided);
    }
}

/* Decide the next candidate. */
static void decide(const struct plan *p, struct detector *d, int64_t num_blocks, int64_t *beats, int64_t *num_beats) {
    search_back(p, d, d->candidates[d->num_decided].place, beats, num_beats);
    struct candidate *c = &d->candidates[d->num_decided++];
    double mean_height = mean_height_at(p, d, c->place);
    c->level = level_around(p, d, c->place / p->block, num_blocks);
    if (c->level < p->floor * mean_height) c->level = p->floor * mean_height;
    if (c->height > p->threshold * c->level) {
        d->mean_height = d->has_beat ? mean_height + p->height_weight * (c->height - mean_height) : c->height;
        accept(p, d, d->num_decided - 1, beats, num_beats);
    } else if (!d->has_beat) {
        forget(d, d->num_decided);
    }
}

/* Decide every candidate that waits for nothing more; the places before `num_tested` have no further candidates. */
static void decide_ready(const struct plan *p, struct detector *d, int64_t *beats, int64_t *num_beats) {
    int64_t ended = d->num_real >= 0;
    int64_t num_blocks = ended ? d->num_real / p->factor / p->block + 1 : d->num_smooth / p->block;
    if (!ended && num_blocks < p->warm_up) return;
    while (d->num_decided < d->num_candidates) {
        if (!ended && d->candidates[d->num_decided].place / p->block + p->ahead >= num_blocks) break;
        decide(p, d, num_blocks, beats, num_beats);
    }
    int64_t open = d->num_decided < d->num_candidates ? d->candidates[d->num_decided].place : d->num_tested;
    search_back(p, d, open, beats, num_beats);
}

#endif
