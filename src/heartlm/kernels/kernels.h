/* Prototypes of all kernels, without the suffix of the variant, and the structs that Python fills in. `library.py`
 * reads the types of arguments, results and fields and the constants here, and those of extensions in a `kernels.h` of
 * theirs. A source includes this file, or a test compares its structs, which it describes, with these; prototypes are
 * always compared. */
#ifndef HEARTLM_KERNELS_H
#define HEARTLM_KERNELS_H

#include <stdint.h>

struct detector;

/* tokenizers/c/amplitude.c */
void amplitude_levels(const float *signal, int64_t num_samples, const double *weights, int64_t num_weights,
    double points_apart, int64_t second, double keep, int64_t scale_seconds, float first_scale, float least_scale,
    float limit, float step, int64_t num_levels, int64_t num_points, float *padded, float *smoothed, double *ranges,
    double *ordered, uint16_t *codes, int64_t *sample, float *scale);

/* models/c/attention.c */
int64_t attention_scratch(int64_t tokens, int64_t width);
void attention_forward(const float *query, int64_t query_stride, const float *key, const float *value,
    int64_t key_stride, const float *cosine, const float *sine, const int64_t *first_query, const int64_t *place,
    int64_t num_queries, int64_t batch, int64_t tokens, int64_t heads, int64_t width, int32_t causal,
    const int32_t *keys, double share, int32_t threads, float *scratch, float *out, float *lse);
void attention_backward(const float *query, int64_t query_stride, const float *key, const float *value,
    int64_t key_stride, const float *cosine, const float *sine, const int64_t *first_query, const int64_t *place,
    int64_t num_queries, int64_t batch, int64_t tokens, int64_t heads, int64_t width, int32_t causal,
    const int32_t *keys, double share, int32_t threads, float *scratch, const float *out, const float *lse,
    const float *dout, float *dquery, float *dkey, float *dvalue);

/* tokenizers/c/beat_waveform.c */
void cut_beats(const float *signal, int64_t num_samples, const int64_t *sample, int64_t num_beats,
    const double *offsets, int64_t num_points, const double *weights, int64_t num_weights, int64_t scale_beats,
    float least_scale, float clip, float *padded, float *smoothed, double *positions, int32_t *keys, double *ranges,
    double *ordered, float *shape, float *baseline, float *scale);

/* ecg/c/detect.c */
struct plan {
    int64_t factor, even_taps, odd_taps, smooth_taps, fine_taps, reach, refractory, closest, window, looks_ahead, apart, warm_up;
    int64_t shape, new_places, num_candidates, num_shapes, fast, fast_beats;
    double threshold, search_gap, search_threshold, floor, decay, height_weight, rr_weight, rr_start, rr_low, rr_high;
    double rr_pause, doubt, same_shape, shape_weight, fast_height, fast_shape;
};
int64_t detect_bytes(const struct plan *p);
void detect_begin(const struct plan *p, struct detector *d);
int64_t detect_push(const struct plan *p, struct detector *d, const float *taps, const float *samples,
    int64_t num_samples, int64_t ends, int64_t *beats);

/* kernels/c/draws.c */
void draws(int64_t seed, int64_t use, int64_t step, int64_t first, int64_t num, uint64_t *out);
void draws_below(int64_t seed, int64_t use, int64_t step, int64_t first, int64_t num, double share, uint8_t *out);
void hide_spans(int64_t seed, int64_t use, int64_t step, int64_t first_window, int64_t batch_size,
    const int64_t *length, int64_t num_windows, int64_t width, double begin, int64_t longest, uint8_t *hidden,
    int64_t *num_hidden);
void draw_windows(int64_t seed, int64_t use, int64_t step, int64_t first_window, int64_t batch_size,
    int64_t num_windows, const double *reach, const int64_t *row_first, const int64_t *row_tokens, int64_t num_rows,
    int64_t width, int64_t *first, int64_t *length);

/* monitor/c/frames.c */
int64_t frame(const char *text, int64_t length, int64_t most_leads, float limit, float *out, double *numbers,
    int64_t *sizes);

/* kernels/c/gather.c */
int64_t gather_windows(const uint8_t *corpus, int64_t num_tokens, const int64_t *first, const int64_t *length,
    int64_t num_windows, int64_t width, int64_t token_bytes, uint8_t *out);
int64_t gather_codes(const uint16_t *corpus, int64_t num_tokens, const int64_t *first, const int64_t *length,
    int64_t num_windows, int64_t width, int64_t num_facets, int64_t *out);

/* monitor/c/live_af.c */
struct history {
    int64_t num, sample[7];
    float classes[6];
};
void live_af_measures(const int64_t *histories, const int64_t *samples, const double *rates_hz, const float *answers,
    int64_t num_classes, const int64_t *classes, const uint16_t *codes, int64_t num_facets, const int64_t *facets,
    int64_t num_chosen, const uint8_t *faint, int64_t num, float *out, uint8_t *known);
void live_af_odds(const float *measures, int64_t num_measures, const float *states, const float *edges,
    int64_t num_edges, const float *table, const float *bias, const float *weight, int64_t hidden, double offset,
    int64_t num, float *scratch, double *out);

/* monitor/c/live_beats.c */
struct trunk {
    int64_t facets, width, depth, heads, head_width, feed, kept, classes, extra;
    const float *table, *blocks, *norm, *head, *bias;
    const double *frequency;
};
void live_beats(const struct trunk *t, const int64_t *codes, const int64_t *position, const int64_t *caches,
    int64_t num, float *scratch, float *out, float *rest);
int64_t live_beats_scratch(const struct trunk *t);

/* monitor/c/live_rules.c, which includes this file. Kinds are bits of masks and places in arrays; heartlm.monitor.rules
 * fills in the limits by their names, and says what they mean. */
/* Written by heartlm.monitor.header, from its tables. */
enum kinds { VF, ASYSTOLE, VT, EXTREME_TACHYCARDIA, EXTREME_BRADYCARDIA, RUN, PAUSE, AF, SIGNAL_LOST, KINDS };
struct rules {
    double rate_hz, asystole_s, bradycardia_bpm, tachycardia_bpm, vt_bpm, v_probability, vf_probability, vt_probability,
        vt_probability_at_once, vt_waveform_probability, vt_veto_below, veto_noise, pause_s, af_probability,
        noise_probability, veto_rate, clear_veto_rate, veto_vt, sure, valid, complete, quiet, silent, low, empty_rr_s,
        before_noise_s, same_beat_s, beat_delay_s, window_s, vf_onset_s, vf_end_s, after_vf_s, slow_share,
        vf_beats_mean, asystole_ended_s, least_asystole, other, vt_weights[6], vt_bias, perhaps, least_vt_at_start,
        vt_s, vt_mean, af_drift, af_clip, af_excess, af_head_start, most_af, rate_margin, vf_margin, vt_margin,
        af_margin, off_delay_s[KINDS], repeat_s;
    int64_t bradycardia_beats, bradycardia_in_af_beats, tachycardia_beats, vt_beats, run_beats, off, vt_veto_beats,
        sure_beats, sure_s, lost_s, found_s, beats_near, vt_wave, vf_wave, asystole_wave, noise_wave, start_windows,
        slow_windows, vf_beats, regular_windows, most_others, vt_windows, outranked_by[KINDS];
};
/* End of what it writes. */
enum kept { BEATS = 32, SECONDS = 8, WAVES = 5 }; /* beats and seconds of a lead, classes of a window */
/* The state of a lead. Of beat and second k, rings have the place k modulo their length. */
struct ruled {
    int64_t num_beats, num_seconds; /* beats since `begin` or since the signal was found again */
    int64_t begin;                  /* end of the last gap */
    int64_t last_vf, last_noise, last_vt, af_onset;
    double vt, af_sum;              /* probability of VT at `last_vt`; sum of log odds since `af_onset` */
    int64_t lost, af_told, has_beats, num_added, found; /* found: bits of kinds */
    int64_t starts[KINDS], samples[BEATS];
    double confidences[KINDS], probability[BEATS], ventricular[BEATS], af[BEATS], vt_measures[6];
    double heights[SECONDS], valid[SECONDS], waves[SECONDS][WAVES];
    uint8_t kinds[BEATS], has_wave[SECONDS], regular[SECONDS];
};
/* The state of a stream, which its leads follow. */
struct alarms {
    int64_t active, open, lost, lead_in_use, af_onset; /* bits of kinds that hold, and of those whose alarm lasts */
    int64_t absent[KINDS];                             /* since when the condition of an alarm is absent, 0 if it holds */
    double af;
};
/* A second of each of some streams. */
struct streams {
    int64_t num;
    /* of each stream: addresses of its limits and of its state, which began as zeros, its leads, the samples so far */
    const int64_t *rules, *states, *num_leads, *now;
    /* and, if it was judged, the probability of AF in a long window, else NaN, and where AF began */
    const double *long_af;
    const int64_t *long_af_onset;
    /* of each lead of these streams: its window [WAVES] if it has one, where its beats begin, and the end of the last */
    const float *waves;
    const uint8_t *has_wave, *regular; /* regular: whether the window shows regular waves at a rate of VT */
    const double *valid, *heights;
    const int64_t *first_beat;
    /* of each beat */
    const int64_t *samples;
    const uint32_t *symbols; /* AAMI classes as characters */
    const uint8_t *faint;
    const float *probability, *ventricular;
    const double *af;
    /* results: bits of kinds of each stream, and [num, KINDS] where those that were raised began, or ended ones ended */
    int64_t *raised, *repeated, *ended, *starts;
    double *confidences;
};
void live_rules(const struct streams *s);

/* monitor/c/live_seconds.c */
struct seconds {
    const struct plan *plan;
    const float *taps;
    int64_t detector_bytes, kept, raw_kept, longest_gap, step_length, flat_length, ahead, num_points, num_weights;
    int64_t num_grid_weights, num_levels;
    const double *offsets, *weights, *grid_weights, *power;
    const float *levels;
    double rate_hz, shortest, quick, furthest, step;
};
int64_t live_seconds_bytes(const struct seconds *s);
int64_t live_seconds(const struct seconds *s, const int64_t *leads, const int64_t *samples, const int64_t *counts,
    int64_t first, int64_t num, uint16_t *windows, uint8_t *has_window, double *shares, double *ranges,
    int64_t *num_beats, int64_t most, int64_t *of_lead, int64_t *beats, float *waves, float *scratch,
    int64_t scratch_size);

/* tokenizers/c/live_tokens.c */
struct tokens {
    int64_t num_points, look_back, every, num_ranges, long_mean, longest, recent, near, around, steady, fewest_usual;
    int64_t fewest_ranges;
    int64_t qrs[2], t[2], p[2], active[2];
    double shortest_s, longest_s, irregular, sudden, usual, clip, least_scale, faint, alike, step_s;
};
int64_t live_tokens_bytes(const struct tokens *t);
int64_t live_tokens_scratch(const struct tokens *t);
void live_tokens(const struct tokens *t, const int64_t *leads, const int64_t *samples, const double *rates,
    const float *waves, int64_t num, char *scratch, float *shape, float *away, double *rr, double *rhythm,
    float *morphology, double *usual_mv, uint8_t *faint);

/* monitor/c/live_windows.c */
struct network {
    int64_t length, bands, hidden, classes, num_waves, num_lines, inner[8], outer[8], kernel[8], stride[8];
    const float *volts, *fourier, *layers, *dense;
    double small, least;
};
int64_t live_windows_scratch(const struct network *n);
void live_windows(const struct network *n, const uint16_t *codes, int64_t num, float *scratch, float *out);

/* kernels/c/permute.c */
void permute(const int64_t *place, int64_t num, int64_t size, const uint64_t *key, int64_t key_step, int64_t *out);

/* tokenizers/c/residual_quantize.c */
void residual_quantize(const float *vectors, const float *weight, int64_t num_vectors, int64_t num_points,
    const float *centroids, const double *half, const float *bias, const float *heads, const float *columns,
    const float *basis, int64_t num_levels, int64_t num_codes, int64_t length, float *rest, uint16_t *codes);
void sums_by_code(const float *vectors, const uint16_t *codes, int64_t num_vectors, int64_t num_points, double *sums);

/* tokenizers/c/rr_codes.c */
void rr_codes(const int64_t *sample, int64_t num_beats, double rate_hz, int64_t recent, int64_t before, int64_t after,
    const int64_t *kinds, const double *edges, const int64_t *first_edge, int64_t num_facets, double *rr,
    double *total, double *ordered, uint16_t *codes);

/* tokenizers/c/running.c */
void trailing_median(const double *values, int64_t num_values, int64_t width, double *ordered, double *median);
void stretch_medians(const float *rows, int64_t row_length, const int64_t *first, const int64_t *last,
    int64_t num_stretches, int64_t rows_at_once, int32_t *columns, float *medians);

/* distributed/c/shared_sum.c: `round` counts from 1, `stage` is the one reached, 0 at first, `kind` 0 for float32, 1 for float64, 2 for
 * int64. Returns the stage reached: 3 when done, another where a rank is missing. */
int64_t shared_sum(char *memory, int64_t slot_bytes, int64_t num_ranks, int64_t rank, int64_t round, int64_t stage,
    void *data, int64_t num_bytes, int64_t kind, int64_t patience_ns);

/* models/c/transformer.c */
void rms_norm_forward(const float *x, const float *weight, float epsilon, int64_t rows, int64_t width,
    int32_t threads, float *y, float *inverse);
void rms_norm_backward(const float *x, const float *weight, const float *inverse, const float *dy, int64_t rows,
    int64_t width, int32_t threads, float *dx, float *dweight);
void swiglu_forward(const float *gate_up, int64_t rows, int64_t width, int32_t threads, float *out);
void swiglu_backward(const float *gate_up, const float *dy, int64_t rows, int64_t width, int32_t threads,
    float *dgate_up);

/* ecg/c/filter.c */
void filter_sections(const double *sections, const double *at_rest, int64_t num_sections, int64_t rows, int64_t num,
    double *x);

/* ecg/c/wfdb.c */
void wfdb_decode(const uint8_t *bytes, int64_t format, int64_t skip, int64_t num_frames, int64_t width,
    const int64_t *columns, int64_t num_columns, const double *calibration, void *out, int64_t row, uint16_t *sums);
int64_t wfdb_annotations(const uint8_t *content, int64_t num_words, int64_t *sample, uint8_t *code, int64_t *place,
    int64_t *num_texts, int8_t *subtype);

/* delineation/c: positions in cells of two samples at 250 Hz */
struct delineator {
    int64_t num_residual, inner[16], outer[16], kernel[16], dilation[16];
    const float *weights;
};
void delineate_prepare(const float *signal, int64_t num_samples, double step, const float *taps, int64_t num_taps,
    int64_t num_phases, float *scratch, int64_t num_out, float *out);
void delineate_usable(const float *signal, int64_t num_samples, double step, int64_t longest, int64_t cells,
    float *usable);
int64_t delineate_network_scratch(const struct delineator *d);
void delineate_network(const struct delineator *d, const float *x, int64_t num_samples, float *scratch, float *out);
void delineate_weights(const float *answer, int64_t cells, int64_t radius, float *scratch, float *weights);
void delineate_agree(float *leads, const float *weights, int64_t num_leads, int64_t cells, float share,
                     float edge_share, float *edges, float *mean);
void delineate_expect(float *probability, int64_t cells, const int64_t *waves, int64_t num_waves, double step,
    int64_t reach, int64_t beats, float strength, float *scratch);
int64_t delineate_waves(const float *probability, const float *plain, int64_t cells, const float *signal,
    int64_t num_samples, double step, int64_t bridge, const float *least_sum, const float *least_top, int64_t flat,
    int64_t most, float *scratch, int64_t *waves, float *confidence);

#endif
