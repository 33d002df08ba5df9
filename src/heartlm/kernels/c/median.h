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
    int64_t low = extremes.low, high = extremes.high;
    for (int round = 0; round < 24 && high > low; round++) {
        int64_t middle = low + ((high - low) >> 1);
        if (count_up_to(keys, num_keys, (int32_t)middle) > (num_keys - 1) / 2)
            high = middle;
        else
            low = middle + 1;
    }
    return (Middle){(int32_t)high, count_up_to(keys, num_keys, (int32_t)high), 0};
}

/* Go some `steps` keys up, or down where negative; fewer where keys are equal. */
static inline void walk(const int32_t *keys, int64_t num_keys, Middle *middle, int64_t steps) {
    int32_t next;
    for (; steps > 0 && (next = next_above(keys, num_keys, middle->key)) > middle->key; steps--) middle->key = next;
    for (; steps < 0 && (next = next_below(keys, num_keys, middle->key)) < middle->key; steps++) middle->key = next;
    middle->up_to = count_up_to(keys, num_keys, middle->key);
}

/* Jump to where `missing` more keys should not be above, if that brings it nearer. */
static inline void jump(const int32_t *keys, int64_t num_keys, Middle *middle, int64_t missing) {
    double target = middle->key + (double)missing * middle->stride;
    if (!(fabs(target) < INT32_MAX)) return;
    int64_t up_to = count_up_to(keys, num_keys, (int32_t)target), off = middle->up_to + missing - up_to;
    if (llabs(off) >= llabs(missing)) return;
    middle->key = (int32_t)target;
    middle->up_to = up_to;
}

/* Median of the keys, looked for from `middle`, which is moved there. */
static inline float median_from(const int32_t *keys, int64_t num_keys, Middle *middle) {
    int64_t wanted = (num_keys + 1) / 2, missing = wanted - middle->up_to;
    int32_t before = middle->key;
    if (missing > 2 || missing < -2) jump(keys, num_keys, middle, missing);
    if (middle->up_to != wanted) walk(keys, num_keys, middle, wanted - middle->up_to);
    while (middle->up_to < wanted) walk(keys, num_keys, middle, 1);
    while (count_up_to(keys, num_keys, middle->key - 1) >= wanted) walk(keys, num_keys, middle, -1);
    if (missing > 2 || missing < -2) middle->stride = ((float)middle->key - (float)before) / (float)missing;
    float lower = from_key(middle->key);
    if (num_keys % 2 || middle->up_to > wanted) return lower;
    return (lower + from_key(next_above(keys, num_keys, middle->key))) / 2;
}

#endif
