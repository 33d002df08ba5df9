/* The gradient of the weights: for each pair of channels and each tap, the dot product of a row of dy with a row of x
 * shifted by the tap.
 *
 *     rows of dy      columns: rows of x, each shifted by the taps
 *     dy 0 |====|     x 0 >> 0 |====|  x 0 >> 1 |====|  x 0 >> 2 |====|  x 1 >> 0 |====|
 *     dy 1 |====|     a block of rows times columns has one register of sums for each pair, while positions pass by;
 *     ...             its lanes are added up when a chunk is through
 *
 * A chunk is some pieces of positions of one sample, or of several samples where they are short, as much as stays in
 * the second cache. It is copied before, with zeros around, so that all rows are whole vectors and places a stride
 * apart lie side by side. Threads share out the pieces; each has sums of its own, added up at the end in their order,
 * so that a result depends on the number of threads but not on which was faster. */
#include "conv1d.h"

#if defined(__AVX512F__)
#define ROWS 4
#define COLUMNS 6
#elif defined(__AVX2__)
#define ROWS 3
#define COLUMNS 4
#else
#define ROWS 2
#define COLUMNS 4
#endif

#define CHUNK (1 << 17) /* floats */
#define MOST_PIECES 32

typedef struct {
    int64_t num_in, num_out, columns; /* channels of a group; columns of its dweight */
    int64_t size, in_sample;          /* positions of a piece, whole vectors; pieces of a sample */
    int64_t x_row, x_piece, dy_piece; /* floats */
    int64_t at_once;                  /* pieces of a chunk */
    int64_t scratch;                  /* floats of a thread, without its sums */
    int64_t sums;                     /* floats of dweight and dbias */
} plan;

static plan plan_of(const conv1d_shape *shape) {
    plan made = {.num_in = shape->in_channels / shape->groups, .num_out = shape->out_channels / shape->groups};
    int64_t out_length = out_length_of(shape), rows = made.num_in * shape->stride + made.num_out;
    int64_t most = greater(8 * LANES, CHUNK / rows / LANES * LANES);
    made.columns = made.num_in * shape->kernel_size;
    made.in_sample = quotient_up(out_length, most);
    made.size = quotient_up(quotient_up(out_length, made.in_sample), LANES) * LANES;
    made.in_sample = quotient_up(out_length, made.size);
    made.x_row = in_lines(made.size + (shape->kernel_size - 1) * shape->dilation / shape->stride + 1);
    made.x_piece = made.num_in * shape->stride * made.x_row;
    made.dy_piece = made.num_out * made.size;
    made.at_once = greater(1, smaller(MOST_PIECES, CHUNK / (made.x_piece + made.dy_piece)));
    made.scratch = in_lines(made.at_once * (made.x_piece + made.dy_piece));
    made.sums = in_lines(shape->out_channels * (made.columns + 1));
    return made;
}

/* Some rows of dy times some columns, over the pieces of a chunk. */
typedef struct {
    const float *dy[ROWS], *x[COLUMNS];
    int64_t dy_piece, x_piece, num_pieces, size;
    float *sums[ROWS];
} block;

ALWAYS void block_of(const block *restrict of, int rows, int columns) {
    vfloat sum[ROWS][COLUMNS] = {0};
    for (int64_t piece = 0; piece < of->num_pieces; piece++) {
        const float *dy[ROWS], *x[COLUMNS];
        for (int r = 0; r < rows; r++) dy[r] = of->dy[r] + piece * of->dy_piece;
        for (int c = 0; c < columns; c++) x[c] = of->x[c] + piece * of->x_piece;
        for (int64_t t = 0; t < of->size; t += LANES) {
            vfloat row[ROWS];
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) row[r] = load(dy[r] + t);
#pragma GCC unroll 6
            for (int c = 0; c < columns; c++) {
                vfloat column = load(x[c] + t);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) sum[r][c] += row[r] * column;
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) of->sums[r][c] += sum_of_lanes(sum[r][c]);
}

#define BLOCK(rows, columns)                                                                                           \
    static void block_##rows##_##columns(const block *of) { block_of(of, rows, columns); }
#define BLOCKS(rows) BLOCK(rows, 1) BLOCK(rows, 2) BLOCK(rows, 3) BLOCK(rows, 4)
#if COLUMNS == 6
#define MORE_BLOCKS(rows) BLOCKS(rows) BLOCK(rows, 5) BLOCK(rows, 6)
#define NAMES(rows) {block_##rows##_1, block_##rows##_2, block_##rows##_3, block_##rows##_4, block_##rows##_5, block_##rows##_6}
#else
#define MORE_BLOCKS(rows) BLOCKS(rows)
#define NAMES(rows) {block_##rows##_1, block_##rows##_2, block_##rows##_3, block_##rows##_4}
#endif
MORE_BLOCKS(1)
MORE_BLOCKS(2)
#if ROWS > 2
MORE_BLOCKS(3)
#endif
#if ROWS > 3
MORE_BLOCKS(4)
#endif

static void (*const functions[ROWS][COLUMNS])(const block *) = {
    NAMES(1),
    NAMES(2),
#if ROWS > 2
    NAMES(3),
#endif
#if ROWS > 3
    NAMES(4),
#endif
};

static float sum_of_row(const float *row, int64_t size) {
    vfloat sum = {0};
    for (int64_t t = 0; t < size; t += LANES) sum += load(row + t);
    return sum_of_lanes(sum);
}

/* Copies piece `piece` of group `group`, and adds its part of the gradient of the bias. */
static void copy_piece(const conv1d_shape *shape, const plan *plan, const float *x, const float *dy, int64_t group,
                       int64_t piece, float *x_to, float *dy_to, float *dbias) {
    int64_t sample = piece / plan->in_sample, first = piece % plan->in_sample * plan->size;
    int64_t out_length = out_length_of(shape), stride = shape->stride;
    for (int64_t i = 0; i < plan->num_in; i++)
        for (int64_t phase = 0; phase < stride; phase++)
            copy_window(x + (sample * shape->in_channels + group * plan->num_in + i) * shape->length, shape->length,
                        first * stride - shape->padding + phase, stride, plan->x_row,
                        x_to + (i * stride + phase) * plan->x_row);
    for (int64_t o = 0; o < plan->num_out; o++) {
        int64_t channel = group * plan->num_out + o;
        float *to = dy_to + o * plan->size;
        copy_window(dy + (sample * shape->out_channels + channel) * out_length, out_length, first, 1, plan->size, to);
        dbias[channel] += sum_of_row(to, plan->size);
    }
}

/* All blocks of one group over the chunk in `scratch`. */
static void add_chunk(const conv1d_shape *shape, const plan *plan, int64_t num_pieces, const float *scratch,
                      float *sums) {
    const float *x = scratch, *dy = scratch + plan->at_once * plan->x_piece;
    block of = {.dy_piece = plan->dy_piece, .x_piece = plan->x_piece, .num_pieces = num_pieces, .size = plan->size};
    for (int64_t column = 0, columns; column < plan->columns; column += columns) {
        columns = smaller(COLUMNS, plan->columns - column);
        for (int64_t c = 0; c < columns; c++) {
            int64_t in = (column + c) / shape->kernel_size, place = (column + c) % shape->kernel_size * shape->dilation;
            of.x[c] = x + (in * shape->stride + place % shape->stride) * plan->x_row + place / shape->stride;
        }
        for (int64_t o = 0, rows; o < plan->num_out; o += rows) {
            rows = smaller(ROWS, plan->num_out - o);
            for (int64_t r = 0; r < rows; r++) {
                of.dy[r] = dy + (o + r) * plan->size;
                of.sums[r] = sums + (o + r) * plan->columns + column;
            }
            functions[rows - 1][columns - 1](&of);
        }
    }
}

/* dweight and dbias, side by side in `sums`, of a share of the pieces. */
static void sum_pieces(const conv1d_shape *shape, const plan *plan, const float *x, const float *dy, int64_t begin,
                       int64_t end, float *scratch, float *sums) {
    float *dbias = sums + shape->out_channels * plan->columns;
    memset(sums, 0, (size_t)(shape->out_channels * (plan->columns + 1)) * sizeof *sums);
    for (int64_t first = begin, num; first < end; first += num) {
        num = smaller(plan->at_once, end - first);
        for (int64_t group = 0; group < shape->groups; group++) {
            for (int64_t piece = 0; piece < num; piece++)
                copy_piece(shape, plan, x, dy, group, first + piece, scratch + piece * plan->x_piece,
                           scratch + plan->at_once * plan->x_piece + piece * plan->dy_piece, dbias);
            add_chunk(shape, plan, num, scratch, sums + group * plan->num_out * plan->columns);
        }
    }
}

int64_t LOCAL(weight_gradient_scratch)(const conv1d_shape *shape, int64_t threads) {
    const plan plan = plan_of(shape);
    return threads * (plan.scratch + plan.sums);
}

void LOCAL(weight_gradient)(const conv1d_shape *shape, const float *x, const float *dy, float *dweight, float *dbias,
                            int64_t threads, float *scratch) {
    const plan plan = plan_of(shape);
    int64_t pieces = shape->batch * plan.in_sample, weights = shape->out_channels * plan.columns;
    threads = threads_for((double)pieces * plan.size * weights, pieces, threads);
    float *sums = scratch, *copies = scratch + threads * plan.sums;
    if (threads == 1)
        sum_pieces(shape, &plan, x, dy, 0, pieces, copies, sums);
    else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t thread = 0; thread < threads; thread++)
            sum_pieces(shape, &plan, x, dy, pieces * thread / threads, pieces * (thread + 1) / threads,
                       copies + thread * plan.scratch, sums + thread * plan.sums);
    }
    for (int64_t thread = 1; thread < threads; thread++)
        for (int64_t i = 0; i < weights + shape->out_channels; i++) sums[i] += sums[thread * plan.sums + i];
    memcpy(dweight, sums, (size_t)weights * sizeof *dweight);
    if (dbias != NULL)
        memcpy(dbias, sums + weights, (size_t)shape->out_channels * sizeof *dbias);
}
