/* RR intervals, alone and compared with those around, as levels. */
#include "kernel.h"
#include "sorted_window.h"

/* What an interval is compared with; the order is that of heartlm.tokenizers.rr. */
enum { RR, OVER_PREVIOUS, OVER_RECENT, NEXT_OVER_RECENT, OVER_LONG, NEXT_OVER_LONG };

static double compared(int64_t kind, const double *rr, int64_t beat, int64_t num_beats, double recent, double mean) {
    double next = beat + 1 < num_beats ? rr[beat + 1] : NAN;
    switch (kind) {
    case RR: return rr[beat];
    case OVER_PREVIOUS: return beat ? rr[beat] / rr[beat - 1] : NAN;
    case OVER_RECENT: return rr[beat] / recent;
    case NEXT_OVER_RECENT: return next / recent;
    case OVER_LONG: return rr[beat] / mean;
    default: return next / mean;
    }
}

/* 1 and the number of `edges` up to `value`; 0 for what is unknown. */
static uint16_t level_of(double value, const double *edges, int64_t num_edges) {
    if (isnan(value)) return 0;
    int64_t low = 0;
    for (int64_t count = num_edges; count > 0;) {
        int64_t half = count / 2;
        int up_to = edges[low + half] <= value;
        low = up_to ? low + half + 1 : low;
        count = up_to ? count - half - 1 : half;
    }
    return (uint16_t)(low + 1);
}

/* Codes of the intervals between `num_beats` beats at `sample`, to `codes` [num_beats, num_facets]. Facet f is of
 * kind `kinds[f]` and has the edges `edges[first_edge[f]]` to `edges[first_edge[f + 1]]`. The recent interval is the
 * median of the last `recent`; the long mean reaches from `before` intervals back to `after` ahead. Scratch: `rr` and
 * `total` for `num_beats` + 1 values, `ordered` for `recent`. */
void HEARTLM(rr_codes)(const int64_t *sample, int64_t num_beats, double rate_hz, int64_t recent, int64_t before,
                       int64_t after, const int64_t *kinds, const double *edges, const int64_t *first_edge,
                       int64_t num_facets, double *rr, double *total, double *ordered, uint16_t *codes) {
    for (int64_t beat = 0; beat < num_beats; beat++)
        rr[beat] = beat ? (double)(sample[beat] - sample[beat - 1]) / rate_hz : NAN;
    total[0] = 0;
    for (int64_t beat = 0; beat < num_beats; beat++) total[beat + 1] = total[beat] + (beat ? rr[beat] : 0);
    int64_t count = 0;
    for (int64_t beat = 0; beat < num_beats; beat++) {
        if (beat >= recent) remove_value(ordered, &count, rr[beat - recent]);
        insert_value(ordered, &count, rr[beat]);
        int64_t first = beat > before ? beat - before : 0;
        int64_t last = beat + after + 1 < num_beats ? beat + after + 1 : num_beats;
        double mean = (total[last] - total[first]) / (double)(last - (first > 0 ? first : 1));
        double median = median_of(ordered, count);
        for (int64_t f = 0; f < num_facets; f++) {
            double value = compared(kinds[f], rr, beat, num_beats, median, mean);
            const double *own = edges + first_edge[f];
            codes[beat * num_facets + f] = level_of(value, own, first_edge[f + 1] - first_edge[f]);
        }
    }
}
