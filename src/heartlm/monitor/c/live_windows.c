/* Windows of voltages of many streams through the network of heartlm.models.waveform, which is the reference. */
#include <math.h>

#include "kernel.h"
#include "live.h"

#define MOST_LAYERS 4

/* Shape and weights of the network; kernels.h declares it for Python. Weights of a convolution are
 * [outer, kernel, inner], the batch normalisation in them and in the bias, which follows them. */
struct network {
    int64_t length, bands, hidden, classes, num_waves, num_lines;
    int64_t inner[2 * MOST_LAYERS], outer[2 * MOST_LAYERS], kernel[2 * MOST_LAYERS], stride[2 * MOST_LAYERS];
    const float *volts;   /* of each code */
    const float *fourier; /* cosines, then sines, of the Hann window's spectrum, [2 bands, length] */
    const float *layers;  /* of the convolutions over time, then of those over lines of the spectrum */
    const float *dense;   /* of_spectrum [hidden, .], its bias, hidden_layer, its bias, class_head, its bias */
    double small, least;  /* voltages: what saturates, and what is added before dividing */
};

/* `count` convolutions in a row of x [length, channels, columns], which has room for padding before it; the result is
 * where the pointer returned says, `*length` places long. `spare` is as large as x. */
static float *convolved(const struct network *n, int64_t first, int64_t count, const float **w, float *x, float *spare,
                        int vectors, int64_t *length) {
    int64_t columns = vectors * LANES;
    for (int64_t i = first; i < first + count; i++) {
        int64_t inner = n->inner[i], outer = n->outer[i], kernel = n->kernel[i], row = inner * columns;
        int64_t after = (*length + n->stride[i] - 1) / n->stride[i], pad = kernel / 2;
        memset(x - pad * row, 0, (size_t)(pad * row) * sizeof(float));
        memset(x + *length * row, 0, (size_t)(kernel * row) * sizeof(float));
        for (int64_t t = 0; t < after; t++)
            product(*w, outer, kernel * inner, x + (t * n->stride[i] - pad) * row, *w + outer * kernel * inner, 1, vectors,
                    spare + t * outer * columns);
        *w += outer * kernel * inner + outer, *length = after;
        float *out = spare;
        spare = x, x = out;
    }
    return x;
}

#define PADDING 1024 /* rows before and after the values of a layer: the longest kernel times the channels it reads */

static int64_t seen_size_of(const struct network *n) { return 2 * n->outer[n->num_waves - 1] + n->hidden + 2; }

/* Rows that one of the two buffers for layers needs, with padding. */
static int64_t most_rows(const struct network *n) {
    int64_t most = 2 * n->length;
    for (int64_t i = 0, length = n->length; i < n->num_waves; i++) {
        length = (length + n->stride[i] - 1) / n->stride[i];
        if (length * n->outer[i] > most) most = length * n->outer[i];
    }
    for (int64_t i = n->num_waves; i < n->num_waves + n->num_lines; i++)
        if (n->bands * n->outer[i] > most) most = n->bands * n->outer[i];
    return most + 2 * PADDING;
}

/* Floats of scratch that `live_windows` needs. */
int64_t HEARTLM(live_windows_scratch)(const struct network *n) {
    int64_t rows = n->length + 2 * n->bands + seen_size_of(n) + n->hidden + n->classes;
    return (rows + 2 * most_rows(n)) * COLUMNS;
}

/* Judge `num` windows of codes [num, length]; out: probabilities [num, classes]. */
void HEARTLM(live_windows)(const struct network *n, const uint16_t *codes, int64_t num, float *scratch,
                           float *out) {
    int64_t length = n->length, all = n->num_waves + n->num_lines, most = most_rows(n), seen_size = seen_size_of(n);
    for (int64_t begin = 0; begin < num;) {
        int vectors = num - begin > LANES ? 2 : 1;
        int64_t columns = vectors * LANES, own = num - begin < columns ? num - begin : columns;
        float *scaled = scratch, *seen = scaled + length * columns, *power = seen + seen_size * columns;
        float *hidden = power + 2 * n->bands * columns, *logits = hidden + n->hidden * columns;
        float *x = logits + n->classes * columns + PADDING * columns, *spare = x + most * columns;
        float rms[COLUMNS], crest[COLUMNS];
        for (int64_t c = 0; c < columns; c++) {
            const uint16_t *window = codes + (begin + (c < own ? c : 0)) * length;
            double sum = 0, square = 0;
            float largest = 0;
            for (int64_t t = 0; t < length; t++) sum += n->volts[window[t]];
            float mean = (float)(sum / (double)length);
            for (int64_t t = 0; t < length; t++) {
                float mv = n->volts[window[t]] - mean, size = fabsf(mv);
                scaled[t * columns + c] = mv, square += mv * mv;
                if (size > largest) largest = size;
            }
            rms[c] = (float)(sqrt(square / (double)length) + n->least), crest[c] = largest + (float)n->least;
        }
        for (int64_t t = 0; t < length; t++) {
            float *at = scaled + t * columns, *to = x + 2 * t * columns;
            for (int64_t c = 0; c < columns; c++) {
                float twice = 2 * at[c] / (float)n->small;
                twice = twice > 40.0f ? 40.0f : twice;
                to[columns + c] = 1 - 2 / (exponential(twice < -40.0f ? -40.0f : twice) + 1); /* its tanh */
            }
            for (int64_t c = 0; c < columns; c++) to[c] = at[c] = at[c] / rms[c];
        }
        const float *w = n->layers;
        int64_t left = length, channels = n->outer[n->num_waves - 1];
        float *waves = convolved(n, 0, n->num_waves, &w, x, spare, vectors, &left);
        for (int64_t i = 0; i < channels * columns; i++) {
            float sum = 0, largest = waves[i];
            for (int64_t t = 0; t < left; t++) {
                float value = waves[t * channels * columns + i];
                sum += value, largest = value > largest ? value : largest;
            }
            seen[i] = sum / (float)left, seen[channels * columns + i] = largest;
        }
        product(n->fourier, 2 * n->bands, length, scaled, NULL, 0, vectors, power);
        for (int64_t i = 0; i < n->bands * columns; i++) {
            float real = power[i], imaginary = power[n->bands * columns + i];
            x[i] = log1pf(real * real + imaginary * imaginary) - 3;
        }
        left = n->bands;
        float *lines = convolved(n, n->num_waves, n->num_lines, &w, x, spare, vectors, &left);
        int64_t size = left * n->outer[all - 1];
        float *bands = seen + 2 * channels * columns, *measures = bands + n->hidden * columns;
        const float *dense = n->dense;
        product(dense, n->hidden, size, lines, dense + n->hidden * size, 1, vectors, bands);
        dense += n->hidden * (size + 1);
        for (int64_t c = 0; c < columns; c++)
            measures[c] = logf(rms[c]), measures[columns + c] = logf(crest[c]) - measures[c];
        product(dense, n->hidden, seen_size, seen, dense + n->hidden * seen_size, 1, vectors, hidden);
        dense += n->hidden * (seen_size + 1);
        product(dense, n->classes, n->hidden, hidden, dense + n->classes * n->hidden, 0, vectors, logits);
        class_shares(logits, n->classes, columns, own, out + begin * n->classes);
        begin += own;
    }
}
