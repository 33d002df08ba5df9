/* The gradient of the weights: for each pair of channels and each tap, the dot product of a row of dy with a row of x
 * shifted by the tap.
 *
 *     rows of dy      columns: rows of x, each shifted by the taps
 *     dy 0 |====|     x 0 >> 0 |====|  x 0 >> 1 |====|  x 0 >> 2 |====|  x 1 >> 0 |====|
 *     dy 1 |====|     a block of rows times columns has one register of sums for each pair, while positions pass by;
 *     ...             its lanes are added up when a chunk is through
 *
 * A chunk is a piece of the positions of one sample, or several short samples, as much as stays in the second cache.
 * Its rows of x are copied before, with zeros around, so that places a stride apart lie side by side; dy is read where
 * it stands, or copied through the gate. All columns pass by the same rows of dy before the next rows come. The bias is the weight of a row of
 * ones, the last column. Threads share out the pieces; each has sums of its own, added up at the end in their order, so
 * that a result depends on the number of threads but not on which was faster. */
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
#define MOST_SIZE 2048  /* with which ROWS rows stay in the first cache */
#define MOST_PIECES 32

typedef struct {
    int64_t num_in, num_out, columns; /* channels of a group; columns, one for the bias */
    int64_t size, in_sample;          /* positions of a piece, whole vectors; pieces of a sample */
    int64_t x_row, x_piece;           /* floats */
    int64_t dy_row, dy_piece;         /* of copies through the gate */
    int64_t at_once;                  /* pieces of a chunk, of as many samples */
    int64_t scratch;                  /* floats of a thread, without its sums */
    int64_t sums;                     /* floats of dweight and dbias */
} plan;

static plan plan_of(const conv1d_shape *shape) {
    plan made = {.num_in = shape->in_channels / shape->groups, .num_out = shape->out_channels / shape->groups};
    int64_t out_length = out_length_of(shape);
    int64_t rows = made.num_in * shape->stride + made.num_out;
    int64_t most = smaller(MOST_SIZE, greater(8 * LANES, CHUNK / rows / LANES * LANES));
    made.columns = made.num_in * shape->kernel_size + 1;
    made.in_sample = quotient_up(out_length, most);
    made.size = quotient_up(quotient_up(out_length, made.in_sample), LANES) * LANES;
    made.in_sample = quotient_up(out_length, made.size);
    made.x_row = in_lines(made.size + (shape->kernel_size - 1) * shape->dilation / shape->stride + 1);
    made.x_piece = made.num_in * shape->stride * made.x_row;
    made.at_once = made.in_sample > 1 ? 1 : smaller(MOST_PIECES, CHUNK / (made.x_piece + made.num_out * made.size));
    made.at_once = greater(1, made.at_once);
    made.dy_row = in_lines(made.size), made.dy_piece = made.num_out * made.dy_row;
    made.scratch = in_lines(made.at_once * made.x_piece + made.size) + made.at_once * made.dy_piece;
    made.sums = in_lines(shape->out_channels * made.columns);
    return made;
}

/* Some rows of dy times some columns, over the pieces of a chunk, `size` positions of each. */
typedef struct {
    const float *dy[ROWS], *x[COLUMNS];
    int64_t dy_piece, x_piece[COLUMNS], num_pieces, size;
    float *sums[ROWS];
} block;

ALWAYS void block_of(const block *restrict of, int rows, int columns) {
    vfloat sum[ROWS][COLUMNS] = {0};
    for (int64_t piece = 0; piece < of->num_pieces; piece++) {
        const float *dy[ROWS], *x[COLUMNS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) dy[r] = of->dy[r] + piece * of->dy_piece;
#pragma GCC unroll 6
        for (int c = 0; c < columns; c++) x[c] = of->x[c] + piece * of->x_piece[c];
        for (int64_t t = 0; t < of->size; t += LANES) {
            vfloat row[ROWS];
            if (t + LANES <= of->size)
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) row[r] = load(dy[r] + t);
            else
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) row[r] = load_first(dy[r] + t, of->size - t);
#pragma GCC unroll 6
            for (int c = 0; c < columns; c++) {
                vfloat column = load(x[c] + t);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) sum[r][c] += row[r] * column;
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 6
        for (int c = 0; c < columns; c++) of->sums[r][c] += sum_of_lanes(sum[r][c]);
}

#define BLOCK(rows, columns)                                                                                           \
    static void block_##rows##_##columns(const block *of) { block_of(of, rows, columns); }
#define BLOCKS(rows) BLOCK(rows, 1) BLOCK(rows, 2) BLOCK(rows, 3) BLOCK(rows, 4)
#if COLUMNS == 6
#define MORE_BLOCKS(rows) BLOCKS(rows) BLOCK(rows, 5) BLOCK(rows, 6)
#define MORE_NAMES(rows) , block_##rows##_5, block_##rows##_6
#else
#define MORE_BLOCKS(rows) BLOCKS(rows)
#define MORE_NAMES(rows)
#endif
#define NAMES(rows) {block_##rows##_1, block_##rows##_2, block_##rows##_3, block_##rows##_4 MORE_NAMES(rows)}
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

/* Copies what a piece of a group sees of x, whose channels of that group begin at `x`. */
static void copy_piece(const conv1d_shape *shape, const plan *plan, const float *x, int64_t first, float *to) {
    int64_t stride = shape->stride;
    int64_t begin = first * stride - shape->padding;
    for (int64_t i = 0; i < plan->num_in; i++)
        for (int64_t phase = 0; phase < stride; phase++)
            copy_window(x + i * shape->length, NULL, shape->length, begin + phase, stride, plan->x_row,
                        to + (i * stride + phase) * plan->x_row);
}

/* All blocks of one group over a chunk: copies of x with a row of ones behind, and rows of dy, `size` positions of each
 * piece. */
static void add_chunk(const conv1d_shape *shape, const plan *plan, int64_t num_pieces, int64_t size, const float *x,
                      const float *dy, int64_t dy_row, int64_t dy_piece, float *sums) {
    int64_t taps = shape->kernel_size;
    int64_t at_once = quotient_up(plan->columns, quotient_up(plan->columns, COLUMNS));
    block of = {.dy_piece = dy_piece, .num_pieces = num_pieces, .size = size};
    for (int64_t o = 0, rows; o < plan->num_out; o += rows) {
        rows = smaller(ROWS, plan->num_out - o);
        for (int64_t r = 0; r < rows; r++) of.dy[r] = dy + (o + r) * dy_row;
        for (int64_t column = 0, columns; column < plan->columns; column += columns) {
            columns = smaller(at_once, plan->columns - column);
            for (int64_t c = 0; c < columns; c++) {
                int64_t place = (column + c) % taps * shape->dilation;
                int64_t row = (column + c) / taps * shape->stride;
                of.x[c] = x + (row + place % shape->stride) * plan->x_row + place / shape->stride;
                of.x_piece[c] = plan->x_piece;
            }
            if (column + columns == plan->columns)
                of.x[columns - 1] = x + plan->at_once * plan->x_piece, of.x_piece[columns - 1] = 0;
            for (int64_t r = 0; r < rows; r++) of.sums[r] = sums + (o + r) * plan->columns + column;
            functions[rows - 1][columns - 1](&of);
        }
    }
}

/* Sums of all channels and columns of a share of the pieces. */
static void sum_pieces(const conv1d_shape *shape, const plan *plan, const float *x, const float *dy, const float *gate,
                       int64_t begin, int64_t end, float *scratch, float *sums) {
    int64_t out_length = out_length_of(shape);
    int64_t dy_piece = shape->out_channels * out_length;
    float *ones = scratch + plan->at_once * plan->x_piece;
    float *gated_dy = ones + in_lines(plan->size);
    memset(sums, 0, (size_t)(shape->out_channels * plan->columns) * sizeof *sums);
    for (int64_t t = 0; t < plan->size; t++) ones[t] = 1.0f;
    for (int64_t chunk = begin, num; chunk < end; chunk += num) {
        num = smaller(plan->at_once, end - chunk);
        int64_t sample = chunk / plan->in_sample;
        int64_t first = chunk % plan->in_sample * plan->size;
        for (int64_t group = 0; group < shape->groups; group++) {
            const float *from = x + (sample * shape->in_channels + group * plan->num_in) * shape->length;
            int64_t place = (sample * shape->out_channels + group * plan->num_out) * out_length;
            int64_t size = smaller(plan->size, out_length - first);
            float *of_group = sums + group * plan->num_out * plan->columns;
            for (int64_t piece = 0; piece < num; piece++)
                copy_piece(shape, plan, from + piece * shape->in_channels * shape->length, first,
                           scratch + piece * plan->x_piece);
            if (gate == NULL) {
                add_chunk(shape, plan, num, size, scratch, dy + place + first, out_length, dy_piece, of_group);
                continue;
            }
            for (int64_t piece = 0; piece < num; piece++)
                for (int64_t o = 0; o < plan->num_out; o++) {
                    int64_t row = place + piece * dy_piece + o * out_length;
                    copy_window(dy + row, gate + row, out_length, first, 1, size,
                                gated_dy + piece * plan->dy_piece + o * plan->dy_row);
                }
            add_chunk(shape, plan, num, size, scratch, gated_dy, plan->dy_row, plan->dy_piece, of_group);
        }
    }
}

int64_t LOCAL(weight_gradient_scratch)(const conv1d_shape *shape, int64_t threads) {
    const plan plan = plan_of(shape);
    return threads * (plan.scratch + plan.sums);
}

void LOCAL(weight_gradient)(const conv1d_shape *shape, const float *x, const float *dy, const float *gate,
                            float *dweight, float *dbias, int64_t threads, float *scratch) {
    const plan plan = plan_of(shape);
    int64_t pieces = shape->batch * plan.in_sample;
    int64_t num = shape->out_channels * plan.columns;
    threads = threads_for((double)pieces * plan.size * num, pieces, threads);
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
        for (int64_t i = 0; i < num; i++) sums[i] += sums[thread * plan.sums + i];
    for (int64_t channel = 0; channel < shape->out_channels; channel++) {
        const float *from = sums + channel * plan.columns;
        memcpy(dweight + channel * (plan.columns - 1), from, (size_t)(plan.columns - 1) * sizeof *dweight);
        if (dbias != NULL)
            dbias[channel] = from[plan.columns - 1];
    }
}
