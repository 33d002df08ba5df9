/* The waveform of every beat: smoothed, read off at fixed times around its R peak, without baseline, in running
 * amplitudes. */
#include "kernel.h"
#include "median.h"
#include "read_off.h"
#include "sorted_window.h"

/* Waveforms of `num_beats` beats at `sample`, each at `num_points` places `offsets` from its own: to `shape`
 * [num_beats, num_points], what was subtracted to `baseline` and what it was divided by to `scale`: the median of the
 * ranges of up to `scale_beats` beats, at least `least_scale`. Values are kept within +-`clip`. Scratch: `padded` and
 * `smoothed` for the samples a beat spans, `positions` and `keys` for its points, `ranges` for a number a beat,
 * `ordered` for `scale_beats`. */
void HEARTLM(cut_beats)(const float *signal, int64_t num_samples, const int64_t *sample, int64_t num_beats,
                        const double *offsets, int64_t num_points, const double *weights, int64_t num_weights,
                        int64_t scale_beats, float least_scale, float clip, float *padded, float *smoothed,
                        double *positions, int32_t *keys, double *ranges, double *ordered, float *shape,
                        float *baseline, float *scale) {
    const Lead lead = {signal, num_samples, weights, num_weights, padded};
    int64_t count = 0;
    for (int64_t beat = 0; beat < num_beats; beat++) {
        float *own = shape + beat * num_points;
        for (int64_t p = 0; p < num_points; p++) positions[p] = (double)sample[beat] + offsets[p];
        read_off(&lead, positions, num_points, smoothed, own);
        for (int64_t p = 0; p < num_points; p++) keys[p] = to_key(own[p]);
        Extremes extremes = extremes_of(keys, num_points);
        ranges[beat] = from_key(extremes.high) - from_key(extremes.low);
        if (beat >= scale_beats) remove_value(ordered, &count, ranges[beat - scale_beats]);
        insert_value(ordered, &count, ranges[beat]);
        float amplitude = (float)median_of(ordered, count);
        Middle around = about_the_middle(keys, num_points, extremes);
        float middle = median_from(keys, num_points, &around);
        amplitude = amplitude > least_scale ? amplitude : least_scale;
        for (int64_t p = 0; p < num_points; p++) {
            float value = (own[p] - middle) / amplitude;
            value = value < -clip ? -clip : value;
            own[p] = value > clip ? clip : value;
        }
        baseline[beat] = middle;
        scale[beat] = amplitude;
    }
}
