/* What the heartbeat detector remembers from one chunk of a signal to the next.
 *
 * Places are counted in decimated samples from the start of the signal, positions in samples. Everything here is a pure
 * function of the samples before, so that it does not matter how a signal is cut into chunks. */
#ifndef HEARTLM_DETECT_H
#define HEARTLM_DETECT_H

#include <stdint.h>

#define MOST_SHAPE 40 /* places that tell the shape of a beat, at most */

/* The settings in samples; kernels.h declares it for Python. */
struct plan {
    int64_t factor;      /* samples that become one decimated sample */
    int64_t even_taps;   /* half lengths of the filters: a filter has taps 0 to this */
    int64_t odd_taps;
    int64_t smooth_taps;
    int64_t fine_taps;   /* of the even filter at the full rate */
    int64_t reach;       /* the peak is at most so far from the candidate */
    int64_t refractory;  /* a beat is the highest candidate within this number of places on either side, */
    int64_t closest;     /* but in a fast rhythm it only has to be the highest within this number, as any candidate */
    int64_t window;      /* the level is taken from windows of this length */
    int64_t looks_ahead; /* 1: one of the windows comes after the candidate, 0: both come before */
    int64_t apart;       /* those before are so far apart */
    int64_t warm_up;     /* places that come before the first decision */
    int64_t shape;       /* the shape of a beat is taken from this number of places on either side */
    int64_t new_places;  /* decimated samples taken in at once */
    int64_t num_candidates; /* remembered, a power of two: all in both windows, and in what is taken in at once */
    int64_t num_shapes;  /* remembered, a power of two: of all candidates that may still become beats */
    int64_t fast;        /* longest interval between the beats of a fast rhythm, */
    int64_t fast_beats;  /* and least number of such intervals in a row */
    double threshold;    /* of height over level */
    double search_gap;   /* over the mean RR interval, from which on a lower candidate will do */
    double search_threshold;
    double floor;        /* the level is at least so much of the mean height of the beats, */
    double decay;        /* which sinks to a half in this number of places without a beat */
    double height_weight;
    double rr_weight;
    double rr_start;     /* the mean RR interval before there is one, in places */
    double rr_low, rr_high; /* an interval counts as no less and no more than this, */
    double rr_pause;        /* and not at all from this on */
    double doubt;           /* a beat's side is in doubt where it is less than this */
    double same_shape;      /* correlation with the usual shape from which on a beat is marked on the usual side */
    double shape_weight;
    double fast_height, fast_shape; /* of a fast rhythm: least ratio of heights, and correlation, of adjacent beats */
};

struct candidate {
    int64_t place;
    int64_t positions[2]; /* where the even filter's output is farthest above and below zero */
    double side;          /* by how much it is farther above than below, from 1 to -1; one position where that is clear */
    double height;
    double level;
    int32_t run;          /* candidates before it that follow each other as the beats of a fast rhythm do */
    int16_t fast;         /* it belongs to a fast rhythm */
    int16_t low;          /* the power is higher within the refractory time: a beat in a fast rhythm only */
};

struct detector {
    int64_t num_samples; /* taken in, padding included */
    int64_t num_real;    /* without the padding, once the signal has ended; else -1 */
    int64_t base;        /* place of the first element of the arrays */
    int64_t num_decimated, num_filtered, num_smooth, num_tested;
    int64_t num_found, num_decided; /* candidates so far; number i is in candidates[i & mask] */
    int64_t mask, shape_mask, shape_size; /* places of a shape */
    int64_t first_open;             /* decided ones from here on were rejected, but may come back */
    int64_t has_beat, last_beat;
    double rr, mean_height;
    double usual_side, usual_shape[MOST_SHAPE]; /* means over the beats of one shape */
    float origin; /* the first sample: every other is taken relative to it */
    struct candidate candidates[]; /* then their shapes, apart, since the search for the highest runs over candidates */
};

/* The arrays behind the shapes, each `capacity` places long, the samples times the factor. */
struct arrays {
    int64_t history, capacity;
    float *samples, *decimated, *even, *power, *smooth;
};

#endif
