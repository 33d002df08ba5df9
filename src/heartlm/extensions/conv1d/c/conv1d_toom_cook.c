/* Convolution with fewer multiplications: four outputs of r taps are a product of polynomials, and a product of
 * polynomials is known from its values at r + 3 points (Toom 1963, Cook 1966; Winograd 1980 for filters). So each input
 * row is evaluated at the points, the weights too, and what was a sum of 4 r products is one of r + 3.
 *
 *     lanes        neighbouring tiles, of four outputs each, in the order of time
 *     read         4 LANES places of the source are dealt out: vector i holds place i of LANES tiles
 *     evaluate     places 4 p to 4 p + r + 2 of tile p become its values at the points:        values[point][in][p]
 *     multiply     at each point, weights times values, summed over input channels:            product[point][out][p]
 *     interpolate  the values of four outputs from products at the points, plus bias, positive part
 *     write        four vectors of outputs are collected into 4 LANES places of the row
 *
 * More than r taps are cut into chunks of four, so that a chunk's values are those of the next tile:
 * product[p] = sum over chunks s of weights[s] * values[p + s]. The last chunk may have five taps.
 *
 * A unit is a part of a row, or the rows of several samples side by side, as many tiles as keep the second cache. Where
 * there are fewer units than threads, each is done by several, which share out its output channels. */
#include "conv1d_tile.h"
#include "conv1d_toom_cook.h"
#include "transpose.h"

#define MOST_VALUES (1 << 18) /* floats */
#define MOST_TILES 256
#define LEAST_TILES (4 * LANES)

typedef struct {
    int64_t num_points, num_chunks;
    int64_t tiles, parts;              /* tiles of a part of a row; parts of a row */
    int64_t rows, num_units;           /* rows of a unit, of more than one sample if parts is 1; units of a group */
    int64_t row;                       /* tiles of values from one row of a unit to the next */
    int64_t width;                     /* places of the source that are read for a row of a unit */
    int64_t values, products;          /* floats of one channel at one point */
    int64_t values_point, products_point, weights_point; /* floats of one point */
    int64_t scratch;                   /* floats of a thread */
} plan;

static void set_size(plan *made, const correlation *what, int64_t tiles, int64_t rows) {
    made->tiles = tiles, made->rows = rows;
    made->parts = quotient_up(what->num_outputs, OUTPUTS * tiles);
    made->num_units = quotient_up(what->batch, rows) * made->parts;
    made->row = tiles + made->num_chunks - 1;
    made->width = OUTPUTS * LANES * (quotient_up(made->row, LANES) + 1);
    made->values = in_lines(rows * made->row + LANES);
    made->products = in_lines(rows * made->row);
    made->values_point = what->num_in * made->values + LANES;
    made->products_point = MOST_CHANNELS * made->products + LANES;
}

/* About how many cycles a plan takes, as measured with AVX-512: reading and evaluating, interpolating and writing, and
 * products of blocks of output channels and vectors of tiles, of which narrow ones keep the processor less busy. */
static double cost_of(const plan *made, const correlation *what) {
    int64_t most = vectors_beside(channels_at_once(what->num_out));
    int64_t vectors = quotient_up((made->rows - 1) * made->row + made->tiles, LANES);
    double reads = (double)what->num_in * made->rows * quotient_up(made->row, LANES) * (30.0 + made->num_points * 2.5);
    double writes = (double)what->num_out * made->rows * quotient_up(made->tiles, LANES);
    double blocks = (double)quotient_up(what->num_out, MOST_CHANNELS) * made->num_points;
    double columns = (double)vectors + 0.35 * (quotient_up(vectors, most) * most - vectors);
    double products = blocks * columns * (what->num_in * made->num_chunks * 4.4 + 10.0);
    return (reads + writes * (16.0 + made->num_points * 2.0) + products) * made->parts / made->rows;
}

static int32_t fits(const plan *made) { return made->num_points * made->values_point <= MOST_VALUES; }

/* Whole rows of as many samples as cost least, so that every thread gets some, or parts of one. */
static plan plan_of(const correlation *what, int64_t threads) {
    plan best = {.num_points = points_for(what->num_taps)};
    int64_t in_row = quotient_up(what->num_outputs, OUTPUTS);
    int64_t parts = quotient_up(in_row, MOST_TILES);
    int64_t tiles;
    best.num_chunks = chunks_for(what->num_taps, best.num_points);
    for (;; parts++) {
        tiles = parts > 1 ? quotient_up(quotient_up(in_row, parts), LANES) * LANES : in_row;
        set_size(&best, what, tiles, 1);
        if (fits(&best) || tiles <= LEAST_TILES)
            break;
    }
    plan made = best;
    int64_t most = parts > 1 ? 1 : smaller(quotient_up(what->batch, threads), MOST_TILES / made.row);
    for (int64_t rows = 2; rows <= most && fits(&made); rows++) {
        set_size(&made, what, tiles, rows);
        if (fits(&made) && cost_of(&made, what) < cost_of(&best, what))
            best = made;
    }
    best.weights_point = in_lines(quotient_up(what->num_out, LANES) * LANES * what->num_in * best.num_chunks);
    best.scratch = in_lines(best.width + best.num_points * (best.values_point + best.products_point));
    return best;
}

static int64_t taps_size(const plan *plan) { return (OUTPUTS * plan->num_chunks + 1) * LANES; }

int64_t LOCAL(toom_cook_scratch)(const correlation *what, int64_t threads) {
    const plan plan = plan_of(what, threads);
    return what->groups * plan.num_points * plan.weights_point + in_lines(4 * plan.num_chunks) +
           threads * greater(plan.scratch, taps_size(&plan));
}

/* The weights of up to LANES output channels for one input channel, turned: taps[k] is a vector of channels, from the
 * earliest place on, and zero where a chunk ends early. Rows are read four taps at a time unless that would reach
 * beyond `end`. */
static void read_taps(const correlation *what, const plan *plan, const float *from, int64_t channels, const float *end,
                      float *taps) {
    const float *rows[LANES];
    int64_t num = what->num_taps;
    int64_t descends = num > 1 && what->place[0] > what->place[1];
    for (int64_t lane = 0; lane < LANES; lane++) rows[lane] = from + smaller(lane, channels - 1) * what->weight_out;
    for (int64_t k = 0; k < num; k += 4) {
        vfloat fours[4];
        if (rows[LANES - 1] + k + 4 <= end)
            load_fours_turned(rows, k, fours);
        else
            for (int64_t j = 0; j < 4; j++)
                for (int64_t lane = 0; lane < LANES; lane++) fours[j][lane] = k + j < num ? rows[lane][k + j] : 0;
        for (int64_t j = 0; j < smaller(4, num - k); j++)
            store(taps + (descends ? num - 1 - k - j : k + j) * LANES, fours[j]);
    }
    memset(taps + num * LANES, 0, (size_t)(taps_size(plan) - num * LANES) * sizeof *taps);
}

/* Values of the weights of LANES output channels of a group, from `o` on: [point][in][chunk][channel]. */
ALWAYS void evaluate_weights(const correlation *what, const plan *plan, int64_t group, int64_t o, float *taps,
                             float *to, int num_points) {
    float matrix[MOST_POINTS][MOST_TAPS];
    const float *end = what->weight + what->groups * what->weight_group;
    const float *from = what->weight + group * what->weight_group + o * what->weight_out;
    filter_matrix(num_points, matrix);
    for (int64_t i = 0; i < what->num_in; i++) {
        read_taps(what, plan, from + i * what->weight_in, what->num_out - o, end, taps);
        for (int64_t chunk = 0; chunk < plan->num_chunks; chunk++, to += LANES) {
            vfloat tap[MOST_TAPS] = {0};
            int is_last = chunk == plan->num_chunks - 1;
#pragma GCC unroll 5
            for (int k = 0; k < num_points - OUTPUTS + 1; k++)
                if (k < OUTPUTS || is_last)
                    tap[k] = load(taps + (chunk * OUTPUTS + k) * LANES);
#pragma GCC unroll 8
            for (int point = 0; point < num_points; point++) {
                vfloat sum = matrix[point][0] * tap[0];
#pragma GCC unroll 5
                for (int k = 1; k < num_points - OUTPUTS + 1; k++) sum += matrix[point][k] * tap[k];
                store(to + point * plan->weights_point, sum);
            }
        }
    }
}

/* A share of the blocks of LANES output channels of all groups; those of a group follow each other. */
static void evaluate_blocks(const correlation *what, const plan *plan, int64_t begin, int64_t end, float *weights,
                            float *taps) {
    int64_t in_group = quotient_up(what->num_out, LANES);
    for (int64_t block = begin; block < end; block++) {
        int64_t group = block / in_group;
        int64_t o = block % in_group * LANES;
        float *to = weights + group * plan->num_points * plan->weights_point + o * what->num_in * plan->num_chunks;
        WITH_POINTS(plan->num_points, evaluate_weights, what, plan, group, o, taps, to);
    }
}

/* Four outputs from their products, `point` floats apart. */
ALWAYS void interpolate(const float *from, int64_t point, int num_points, vfloat *y) {
    vfloat one = load(from + point), minus_one = load(from + 2 * point);
    vfloat two = load(from + 3 * point), minus_two = load(from + 4 * point);
    vfloat even1 = one + minus_one, odd1 = one - minus_one, even2 = two + minus_two, odd2 = two - minus_two;
    y[0] = load(from) + even1 + even2;
    y[1] = odd1 + 2 * odd2;
    y[2] = even1 + 4 * even2;
    y[3] = odd1 + 8 * odd2 + load(from + (num_points - 1) * point);
    if (num_points == 6)
        return;
    vfloat even = load(from + 5 * point), odd = even;
    if (num_points == 8) {
        vfloat minus_half = load(from + 6 * point);
        odd = even - minus_half;
        even = even + minus_half;
    }
    y[0] += even, y[1] += 0.5f * odd, y[2] += 0.25f * even, y[3] += 0.125f * odd;
}

/* What is computed at a time: part of the rows of some samples, of one group, and some of its output channels. */
typedef struct {
    int64_t group, sample, rows; /* the first of the samples, and how many */
    int64_t first, num;          /* outputs of each row */
    int64_t tiles, vectors;      /* tiles of these outputs, and vectors of tiles of all rows */
    int64_t begin, end;          /* output channels */
} unit;

static unit unit_of(const correlation *what, const plan *plan, int64_t number, int64_t splits) {
    int64_t split = number % splits;
    int64_t place = number / splits % plan->num_units;
    int64_t blocks = quotient_up(what->num_out, MOST_CHANNELS);
    unit made = {.group = number / splits / plan->num_units, .sample = place / plan->parts * plan->rows,
                 .first = place % plan->parts * plan->tiles * OUTPUTS,
                 .begin = blocks * split / splits * MOST_CHANNELS,
                 .end = smaller(what->num_out, blocks * (split + 1) / splits * MOST_CHANNELS)};
    made.rows = smaller(plan->rows, what->batch - made.sample);
    made.num = smaller(plan->tiles * OUTPUTS, what->num_outputs - made.first);
    made.tiles = quotient_up(made.num, OUTPUTS);
    made.vectors = quotient_up((made.rows - 1) * plan->row + made.tiles, LANES);
    return made;
}

/* The values of the given tiles of a row; some more are written, up to a whole vector. */
ALWAYS void evaluate_row(const float *from, int64_t tiles, float *to, int64_t point, int num_points) {
    vfloat places[MOST_POINTS];
    load_dealt(from, places);
    for (int64_t p = 0; p < tiles; p += LANES) {
        vfloat next[OUTPUTS];
        from += OUTPUTS * LANES;
        load_dealt(from, next);
#pragma GCC unroll 4
        for (int i = 0; i < MOST_POINTS - OUTPUTS; i++) places[OUTPUTS + i] = NEXT(places[i], next[i]);
        evaluate(places, to + p, point, num_points);
#pragma GCC unroll 4
        for (int i = 0; i < OUTPUTS; i++) places[i] = next[i];
    }
}

/* Reads and evaluates all input channels of a unit. Behind the last values of each come zeros, since products are
 * computed for whole vectors. */
ALWAYS void evaluate_unit(const correlation *what, const plan *plan, const unit *at, float *window, float *values,
                          int num_points) {
    int64_t begin = what->origin + what->least_place + at->first;
    int64_t tiles = at->tiles + plan->num_chunks - 1;
    int64_t inside = what->gate == NULL && begin >= 0 && begin + plan->width <= what->source_length;
    for (int64_t i = 0; i < what->num_in; i++, values += plan->values) {
        for (int64_t point = 0; point < num_points; point++)
            store(values + point * plan->values_point + (at->rows - 1) * plan->row + tiles, (vfloat){0});
        for (int64_t row = 0; row < at->rows; row++) {
            int64_t channel = ((at->sample + row) * what->groups + at->group) * what->num_in + i;
            const float *from = what->source + channel * what->source_length;
            if (!inside)
                copy_window(from, gate_at(what->gate, channel * what->source_length), what->source_length, begin, 1,
                            plan->width, window);
            evaluate_row(inside ? from + begin : window, tiles, values + row * plan->row, plan->values_point,
                         num_points);
        }
    }
}

/* Products at one point of a block of output channels from `o` on. */
static void multiply(const correlation *what, const plan *plan, const int64_t *lists, const float *values,
                     const float *weights, int64_t o, int64_t channels, int64_t vectors, int64_t point,
                     float *products) {
    int64_t most = vectors_beside(channels), first, end;
    chunks_at(point, what->num_taps, plan->num_points, &first, &end);
    int64_t block = o / LANES * plan->num_chunks * what->num_in * LANES + o % LANES;
    tile of = {.x_in = plan->values, .weight = weights + point * plan->weights_point + block, .weight_out = 1,
               .weight_in = plan->num_chunks * LANES, .x_tap = lists + first,
               .weight_tap = lists + plan->num_chunks + first, .num_in = what->num_in, .num_taps = end - first,
               .out_row = plan->products, .last = LANES};
    int64_t blocks = quotient_up(vectors, most);
    for (int64_t v = 0, width; v < vectors; v += width, blocks--) {
        width = quotient_up(vectors - v, blocks);
        of.x = values + point * plan->values_point + v * LANES;
        of.out = products + point * plan->products_point + v * LANES;
        run_tile(&of, channels, width);
    }
}

/* Interpolates and writes `num` outputs of a row. */
ALWAYS void interpolate_row(const plan *plan, const float *products, float bias, int32_t relu, float *row, int64_t num,
                            int num_points) {
    for (int64_t t = 0; t < num; t += OUTPUTS * LANES, products += LANES) {
        vfloat y[OUTPUTS];
        interpolate(products, plan->products_point, num_points, y);
#pragma GCC unroll 4
        for (int j = 0; j < OUTPUTS; j++) {
            y[j] += bias;
            y[j] = relu ? larger(y[j], (vfloat){0}) : y[j];
        }
        collect(y);
#pragma GCC unroll 4
        for (int j = 0; j < OUTPUTS; j++)
            if (t + (j + 1) * LANES <= num)
                store(row + t + j * LANES, y[j]);
            else if (t + j * LANES < num)
                store_first(row + t + j * LANES, y[j], num - t - j * LANES);
    }
}

ALWAYS void run_unit(const correlation *what, const plan *plan, const int64_t *lists, const float *weights,
                     const unit *at, float *scratch, int num_points) {
    float *values = scratch + plan->width;
    float *products = values + num_points * plan->values_point;
    evaluate_unit(what, plan, at, scratch, values, num_points);
    weights += at->group * num_points * plan->weights_point;
    for (int64_t o = at->begin, channels; o < at->end; o += channels) {
        channels = channels_at_once(at->end - o);
        for (int64_t point = 0; point < num_points; point++)
            multiply(what, plan, lists, values, weights, o, channels, at->vectors, point, products);
        for (int64_t c = 0; c < channels; c++) {
            int64_t channel = (at->sample * what->groups + at->group) * what->num_out + o + c;
            float bias = what->bias == NULL ? 0.0f : what->bias[at->group * what->num_out + o + c];
            float *row = what->out + channel * what->out_length + at->first;
            for (int64_t r = 0; r < at->rows; r++, row += what->groups * what->num_out * what->out_length)
                interpolate_row(plan, products + c * plan->products + r * plan->row, bias, what->relu, row, at->num,
                                num_points);
        }
    }
}

static void run_units(const correlation *what, const plan *plan, const int64_t *lists, const float *weights,
                      int64_t begin, int64_t end, int64_t splits, float *scratch) {
    for (int64_t number = begin; number < end; number++) {
        const unit at = unit_of(what, plan, number, splits);
        WITH_POINTS(plan->num_points, run_unit, what, plan, lists, weights, &at, scratch);
    }
}

/* Taps follow each other and outputs lie side by side, and there is enough of both for the detour: in multiply-adds of
 * an output, what is spared is more than evaluating costs, which the output channels share, interpolating, which the
 * input channels share, and evaluating the weights, which all outputs share. The factors are measured. */
int32_t LOCAL(toom_cook_is_faster)(const correlation *what) {
    int64_t num_points = points_for(what->num_taps);
    int64_t outputs = what->batch * what->num_outputs;
    if (what->step != 1 || what->out_step != 1 || what->num_taps < 3 || outputs < OUTPUTS * 2 * LANES)
        return 0;
    for (int64_t k = 2; k < what->num_taps; k++)
        if (what->place[k] - what->place[k - 1] != what->place[1] - what->place[0])
            return 0;
    double chunks = (double)chunks_for(what->num_taps, num_points);
    double products = chunks * num_points / OUTPUTS;
    return what->most_place - what->least_place == what->num_taps - 1 &&
           what->num_taps > 1.1 * products + 24.0 / what->num_out + 12.0 / what->num_in + 86.0 * chunks / outputs;
}

void LOCAL(toom_cook)(const correlation *what, int64_t threads, float *scratch) {
    const plan plan = plan_of(what, threads);
    int64_t *lists = (int64_t *)scratch; /* where chunks lie, in floats: of values, and of weights */
    int64_t units = what->groups * plan.num_units;
    int64_t blocks = what->groups * quotient_up(what->num_out, LANES);
    float *weights = scratch + in_lines(4 * plan.num_chunks);
    scratch = weights + what->groups * plan.num_points * plan.weights_point;
    for (int64_t chunk = 0; chunk < plan.num_chunks; chunk++)
        lists[chunk] = chunk, lists[plan.num_chunks + chunk] = chunk * LANES;
    int64_t splits = smaller(quotient_up(what->num_out, MOST_CHANNELS), quotient_up(threads, units));
    double tiles = (double)what->batch * plan.parts * plan.tiles * what->groups;
    double work = tiles * plan.num_points * plan.num_chunks * what->num_in * what->num_out;
    threads = threads_for(work, units * splits, threads);
    if (threads == 1) {
        evaluate_blocks(what, &plan, 0, blocks, weights, scratch);
        run_units(what, &plan, lists, weights, 0, units, 1, scratch);
        return;
    }
    int64_t each = greater(plan.scratch, taps_size(&plan));
    units *= splits;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t thread = 0; thread < threads; thread++)
            evaluate_blocks(what, &plan, blocks * thread / threads, blocks * (thread + 1) / threads, weights,
                            scratch + thread * each);
#pragma omp for schedule(static)
        for (int64_t thread = 0; thread < threads; thread++)
            run_units(what, &plan, lists, weights, units * thread / threads, units * (thread + 1) / threads, splits,
                      scratch + thread * each);
    }
}
