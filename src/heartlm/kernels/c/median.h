/* The median of floats, found by counting: floats become integers of the same order, and the processor compares many of
 * them at once. */
#ifndef HEARTLM_MEDIAN_H
#define HEARTLM_MEDIAN_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* Floats as integers of the same order. */
static inline int32_t to_key(float value) {
    union { float value; int32_t bits; } as = {value};
    return as.bits ^ ((as.bits >> 31) & INT32_MAX);
}

static inline float from_key(int32_t key) {
    union { int32_t bits; float value; } as = {key ^ ((key >> 31) & INT32_MAX)};
    return as.value;
}

static inline int64_t count_up_to(const int32_t *keys, int64_t num_keys, int32_t limit) {
    int32_t count = 0;
    for (int64_t i = 0; i < num_keys; i++) count += keys[i] <= limit;
    return count;
}

/* The least key above `limit`; `limit` or less where there is none. Without a sign, what is not above is farther away
 * than all that is. */
static inline int32_t next_above(const int32_t *keys, int64_t num_keys, int32_t limit) {
    uint32_t nearest = UINT32_MAX, origin = (uint32_t)limit + 1;
    for (int64_t i = 0; i < num_keys; i++) {
        uint32_t distance = (uint32_t)keys[i] - origin;
        nearest = distance < nearest ? distance : nearest;
    }
    return (int32_t)(origin + nearest);
}

/* The greatest key below `limit`; `limit` or more where there is none. */
static inline int32_t next_below(const int32_t *keys, int64_t num_keys, int32_t limit) {
    uint32_t nearest = UINT32_MAX, origin = (uint32_t)limit - 1;
    for (int64_t i = 0; i < num_keys; i++) {
        uint32_t distance = origin - (uint32_t)keys[i];
        nearest = distance < nearest ? distance : nearest;
    }
    return (int32_t)(origin - nearest);
}

/* Where a median is being looked for. */
typedef struct {
    int32_t key;   /* the lower of the two middle keys, or a key near it */
    int64_t up_to; /* how many keys are not above it */
    float stride;  /* how far apart neighbouring keys near it are, 0 where unknown */
} Middle;

typedef struct {
    int32_t low, high;
} Extremes;

static inline Extremes extremes_of(const int32_t *keys, int64_t num_keys) {
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (int64_t i = 0; i < num_keys; i++) {
        low = keys[i] < low ? keys[i] : low;
        high = keys[i] > high ? keys[i] : high;
    }
    return (Extremes){low, high};
}

/* About the middle of the keys, halving what lies between their extremes a few times. */
static inline Middle about_the_middle(const int32_t *keys, int64_t num_keys, Extremes extremes) {
    int64_t low = extremes.low;
    int64_t high = extremes.high;
    for (int round = 0; round < 24 && high > low; round++) {
        int64_t middle = low + ((high - low) >> 1);
        if (count_up_to(keys, num_keys, (int32_t)middle) > (num_keys - 1) / 2)
            high = middle;
        else
            low = middle + 1;
    }
    return (Middle){(int32_t)high, count_up_to(keys, num_keys, (int32_t)high), 0};
}

/* Go some `steps` keys up, or down where negative; fewer where there are no more. Equal keys count as one. */
static inline int32_t walk(const int32_t *keys, int64_t num_keys, int32_t key, int64_t steps) {
    int32_t next;
    for (; steps > 0 && (next = next_above(keys, num_keys, key)) > key; steps--) key = next;
    for (; steps < 0 && (next = next_below(keys, num_keys, key)) < key; steps++) key = next;
    return key;
}

/* What lies around a key. */
typedef struct {
    int64_t below, up_to; /* how many keys are less, and not more */
    int32_t next;         /* the least of those above */
} Around;

static inline Around around(const int32_t *keys, int64_t num_keys, int32_t key) {
    int32_t below = 0, up_to = 0;
    uint32_t nearest = UINT32_MAX, origin = (uint32_t)key + 1;
    for (int64_t i = 0; i < num_keys; i++) {
        uint32_t distance = (uint32_t)keys[i] - origin;
        nearest = distance < nearest ? distance : nearest;
        up_to += keys[i] <= key;
        below += keys[i] < key;
    }
    return (Around){below, up_to, (int32_t)(origin + nearest)};
}

/* Jump to where `missing` more keys should not be above, if that brings it nearer. */
static inline void jump(const int32_t *keys, int64_t num_keys, Middle *middle, int64_t missing) {
    double target = middle->key + (double)missing * middle->stride;
    if (!(fabs(target) < INT32_MAX)) return;
    int64_t up_to = count_up_to(keys, num_keys, (int32_t)target);
    int64_t off = middle->up_to + missing - up_to;
    if (llabs(off) >= llabs(missing)) return;
    middle->key = (int32_t)target;
    middle->up_to = up_to;
}

/* Median of the keys, looked for from `middle`, which is moved there. */
static inline float median_from(const int32_t *keys, int64_t num_keys, Middle *middle) {
    int64_t wanted = (num_keys + 1) / 2;
    int64_t missing = wanted - middle->up_to;
    int32_t before = middle->key;
    if (missing > 2 || missing < -2) jump(keys, num_keys, middle, missing);
    int32_t key = walk(keys, num_keys, middle->key, wanted - middle->up_to);
    Around found = around(keys, num_keys, key);
    for (; found.up_to < wanted || found.below >= wanted; found = around(keys, num_keys, key))
        key = found.up_to < wanted ? found.next : next_below(keys, num_keys, key);
    if (missing > 2 || missing < -2) middle->stride = ((float)key - (float)before) / (float)missing;
    middle->key = key;
    middle->up_to = found.up_to;
    if (num_keys % 2 || found.up_to > wanted) return from_key(key);
    return (from_key(key) + from_key(found.next)) / 2;
}

#endif
