/* Convolution with fewer multiplications: four outputs of r taps are a product of polynomials, and a product of
 * polynomials is known from its values at r + 3 points (Toom 1963, Cook 1966; Winograd 1980 for filters). So each input
 * row is evaluated at the points, the weights too, and what was a sum of 4 r products is one of r + 3.
 *
 *     lanes        LANES stretches of outputs, each of `size` places, of one sample or of several; a vector holds one
 *                  place of all, so that neighbours in time are neighbouring vectors and no lane ever talks to another
 *     read         rows of the source are turned into such vectors, zeros around them
 *     evaluate     tile p, the vectors 4 p to 4 p + r + 2, becomes its values at the points:   values[point][in][p]
 *     multiply     at each point, weights times values, summed over input channels:            product[point][out][p]
 *     interpolate  the values of four outputs from products at the points, plus bias, positive part
 *     write        vectors are turned back into rows
 *
 * More than r taps are cut into chunks of four, so that a chunk's values are those of the next tile:
 * product[p] = sum over chunks s of weights[s] * values[p + s]. The last chunk may have five taps. */
#include "conv1d_tile.h"
#include "conv1d_toom_cook.h"
#include "transpose.h"

#define MOST_VALUES (1 << 18) /* floats */
#define MOST_SIZE 60
#define LINE 16 /* floats of a cache line */

typedef struct {
    int64_t num_points, most_taps, num_chunks; /* taps of the last chunk, at most */
    int64_t size, in_row, num_stretches;       /* places of a stretch; stretches of a row, and in all */
    int64_t num_units;                         /* of LANES stretches of one group */
    int64_t tiles, in_tiles, width;            /* of a stretch: tiles of outputs and of values, places read */
    int64_t values, products, weights;         /* floats of one point */
    int64_t scratch;                           /* floats of a thread */
} plan;

static void set_size(plan *made, const correlation *what, int64_t size) {
    made->size = size;
    made->tiles = size / OUTPUTS;
    made->in_tiles = made->tiles + made->num_chunks - 1;
    made->width = OUTPUTS * quotient_up(OUTPUTS * (made->in_tiles - 1) + made->num_points, OUTPUTS);
    made->in_row = quotient_up(what->num_outputs, size);
    made->num_stretches = what->batch * made->in_row;
    made->num_units = quotient_up(made->num_stretches, LANES);
    made->values = (what->num_in * made->in_tiles + 1) * LANES;
    made->products = (MOST_CHANNELS * made->tiles + 1) * LANES;
}

/* About how many cycles a plan takes, as measured with AVX-512: reading and evaluating, interpolating and writing, and
 * products of blocks of output channels and vectors of tiles, of which narrow ones keep the processor less busy. */
static double cost_of(const plan *made, const correlation *what) {
    int64_t most = vectors_beside(channels_at_once(what->num_out)), rest = made->tiles % most;
    double reads = (double)what->num_in * (made->width * 4.0 + made->in_tiles * made->num_points * 2.5);
    double writes = (double)what->num_out * made->tiles * (16.0 + made->num_points * 2.0);
    double blocks = (double)quotient_up(what->num_out, MOST_CHANNELS) * made->num_points;
    double columns = (double)(made->tiles / most * most) + (rest > 0 ? rest + 0.7 : 0);
    double products = blocks * columns * (what->num_in * made->num_chunks * 4.4 + 10.0);
    return made->num_units * (reads + writes + products);
}

/* The stretches that cost least: short ones fit rows of any length, long ones read little twice. */
static plan plan_of(const correlation *what) {
    plan made = {.num_points = points_for(what->num_taps)}, best = {0};
    made.most_taps = taps_of(made.num_points);
    made.num_chunks = chunks_for(what->num_taps, made.num_points);
    double least = 0;
    for (int64_t size = OUTPUTS; size <= MOST_SIZE; size += OUTPUTS) {
        set_size(&made, what, size);
        double cost = cost_of(&made, what);
        if (best.size > 0 && (cost >= least || made.num_points * made.values > MOST_VALUES))
            continue;
        least = cost;
        best = made;
    }
    best.weights = in_lines(quotient_up(what->num_out, LANES) * LANES * what->num_in * best.num_chunks);
    best.scratch = 2 * LANES * best.width + best.num_points * (best.values + best.products);
    return best;
}

int64_t LOCAL(toom_cook_scratch)(const correlation *what, int64_t threads) {
    const plan plan = plan_of(what);
    return what->groups * plan.num_points * plan.weights + in_lines(2 * plan.num_chunks) +
           threads * greater(plan.scratch, (OUTPUTS * plan.num_chunks + 1) * LANES);
}

/* The weights of up to LANES output channels for one input channel, turned: taps[k] is a vector of channels, from the
 * earliest place on, and zero where a chunk ends early. Rows are read four taps at a time unless that would reach
 * beyond `end`. */
static void read_taps(const correlation *what, const plan *plan, const float *from, int64_t channels, const float *end,
                      float *taps) {
    const float *rows[LANES];
    int64_t num = what->num_taps, descends = num > 1 && what->place[0] > what->place[1];
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
    memset(taps + num * LANES, 0, (size_t)((OUTPUTS * plan->num_chunks + 1 - num) * LANES) * sizeof *taps);
}

/* Values of the weights of a group, [point][LANES output channels][in][chunk][channel]. */
ALWAYS void evaluate_weights(const correlation *what, const plan *plan, const float *weight, float *taps, float *to,
                             int num_points) {
    float matrix[MOST_POINTS][MOST_TAPS];
    const float *end = what->weight + what->groups * what->weight_group;
    filter_matrix(num_points, matrix);
    for (int64_t o = 0; o < what->num_out; o += LANES)
        for (int64_t i = 0; i < what->num_in; i++) {
            read_taps(what, plan, weight + o * what->weight_out + i * what->weight_in, what->num_out - o, end, taps);
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
                    store(to + point * plan->weights, sum);
                }
            }
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

/* Where the stretches of a unit lie: their samples, the first of their outputs, how many of these there are. */
typedef struct {
    int64_t sample[LANES], first[LANES], num[LANES], least;
} stretches;

static stretches stretches_of(const correlation *what, const plan *plan, int64_t unit) {
    stretches made = {.least = plan->size};
    for (int64_t lane = 0; lane < LANES; lane++) {
        int64_t stretch = unit * LANES + lane, exists = stretch < plan->num_stretches;
        stretch = exists ? stretch : plan->num_stretches - 1;
        made.sample[lane] = stretch / plan->in_row;
        made.first[lane] = stretch % plan->in_row * plan->size;
        made.num[lane] = exists ? smaller(plan->size, what->num_outputs - made.first[lane]) : 0;
        made.least = smaller(made.least, made.num[lane]);
    }
    return made;
}

/* Reads and evaluates all input channels of a unit. The rows of the next channel are fetched meanwhile, since the
 * processor does not see so many streams coming. */
ALWAYS void evaluate_unit(const correlation *what, const plan *plan, const stretches *at, int64_t group,
                          float *windows, float *turned, float *values, int num_points) {
    const float *rows[LANES], *from[LANES];
    int64_t begin[LANES];
    for (int64_t lane = 0; lane < LANES; lane++) {
        begin[lane] = what->origin + what->least_place + at->first[lane];
        from[lane] = what->source + (at->sample[lane] * what->groups + group) * what->num_in * what->source_length;
    }
    for (int64_t i = 0; i < what->num_in; i++) {
        for (int64_t lane = 0; lane < LANES; lane++, from[lane - 1] += what->source_length) {
            rows[lane] = from[lane] + begin[lane];
            if (begin[lane] >= 0 && begin[lane] + plan->width <= what->source_length)
                continue;
            copy_window(from[lane], what->source_length, begin[lane], 1, plan->width, windows + lane * plan->width);
            rows[lane] = windows + lane * plan->width;
        }
        for (int64_t t = 0; t < plan->width; t += 4) {
            if (t % LINE == 0)
                for (int64_t lane = 0; lane < LANES; lane++) __builtin_prefetch(from[lane] + begin[lane] + t);
            load_turned(rows, t, turned + t * LANES);
        }
        float *to = values + i * plan->in_tiles * LANES;
        for (int64_t p = 0; p < plan->in_tiles; p++)
            evaluate(turned + p * OUTPUTS * LANES, to + p * LANES, plan->values, num_points);
    }
}

/* Products at one point of a block of output channels from `o` on. */
static void multiply(const correlation *what, const plan *plan, const int64_t *chunks, const float *values,
                     const float *weights, int64_t o, int64_t channels, int64_t point, float *products) {
    int64_t most = vectors_beside(channels), first, end;
    chunks_at(point, what->num_taps, plan->num_points, &first, &end);
    int64_t block = o / LANES * plan->num_chunks * what->num_in * LANES + o % LANES;
    tile of = {.x_in = plan->in_tiles * LANES, .weight = weights + point * plan->weights + block, .weight_out = 1,
               .weight_in = plan->num_chunks * LANES, .x_tap = chunks + first, .weight_tap = chunks + first,
               .num_in = what->num_in, .num_taps = end - first,
               .out_row = plan->tiles * LANES, .last = LANES};
    for (int64_t p = 0, vectors; p < plan->tiles; p += vectors) {
        vectors = smaller(most, plan->tiles - p);
        of.x = values + point * plan->values + p * LANES;
        of.out = products + point * plan->products + p * LANES;
        run_tile(&of, channels, vectors);
    }
}

/* Interpolates and writes one output channel of a unit; that of the next, `next` floats on, is fetched. */
ALWAYS void interpolate_row(const plan *plan, const stretches *at, const float *products, float bias, int32_t relu,
                            float *const *rows, int64_t next, int num_points) {
    for (int64_t p = 0; p < plan->tiles; p++) {
        vfloat y[OUTPUTS];
        interpolate(products + p * LANES, plan->products, num_points, y);
#pragma GCC unroll 4
        for (int j = 0; j < OUTPUTS; j++) {
            y[j] += bias;
            y[j] = relu ? larger(y[j], (vfloat){0}) : y[j];
        }
        int64_t t = p * OUTPUTS;
        if (t % LINE == 0)
            for (int64_t lane = 0; lane < LANES; lane++) __builtin_prefetch(rows[lane] + next + t, 1);
        if (t + OUTPUTS <= at->least) {
            store_turned(y, rows, t);
            continue;
        }
        for (int64_t lane = 0; lane < LANES; lane++)
            for (int64_t j = 0; j < smaller(OUTPUTS, at->num[lane] - t); j++) rows[lane][t + j] = y[j][lane];
    }
}

ALWAYS void run_unit(const correlation *what, const plan *plan, const int64_t *chunks, const float *weights,
                     int64_t unit, float *scratch, int num_points) {
    int64_t group = unit / plan->num_units;
    const stretches at = stretches_of(what, plan, unit % plan->num_units);
    float *windows = scratch, *turned = windows + LANES * plan->width, *values = turned + LANES * plan->width;
    float *products = values + num_points * plan->values;
    evaluate_unit(what, plan, &at, group, windows, turned, values, num_points);
    weights += group * num_points * plan->weights;
    for (int64_t o = 0, channels; o < what->num_out; o += channels) {
        channels = channels_at_once(what->num_out - o);
        for (int64_t point = 0; point < num_points; point++)
            multiply(what, plan, chunks, values, weights, o, channels, point, products);
        for (int64_t c = 0; c < channels; c++) {
            float *rows[LANES];
            for (int64_t lane = 0; lane < LANES; lane++)
                rows[lane] = what->out + at.first[lane] + what->out_length *
                             ((at.sample[lane] * what->groups + group) * what->num_out + o + c);
            float bias = what->bias == NULL ? 0.0f : what->bias[group * what->num_out + o + c];
            interpolate_row(plan, &at, products + c * plan->tiles * LANES, bias, what->relu, rows,
                            what->out_length, num_points);
        }
    }
}

static void run_units(const correlation *what, const plan *plan, const int64_t *chunks, const float *weights,
                      int64_t begin, int64_t end, float *scratch) {
    for (int64_t unit = begin; unit < end; unit++)
        if (plan->num_points == 6)
            run_unit(what, plan, chunks, weights, unit, scratch, 6);
        else if (plan->num_points == 7)
            run_unit(what, plan, chunks, weights, unit, scratch, 7);
        else
            run_unit(what, plan, chunks, weights, unit, scratch, 8);
}

/* Taps follow each other and outputs lie side by side, and there is enough of both for the detour: in multiply-adds of
 * an output, what is spared is more than evaluating costs, which the output channels share, interpolating, which the
 * input channels share, and evaluating the weights, which all outputs share. The factors are measured. */
int32_t LOCAL(toom_cook_is_faster)(const correlation *what) {
    int64_t num_points = points_for(what->num_taps), outputs = what->batch * what->num_outputs;
    if (what->step != 1 || what->out_step != 1 || what->num_taps < 3 || outputs < OUTPUTS * 2 * LANES)
        return 0;
    for (int64_t k = 2; k < what->num_taps; k++)
        if (what->place[k] - what->place[k - 1] != what->place[1] - what->place[0])
            return 0;
    double chunks = (double)chunks_for(what->num_taps, num_points), products = chunks * num_points / OUTPUTS;
    return what->most_place - what->least_place == what->num_taps - 1 &&
           what->num_taps > 1.1 * products + 24.0 / what->num_out + 12.0 / what->num_in + 86.0 * chunks / outputs;
}

void LOCAL(toom_cook)(const correlation *what, int64_t threads, float *scratch) {
    const plan plan = plan_of(what);
    int64_t *chunks = (int64_t *)scratch, units = what->groups * plan.num_units; /* where chunks lie, in floats */
    float *weights = scratch + in_lines(2 * plan.num_chunks);
    scratch = weights + what->groups * plan.num_points * plan.weights;
    for (int64_t chunk = 0; chunk < plan.num_chunks; chunk++) chunks[chunk] = chunk * LANES;
    for (int64_t group = 0; group < what->groups; group++) {
        const float *from = what->weight + group * what->weight_group;
        float *to = weights + group * plan.num_points * plan.weights;
        if (plan.num_points == 6)
            evaluate_weights(what, &plan, from, scratch, to, 6);
        else if (plan.num_points == 7)
            evaluate_weights(what, &plan, from, scratch, to, 7);
        else
            evaluate_weights(what, &plan, from, scratch, to, 8);
    }
    double work = (double)units * plan.num_points * plan.num_chunks * plan.tiles * LANES * what->num_in * what->num_out;
    threads = threads_for(work, units, threads);
    if (threads == 1) {
        run_units(what, &plan, chunks, weights, 0, units, scratch);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t thread = 0; thread < threads; thread++)
        run_units(what, &plan, chunks, weights, units * thread / threads, units * (thread + 1) / threads,
                  scratch + thread * plan.scratch);
}
