/* The gradient of wide weights with fewer multiplications. What Toom and Cook's way computes from weights is linear, so
 * its transpose computes their gradient from that of the output, with the same points and the same saving:
 *
 *     lanes        channels: rows of x, and of dy, are turned so that a vector holds one place of LANES channels
 *     evaluate     each tile of x at the points, and the four outputs of dy as the polynomial that they are:
 *                  x_values[point][block of channels][tile], dy_values[point][block of channels][tile]
 *     multiply     at each point the outer products of x and dy, summed over tiles, pieces and samples:
 *                  sums[point][chunk][in][out]; chunk s sees the values of x of s tiles later
 *     interpolate  once, at the end: the taps from sums at the points
 *
 * A piece is some tiles of one sample, as many as stay in the second cache. Threads share out the pieces; each has sums
 * of its own, added up at the end in their order. */
#include "conv1d_toom_cook.h"
#include "transpose.h"

#if defined(__AVX512F__)
#define ROWS 8
#else
#define ROWS 4
#endif
#define COLUMNS 2 /* vectors */

#define MOST_VALUES (3 << 16) /* floats */

typedef struct {
    int64_t num_points, num_chunks, num_in, num_out; /* channels of a group */
    int64_t in_blocks, out_blocks;                   /* of LANES channels */
    int64_t tiles, in_tiles, in_sample;              /* of a piece: tiles of dy and of x; pieces of a sample */
    int64_t width;                                   /* places of x that a piece reads */
    int64_t x_values, dy_values;                     /* floats of one point */
    int64_t point_sums, sums;                        /* of one point; of a thread, with the bias */
    int64_t scratch;                                 /* of a thread, without its sums */
} plan;

static plan plan_of(const conv1d_shape *shape) {
    plan made = {.num_points = points_for(shape->kernel_size), .num_in = shape->in_channels / shape->groups,
                 .num_out = shape->out_channels / shape->groups};
    int64_t tiles = quotient_up(out_length_of(shape), OUTPUTS);
    made.num_chunks = chunks_for(shape->kernel_size, made.num_points);
    made.in_blocks = quotient_up(made.num_in, LANES), made.out_blocks = quotient_up(made.num_out, LANES);
    int64_t most = MOST_VALUES / (made.num_points * (made.in_blocks + made.out_blocks) * LANES);
    made.in_sample = quotient_up(tiles, greater(most, 8));
    made.tiles = quotient_up(tiles, made.in_sample);
    made.in_sample = quotient_up(tiles, made.tiles);
    made.in_tiles = made.tiles + made.num_chunks - 1;
    made.width = OUTPUTS * (made.in_tiles + 1); /* the last tile reaches into the next */
    made.x_values = (made.in_blocks * made.in_tiles + 1) * LANES;
    made.dy_values = (made.out_blocks * made.tiles + 1) * LANES;
    made.point_sums = made.num_chunks * made.in_blocks * made.out_blocks * LANES * LANES;
    made.sums = in_lines(shape->groups * made.num_points * made.point_sums + shape->out_channels);
    made.scratch = 2 * LANES * made.width + made.num_points * (made.x_values + made.dy_values);
    return made;
}

/* Turns LANES rows, `row` floats apart and zero around, from place `first` on; of fewer, the last is repeated. */
static void read_block(const float *from, const float *gate, int64_t row, int64_t num_rows, int64_t first,
                       int64_t width, float *windows, float *turned) {
    const float *rows[LANES];
    int64_t inside = gate == NULL && first >= 0 && first + width <= row;
    for (int64_t lane = 0; lane < LANES; lane++) {
        int64_t place = smaller(lane, num_rows - 1) * row;
        rows[lane] = inside ? from + place + first : windows + lane * width;
        if (!inside)
            copy_window(from + place, gate_at(gate, place), row, first, 1, width, windows + lane * width);
    }
    for (int64_t t = 0; t < width; t += 4) load_turned(rows, t, turned + t * LANES);
}

/* Values at the points of the polynomial whose coefficients are four outputs. */
ALWAYS void evaluate_outputs(const float *from, float *to, int64_t point, int num_points) {
    vfloat y0 = load(from), y1 = load(from + LANES), y2 = load(from + 2 * LANES), y3 = load(from + 3 * LANES);
    vfloat even1 = y0 + y2, odd1 = y1 + y3, even2 = y0 + 4 * y2, odd2 = 2 * y1 + 8 * y3;
    store(to, y0);
    store(to + point, even1 + odd1);
    store(to + 2 * point, even1 - odd1);
    store(to + 3 * point, even2 + odd2);
    store(to + 4 * point, even2 - odd2);
    vfloat even = y0 + 0.25f * y2, odd = 0.5f * y1 + 0.125f * y3;
    if (num_points > 6)
        store(to + 5 * point, even + odd);
    if (num_points > 7)
        store(to + 6 * point, even - odd);
    store(to + (num_points - 1) * point, y3);
}

/* sums[r][v] += sum over tiles of left[r] * right[v]: ROWS channels of x, LANES or two times LANES of dy. */
ALWAYS void outer(const float *left, const float *right, int64_t right_column, int64_t tiles, float *sums, int64_t row,
                  int columns) {
    vfloat sum[ROWS][COLUMNS] = {0};
    for (int64_t tile = 0; tile < tiles; tile++) {
        vfloat dy[COLUMNS];
#pragma GCC unroll 2
        for (int c = 0; c < columns; c++) dy[c] = load(right + c * right_column + tile * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            float x = left[tile * LANES + r];
#pragma GCC unroll 2
            for (int c = 0; c < columns; c++) sum[r][c] += x * dy[c];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int c = 0; c < columns; c++) {
            float *at = sums + r * row + c * LANES;
            store(at, load(at) + sum[r][c]);
        }
}

/* Adds the products of a piece at one point. */
static void multiply(const conv1d_shape *shape, const plan *plan, int64_t point, const float *x_values,
                     const float *dy_values, float *sums) {
    int64_t first, end, row = plan->out_blocks * LANES;
    chunks_at(point, shape->kernel_size, plan->num_points, &first, &end);
    for (int64_t out = 0; out < plan->out_blocks; out += COLUMNS) {
        const float *right = dy_values + out * plan->tiles * LANES;
        for (int64_t chunk = first; chunk < end; chunk++)
            for (int64_t in = 0; in < plan->num_in; in += ROWS) {
                const float *left = x_values + (in / LANES * plan->in_tiles + chunk) * LANES + in % LANES;
                float *to = sums + (chunk * plan->in_blocks * LANES + in) * row + out * LANES;
                if (out + COLUMNS <= plan->out_blocks)
                    outer(left, right, plan->tiles * LANES, plan->tiles, to, row, COLUMNS);
                else
                    outer(left, right, plan->tiles * LANES, plan->tiles, to, row, 1);
            }
    }
}

/* Adds one piece of one group. */
ALWAYS void add_piece(const conv1d_shape *shape, const plan *plan, const float *x, const float *dy, const float *gate,
                      int64_t group, int64_t piece, float *scratch, float *sums, float *dbias, int num_points) {
    float *windows = scratch, *turned = windows + LANES * plan->width;
    float *x_values = turned + LANES * plan->width;
    float *dy_values = x_values + num_points * plan->x_values;
    int64_t sample = piece / plan->in_sample;
    int64_t first = piece % plan->in_sample * plan->tiles * OUTPUTS;
    int64_t out_length = out_length_of(shape);
    for (int64_t block = 0, in = 0; block < plan->in_blocks; block++, in += LANES) {
        const float *from = x + (sample * shape->in_channels + group * plan->num_in + in) * shape->length;
        read_block(from, NULL, shape->length, plan->num_in - in, first - shape->padding, plan->width, windows, turned);
        float *to = x_values + block * plan->in_tiles * LANES;
        for (int64_t tile = 0; tile < plan->in_tiles; tile++) {
            vfloat places[MOST_POINTS];
#pragma GCC unroll 8
            for (int i = 0; i < num_points; i++) places[i] = load(turned + (tile * OUTPUTS + i) * LANES);
            evaluate(places, to + tile * LANES, plan->x_values, num_points);
        }
    }
    for (int64_t block = 0, out = 0; block < plan->out_blocks; block++, out += LANES) {
        int64_t channel = group * plan->num_out + out;
        int64_t channels = smaller(LANES, plan->num_out - out);
        int64_t place = (sample * shape->out_channels + channel) * out_length;
        read_block(dy + place, gate_at(gate, place), out_length, channels, first, plan->tiles * OUTPUTS, windows,
                   turned);
        float *to = dy_values + block * plan->tiles * LANES;
        for (int64_t tile = 0; tile < plan->tiles; tile++)
            evaluate_outputs(turned + tile * OUTPUTS * LANES, to + tile * LANES, plan->dy_values, num_points);
        vfloat sum = {0};
        for (int64_t t = 0; t < plan->tiles * OUTPUTS; t++) sum += load(turned + t * LANES);
        store_first(dbias + channel, sum + load_first(dbias + channel, channels), channels);
    }
    for (int64_t point = 0; point < num_points; point++)
        multiply(shape, plan, point, x_values + point * plan->x_values, dy_values + point * plan->dy_values,
                 sums + (group * num_points + point) * plan->point_sums);
}

/* Sums at the points, and dbias behind them, of a share of the pieces. */
static void sum_pieces(const conv1d_shape *shape, const plan *plan, const float *x, const float *dy, const float *gate,
                       int64_t begin, int64_t end, float *scratch, float *sums) {
    float *dbias = sums + shape->groups * plan->num_points * plan->point_sums;
    memset(sums, 0, (size_t)plan->sums * sizeof *sums);
    for (int64_t piece = begin; piece < end; piece++)
        for (int64_t group = 0; group < shape->groups; group++)
            WITH_POINTS(plan->num_points, add_piece, shape, plan, x, dy, gate, group, piece, scratch, sums, dbias);
}

/* The taps of one group from its sums, LANES output channels at once. */
static void interpolate(const conv1d_shape *shape, const plan *plan, const float *sums, float *dweight) {
    float matrix[MOST_POINTS][MOST_TAPS];
    int64_t taps = taps_of(plan->num_points);
    int64_t rows = plan->in_blocks * LANES;
    int64_t columns = plan->out_blocks * LANES;
    filter_matrix(plan->num_points, matrix);
    for (int64_t chunk = 0; chunk < plan->num_chunks; chunk++)
        for (int64_t in = 0; in < plan->num_in; in++)
            for (int64_t out = 0; out < plan->num_out; out += LANES) {
                const float *from = sums + (chunk * rows + in) * columns + out;
                int64_t first = chunk * OUTPUTS;
                int64_t is_last = chunk == plan->num_chunks - 1;
                int64_t num = smaller(is_last ? taps : OUTPUTS, shape->kernel_size - first);
                for (int64_t k = 0; k < num; k++) {
                    vfloat tap = {0};
                    for (int64_t point = 0; point < plan->num_points; point++)
                        tap += matrix[point][k] * load(from + point * plan->point_sums);
                    for (int64_t lane = 0; lane < smaller(LANES, plan->num_out - out); lane++)
                        dweight[((out + lane) * plan->num_in + in) * shape->kernel_size + first + k] = tap[lane];
                }
            }
}

/* As for the forward pass; channels count as the blocks that they fill, and the direct way is less good here. */
int32_t LOCAL(toom_cook_weight_gradient_is_faster)(const conv1d_shape *shape) {
    if (shape->stride > 1 || shape->dilation > 1 || shape->kernel_size < 3)
        return 0;
    double num_in = (double)shape->in_channels / shape->groups;
    double num_out = (double)shape->out_channels / shape->groups;
    double in_filled = quotient_up((int64_t)num_in, LANES) * LANES / num_in;
    double out_filled = quotient_up((int64_t)num_out, LANES) * LANES / num_out;
    double rows_filled = quotient_up((int64_t)num_in, ROWS) * ROWS / num_in;
    int64_t num_points = points_for(shape->kernel_size);
    double products = (double)chunks_for(shape->kernel_size, num_points) * num_points / OUTPUTS;
    return 1.8 * shape->kernel_size >
           1.1 * products * rows_filled * out_filled + 24.0 * (in_filled / num_out + out_filled / num_in);
}

int64_t LOCAL(toom_cook_weight_gradient_scratch)(const conv1d_shape *shape, int64_t threads) {
    const plan plan = plan_of(shape);
    return threads * (plan.scratch + plan.sums);
}

void LOCAL(toom_cook_weight_gradient)(const conv1d_shape *shape, const float *x, const float *dy, const float *gate,
                                      float *dweight, float *dbias, int64_t threads, float *scratch) {
    const plan plan = plan_of(shape);
    int64_t pieces = shape->batch * plan.in_sample;
    int64_t of_group = plan.num_points * plan.point_sums;
    threads = threads_for((double)pieces * plan.tiles * shape->groups * of_group, pieces, threads);
    float *sums = scratch, *copies = scratch + threads * plan.sums;
    if (threads == 1)
        sum_pieces(shape, &plan, x, dy, gate, 0, pieces, copies, sums);
    else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t thread = 0; thread < threads; thread++)
            sum_pieces(shape, &plan, x, dy, gate, pieces * thread / threads, pieces * (thread + 1) / threads,
                       copies + thread * plan.scratch, sums + thread * plan.sums);
    }
    for (int64_t thread = 1; thread < threads; thread++)
        for (int64_t i = 0; i < plan.sums; i += LANES)
            store(sums + i, load(sums + i) + load(sums + thread * plan.sums + i));
    for (int64_t group = 0; group < shape->groups; group++)
        interpolate(shape, &plan, sums + group * of_group,
                    dweight + group * plan.num_out * plan.num_in * shape->kernel_size);
    if (dbias != NULL)
        memcpy(dbias, sums + shape->groups * of_group, (size_t)shape->out_channels * sizeof *dbias);
}
