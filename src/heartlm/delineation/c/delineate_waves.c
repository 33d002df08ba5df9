/* From probabilities of several leads to waves: runs of cells in which one class is the most probable. */
#include <math.h>

#include "exponential.h"
#include "kernel.h"
#include "vector.h"

#define CLASSES 4
#define LARGEST 1e6f /* mV */
#define CLEAR 0.8f   /* a wave whose greatest probability is less has lower edges */
#define DOUBT 0.02f /* of a lead without any */
#define REGULAR 0.08f    /* of slow regular beats: standard deviation of their intervals by the mean, */
#define SLOW_CELLS 125.0f /* and least mean, of one second */

/* Probability at the edges of a class, chosen on fold 0: at a half P waves are 2 ms too short at either end in qtdb. */
static const float edge_level[CLASSES] = {0.5f, 0.45f, 0.5f, 0.5f};

static const float lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Weights of a lead, in place of which cells are usable (1, else 0): 1 / (1 - c + DOUBT)^2, where c is the mean of the
 * greatest probability over `radius` cells on either side. Where it is not usable, its weight is 0, and c counts it as 0.
 * `answer` [CLASSES, cells] is what delineate_network gave. Scratch: cells floats. */
void HEARTLM(delineate_weights)(const float *answer, int64_t cells, int64_t radius, float *scratch, float *weights) {
    double sum = 0;
    for (int64_t t = 0; t < cells; t += LANES) {
        int64_t left = cells - t < LANES ? cells - t : LANES;
        vfloat total = {0};
        for (int c = 0; c < CLASSES; c++) total += exponentials(load_first(answer + c * cells + t, left));
        store_first(scratch + t, load_first(weights + t, left) / total, left);
    }
    for (int64_t t = 0; t < radius && t < cells; t++) sum += scratch[t];
    for (int64_t t = 0; t < cells; t++) {
        int64_t first = t > radius ? t - radius : 0, last = t + radius < cells ? t + radius : cells - 1;
        if (t + radius < cells) sum += scratch[t + radius];
        if (t > radius) sum -= scratch[t - radius - 1];
        float doubt = 1 - (float)(sum / (double)(last - first + 1)) + DOUBT;
        weights[t] = weights[t] > 0 ? 1 / (doubt * doubt) : 0;
    }
}

/* Let the leads of a recording agree: what delineate_network gave for each, [num_leads, CLASSES, cells], becomes
 * probabilities that are proportional to own^(1 - share / 2) * mean^share, and `edges`, of the same shape, the same for
 * `edge_share`. The geometric mean of the leads by their weights [num_leads, cells] is written to `mean`
 * [CLASSES, cells]. Where the weight is 0 there is no wave. */
void HEARTLM(delineate_agree)(float *leads, const float *weights, int64_t num_leads, int64_t cells, float share,
                              float edge_share, float *edges, float *mean) {
    for (int64_t t = 0; t < cells; t += LANES) {
        int64_t left = cells - t < LANES ? cells - t : LANES;
        vfloat sums[CLASSES] = {{0}}, total_weight = {0}, none = all_lanes(1.0f);
        for (int64_t l = 0; l < num_leads; l++) {
            vfloat weight = load_first(weights + l * cells + t, left);
            total_weight += weight;
            for (int c = 0; c < CLASSES; c++)
                sums[c] += weight * load_first(leads + (l * CLASSES + c) * cells + t, left);
        }
        for (int c = 0; c < CLASSES; c++) sums[c] /= larger(total_weight, all_lanes(1e-9f));
        for (int64_t l = -1; l < num_leads; l++) {
            vfloat powers[CLASSES], of_edges[CLASSES], total = {0}, edge_total = {0};
            vfloat weight = l < 0 ? total_weight : load_first(weights + l * cells + t, left);
            vfloat used = -__builtin_convertvector(weight > 0, vfloat);
            float *own = l < 0 ? mean + t : leads + l * CLASSES * cells + t;
            for (int c = 0; c < CLASSES; c++) {
                vfloat log_power = l < 0 ? sums[c] : load_first(own + c * cells, left);
                if (l >= 0 && num_leads > 1) {
                    edge_total += of_edges[c] = exponentials(edge_share * sums[c] + (1 - edge_share / 2) * log_power);
                    log_power = share * sums[c] + (1 - share / 2) * log_power;
                }
                total += powers[c] = exponentials(log_power);
            }
            for (int c = 0; c < CLASSES; c++) {
                vfloat unused = c ? 0 * used : none - used, found = used * powers[c] / total + unused;
                store_first(own + c * cells, found, left);
                if (l < 0) continue;
                if (num_leads > 1) found = used * of_edges[c] / edge_total + unused;
                store_first(edges + (l * CLASSES + c) * cells + t, found, left);
            }
        }
    }
}

/* The most probable class of each cell, the first of several. */
static void likeliest(const float *probability, int64_t cells, float *classes) {
    for (int64_t t = 0; t < cells; t += LANES) {
        int64_t left = cells - t < LANES ? cells - t : LANES;
        vfloat most = load_first(probability + t, left), class = {0};
        for (int c = 1; c < CLASSES; c++) {
            vfloat other = load_first(probability + c * cells + t, left);
            vint more = other > most;
            class = (vfloat)(((vint)all_lanes((float)c) & more) | ((vint)class & ~more));
            most = larger(other, most);
        }
        store_first(classes + t, class, left);
    }
}

/* The edge between cell `outside` and its neighbour `inside`, in cells: where a line between their centres is `level`. */
static double edge_between(const float *of_class, int64_t cells, float level, int64_t outside, int64_t inside) {
    double edge = (double)(outside > inside ? outside : inside);
    double low = outside >= 0 && outside < cells ? of_class[outside] : 0, high = of_class[inside];
    if (!(high > level && low < level)) return edge;
    double depth = (high - level) / (high - low); /* of the edge, from the inner centre outwards */
    return (double)inside + 0.5 + (outside > inside ? depth : -depth);
}

static int64_t sample_of(double cell, double step, int64_t num_samples) {
    int64_t sample = (int64_t)floor((2 * cell - 0.5) * step + 0.5);
    return sample < 0 ? 0 : sample < num_samples ? sample : num_samples - 1;
}

/* Waves of a lead in order, at most `most`: their class (1 P, 2 QRS, 3 T), onset, peak and offset as samples of the signal,
 * and the mean probability. Runs of a class with at most `bridge` cells without a wave between them are one. A run whose
 * probabilities sum to less than least_sum[class], or whose greatest is less than least_top[class], is no wave;
 * nor, unless `flat`, is one over signal that is constant or invalid. The edges are where `plain` crosses edge_level:
 * probabilities without delineate_expect, as an expected wave is not wider than another. The peak is
 * where the signal is farthest from the line between onset and offset. Scratch: cells floats. Returns how many. */
int64_t HEARTLM(delineate_waves)(const float *probability, const float *plain, int64_t cells, const float *signal,
                                 int64_t num_samples, double step, int64_t bridge, const float *least_sum,
                                 const float *least_top, int64_t flat, int64_t most, float *scratch,
                                 int64_t *waves, float *confidence) {
    int64_t num = 0;
    float *classes = scratch;
    likeliest(probability, cells, classes);
    for (int64_t t = 0; t < cells && num < most;) {
        int class = (int)classes[t];
        if (!class) {
            t++;
            continue;
        }
        int64_t begin = t, end = t;
        while (t < cells) { /* `end` is behind the last cell of the class, `t` behind those looked at */
            int next = (int)classes[t];
            if (next == class) end = ++t;
            else if (next || t - end >= bridge) break;
            else t++;
        }
        t = end;
        const float *of_class = probability + class * cells;
        const float *plain_class = plain + class * cells;
        vfloat sums = {0}, tops = {0}, plain_tops = {0};
        for (int64_t u = begin; u < end; u += LANES) {
            vfloat here = load_first(of_class + u, end - u);
            sums += here, tops = larger(tops, here);
            plain_tops = larger(plain_tops, load_first(plain_class + u, end - u));
        }
        float sum = sum_of_lanes(sums), top = largest_lane(tops), plain_top = largest_lane(plain_tops);
        float mean = sum / (float)(end - begin);
        if (sum < least_sum[class] || top < least_top[class]) continue;
        float clear = edge_level[class], level = plain_top < CLEAR ? clear * plain_top / CLEAR : clear;
        int64_t first = begin, last = end - 1;
        while (first < last && plain_class[first] < level) first++;
        while (last > first && plain_class[last] < level) last--;
        while (first == begin && begin > 0 && plain_class[begin - 1] > clear) first = --begin;
        while (last + 1 == end && end < cells && plain_class[end] > clear) last = end++;
        int64_t onset = sample_of(edge_between(plain_class, cells, level, first - 1, first), step, num_samples);
        int64_t offset = sample_of(edge_between(plain_class, cells, level, last + 1, last), step, num_samples);
        int64_t peak = -1;
        float slope = offset > onset ? (signal[offset] - signal[onset]) / (float)(offset - onset) : 0;
        vfloat farthest = {0}, places = all_lanes(-1.0f); /* of the samples in each lane */
        for (int64_t s = onset; s <= offset; s += LANES) {
            vfloat place = load(lane_numbers) + (float)(int32_t)(s - onset);
            vfloat away = load_first(signal + s, offset + 1 - s) - signal[onset] - slope * place;
            away = larger(away, -away);
            vint chosen = (away > farthest) & (away < LARGEST) & (place <= (float)(int32_t)(offset - onset));
            farthest = (vfloat)(((vint)away & chosen) | ((vint)farthest & ~chosen));
            places = (vfloat)(((vint)place & chosen) | ((vint)places & ~chosen));
        }
        float most_away = largest_lane(farthest);
        for (int lane = 0; lane < LANES && most_away > 0; lane++) {
            int64_t place = onset + (int64_t)places[lane];
            if (farthest[lane] == most_away && (peak < 0 || place < peak)) peak = place;
        }
        if (peak < 0 && !flat) continue;
        if (peak < 0) peak = (onset + offset) / 2;
        int64_t *wave = waves + 4 * num;
        wave[0] = class, wave[1] = onset, wave[2] = peak, wave[3] = offset;
        confidence[num++] = mean;
    }
    return num;
}

/* Expect P waves where the beats nearby have them, and none where they have none: the odds of P are multiplied by
 * exp(strength (2 c - 1)). For a QRS complex c = (n + 1) / (m + 2), where n of the up to `beats` complexes on either side
 * (m in all) have a P wave that ends less than `reach` samples before them; between complexes c is a line. It
 * is a half at least where these complexes are slow and regular: an escape rhythm that the P waves are independent of.
 * `waves` [num_waves, 4] are those of delineate_waves. Scratch: 2 num_waves floats. */
void HEARTLM(delineate_expect)(float *probability, int64_t cells, const int64_t *waves, int64_t num_waves, double step,
                               int64_t reach, int64_t beats, float strength, float *scratch) {
    float *has_p = scratch, *place = scratch + num_waves;
    int64_t num = 0, end_of_p = -1;
    for (const int64_t *wave = waves; wave < waves + 4 * num_waves; wave += 4) {
        if (wave[0] == 1) end_of_p = wave[3];
        if (wave[0] != 2) continue;
        has_p[num] = end_of_p >= 0 && wave[1] - end_of_p < reach;
        place[num++] = (float)((double)wave[2] / step / 2);
    }
    if (num < 3) return;
    float before = 0;
    for (int64_t i = 0, cell = 0; i <= num; i++) {
        float here = before;
        if (i < num) {
            int64_t first = i > beats ? i - beats : 0, last = i + beats < num ? i + beats : num - 1;
            float sum = 1 - has_p[i];
            for (int64_t j = first; j <= last; j++) sum += has_p[j];
            here = strength * (2 * sum / (float)(last - first + 2) - 1);
            float mean = (place[last] - place[first]) / (float)(last - first), squares = 0;
            for (int64_t j = first; j < last; j++) {
                float away = place[j + 1] - place[j] - mean;
                squares += away * away;
            }
            if (mean >= SLOW_CELLS && squares <= REGULAR * REGULAR * mean * mean * (float)(last - first))
                here = here > 0 ? here : 0;
        }
        float start = i ? place[i - 1] : 0, length = i && i < num ? place[i] - start : 1;
        int64_t end = i < num ? (int64_t)place[i] + 1 : cells;
        float low = i ? before : here, slope = (here - low) / (length > 1 ? length : 1);
        for (end = end < cells ? end : cells; cell < end; cell += LANES) {
            int64_t left = end - cell < LANES ? end - cell : LANES;
            vfloat odds = exponentials(low + slope * (load(lane_numbers) + ((float)(int32_t)cell - start)));
            vfloat total = 1 + load_first(probability + cells + cell, left) * (odds - 1);
            for (int c = 0; c < CLASSES; c++) {
                float *at = probability + c * cells + cell;
                store_first(at, load_first(at, left) * (c == 1 ? odds / total : 1 / total), left);
            }
        }
        cell = end > cell ? cell : end;
        before = here;
    }
}
