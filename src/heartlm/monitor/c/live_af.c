/* The measures of AF of one beat of each of many leads, and their log odds. heartlm.monitor.af_onset describes both. */
#include <math.h>

#include "kernel.h"
#include "vector.h"

#define INTERVALS 6
#define CLASSIFIED 3
#define CLASSES 2
#define OF_INTERVALS 19
#define SHORTEST_S 0.2
#define LONGEST_S 4.0

/* What is kept of a lead: its last beats and, the last one first, the probabilities of their classes; kernels.h declares
 * it for Python. `num` is 0 where no interval reaches back. */
struct history {
    int64_t num, sample[INTERVALS + 1];
    float classes[CLASSIFIED * CLASSES];
};

static void sort(double *values, int num) {
    for (int i = 1; i < num; i++)
        for (int j = i; j > 0 && values[j - 1] > values[j]; j--) {
            double larger = values[j];
            values[j] = values[j - 1], values[j - 1] = larger;
        }
}

/* `interval_measures` of the last intervals. */
static void measures_of_intervals(const struct history *h, double rate_hz, float *out) {
    double logs[INTERVALS], ordered[INTERVALS], away[INTERVALS - 1], changes[INTERVALS - 1];
    for (int i = 0; i < INTERVALS; i++) {
        double own = (double)(h->sample[i + 1] - h->sample[i]) / rate_hz;
        logs[i] = ordered[i] = log(own < SHORTEST_S ? SHORTEST_S : own > LONGEST_S ? LONGEST_S : own);
    }
    sort(ordered, INTERVALS);
    double last = logs[INTERVALS - 1], median = (ordered[INTERVALS / 2 - 1] + ordered[INTERVALS / 2]) / 2;
    *out++ = (float)last, *out++ = (float)median;
    for (int i = 0; i < INTERVALS - 1; i++) {
        away[i] = fabs(last - logs[INTERVALS - 2 - i]), changes[i] = logs[INTERVALS - 1 - i] - logs[INTERVALS - 2 - i];
        *out++ = (float)away[i];
    }
    sort(away, INTERVALS - 1);
    for (int i = 0; i < INTERVALS - 1; i++) *out++ = (float)away[i];
    for (int i = 0; i < INTERVALS - 1; i++) *out++ = (float)changes[i], changes[i] = fabs(changes[i]);
    sort(changes, INTERVALS - 1);
    *out++ = (float)((last + logs[INTERVALS - 2]) / 2 - median), *out++ = (float)changes[(INTERVALS - 1) / 2];
}

/* Add one beat to the history of each of `num` leads, unless it is faint, and measure it.
 *
 * histories: their addresses; samples, rates_hz: of each beat; answers: class probabilities [num, num_classes], of which
 * those of the indices `classes` count; codes: tokens [num, num_facets], of which those of `facets`. out: [num, measures];
 * known: whether there are enough beats, else the measures are undefined. */
void HEARTLM(live_af_measures)(const int64_t *histories, const int64_t *samples, const double *rates_hz,
                               const float *answers, int64_t num_classes, const int64_t *classes,
                               const uint16_t *codes, int64_t num_facets, const int64_t *facets, int64_t num_chosen,
                               const uint8_t *faint, int64_t num, float *out, uint8_t *known) {
    for (int64_t row = 0; row < num; row++, answers += num_classes, codes += num_facets) {
        struct history *h = (struct history *)(intptr_t)histories[row];
        float *own = out + row * (OF_INTERVALS + num_chosen + CLASSIFIED * CLASSES) + OF_INTERVALS;
        known[row] = 0;
        if (faint[row]) continue;
        memmove(h->sample, h->sample + 1, INTERVALS * sizeof(int64_t)), h->sample[INTERVALS] = samples[row];
        memmove(h->classes + CLASSES, h->classes, (CLASSIFIED - 1) * CLASSES * sizeof(float));
        for (int i = 0; i < CLASSES; i++) h->classes[i] = answers[classes[i]];
        if (++h->num <= INTERVALS) continue;
        measures_of_intervals(h, rates_hz[row], own - OF_INTERVALS);
        for (int64_t i = 0; i < num_chosen; i++) *own++ = codes[facets[i]];
        memcpy(own, h->classes, sizeof h->classes), known[row] = 1;
    }
}

/* Log odds of AF of `num` beats from their measures [num, num_measures], NaN where unknown, and the hidden states
 * [num, hidden]. edges: [num_measures, num_edges], ascending; table: [num_measures, num_edges + 2, hidden]; bias and
 * weight: [hidden]. */
void HEARTLM(live_af_odds)(const float *measures, int64_t num_measures, const float *states, const float *edges,
                           int64_t num_edges, const float *table, const float *bias, const float *weight,
                           int64_t hidden, double offset, int64_t num, float *scratch, double *out) {
    for (int64_t row = 0; row < num; row++, measures += num_measures, states += hidden) {
        for (int64_t i = 0; i < hidden; i++) scratch[i] = bias[i] + states[i];
        for (int64_t m = 0; m < num_measures; m++) {
            const float *edge = edges + m * num_edges, *own = table + m * (num_edges + 2) * hidden;
            int64_t level = !isnan(measures[m]);
            for (int64_t e = 0; e < num_edges; e++) level += measures[m] >= edge[e];
            for (int64_t i = 0; i < hidden; i++) scratch[i] += own[level * hidden + i];
        }
        double sum = offset;
        for (int64_t i = 0; i < hidden; i++) sum += scratch[i] > 0 ? (double)(scratch[i] * weight[i]) : 0;
        out[row] = sum;
    }
}
