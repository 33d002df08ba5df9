/* Convolution as it is written down: sums of products, no clever arithmetic, any shape.
 *
 *     source row  ....|==================|....     zeros around it
 *                   [ window of a tile    ]
 *     output      |tile|tile|tile|tile|til|        a tile is some vectors of positions, of all output channels
 *
 * Some tiles, a stretch, are computed one after the other for as many output channels as a block has, then for the
 * next ones, so that few rows are written at a time. A stretch that lies well inside reads the source where it stands;
 * at the edges, and where the source is read in steps or through a gate, its window is copied first, for all input
 * channels at once: some kilobytes that stay in the first cache. Source places a step apart lie side by side in the copy, so that strides
 * cost no more than that. */
#include "conv1d_tile.h"

#define LINE 16     /* floats of a cache line */
#define WINDOW 4096 /* floats that the window of a stretch may take if it has more than one tile */

typedef struct {
    int64_t width;            /* positions of a tile */
    int64_t stretch, in_row;  /* positions of a stretch; stretches of a row */
    int64_t row, phases;      /* of a window: floats of a row, rows of an input channel, one for each residue */
    int64_t window, staged;   /* floats of the window, and of the tiles that are spread out when they are stored */
    int64_t taps;             /* floats that the places of the taps take in a window */
} plan;

static plan plan_of(const correlation *what, int64_t threads) {
    plan made = {.width = vectors_beside(channels_at_once(what->num_out)) * LANES, .phases = what->step};
    int64_t num_tiles = greater(1, quotient_up(what->num_outputs, made.width));
    int64_t tiles = what->num_out > MOST_CHANNELS ? WINDOW / (what->num_in * what->step * made.width) : 1;
    tiles = smaller(tiles, quotient_up(num_tiles * what->batch * what->groups, threads));
    made.in_row = quotient_up(num_tiles, greater(1, tiles));
    made.stretch = quotient_up(num_tiles, made.in_row) * made.width;
    made.in_row = quotient_up(what->num_outputs, made.stretch);
    made.row = in_lines(made.stretch + (what->most_place - what->least_place) / what->step + 1);
    made.window = what->num_in * made.phases * made.row;
    made.staged = what->out_step > 1 ? MOST_CHANNELS * made.width : 0;
    made.taps = in_lines(what->num_taps * (int64_t)(sizeof(int64_t) / sizeof(float)));
    return made;
}

int64_t LOCAL(direct_scratch)(const correlation *what, int64_t threads) {
    const plan plan = plan_of(what, threads);
    return 2 * plan.taps + threads * (plan.window + plan.staged);
}

/* Writes one tile of `channels` output channels, spread out where they are to lie apart. Few products are over before
 * the lines that they go to have come, so with one input channel these are asked for first. */
static void run_block(const correlation *what, const plan *plan, tile *block, int64_t channels, int64_t first,
                      int64_t size, float *row, float *staged) {
    int64_t vectors = quotient_up(size, LANES);
    block->last = size - (vectors - 1) * LANES;
    block->out = what->out_step == 1 ? row + what->out_first + first : staged;
    block->out_row = what->out_step == 1 ? what->out_length : plan->width;
    if (what->out_step == 1 && what->num_in == 1)
        for (int64_t c = 0; c < channels; c++)
            for (int64_t t = 0; t < size; t += LINE) __builtin_prefetch(block->out + c * block->out_row + t, 1);
    run_tile(block, channels, vectors);
    if (what->out_step == 1)
        return;
    for (int64_t c = 0; c < channels; c++) {
        float *to = row + c * what->out_length + what->out_first + first * what->out_step;
        for (int64_t t = 0; t < size; t++) to[t * what->out_step] = staged[c * plan->width + t];
    }
}

/* All output channels of one stretch of one group of one sample. */
static void run_unit(const correlation *what, const plan *plan, const int64_t *in_place, const int64_t *in_window,
                     int64_t unit, float *scratch) {
    int64_t part = unit / plan->in_row;
    int64_t group = part % what->groups;
    int64_t first = unit % plan->in_row * plan->stretch;
    int64_t end = smaller(first + plan->stretch, what->num_outputs);
    int64_t place = part * what->num_in * what->source_length;
    const float *source = what->source + place;
    const float *gate = gate_at(what->gate, place);
    int64_t begin = what->origin + first * what->step + what->least_place;
    int64_t reach = quotient_up(end - first, LANES) * LANES + what->most_place - what->least_place;
    tile block = {.num_in = what->num_in, .num_taps = what->num_taps, .weight_out = what->weight_out,
                  .weight_in = what->weight_in, .weight_tap = what->tap, .relu = what->relu};
    const float *x = scratch;
    if (what->step == 1 && gate == NULL && begin >= 0 && begin + reach <= what->source_length) {
        x = source + begin, block.x_in = what->source_length, block.x_tap = in_place;
    } else {
        for (int64_t i = 0; i < what->num_in; i++)
            for (int64_t phase = 0; phase < plan->phases; phase++)
                copy_window(source + i * what->source_length, gate_at(gate, i * what->source_length),
                            what->source_length, begin + phase, what->step, plan->row,
                            scratch + (i * plan->phases + phase) * plan->row);
        block.x_in = plan->phases * plan->row, block.x_tap = in_window;
    }
    for (int64_t o = 0, channels; o < what->num_out; o += channels) {
        channels = channels_at_once(what->num_out - o);
        block.weight = what->weight + group * what->weight_group + o * what->weight_out;
        block.bias = what->bias == NULL ? NULL : what->bias + group * what->num_out + o;
        float *row = what->out + (part * what->num_out + o) * what->out_length;
        for (int64_t t = first; t < end; t += plan->width) {
            block.x = x + (t - first);
            run_block(what, plan, &block, channels, t, smaller(plan->width, end - t), row, scratch + plan->window);
        }
    }
}

void LOCAL(direct)(const correlation *what, int64_t threads, float *scratch) {
    const plan plan = plan_of(what, threads);
    int64_t *in_place = (int64_t *)scratch;
    int64_t *in_window = (int64_t *)(scratch + plan.taps);
    for (int64_t k = 0; k < what->num_taps; k++) {
        in_place[k] = what->place[k] - what->least_place;
        in_window[k] = in_place[k] % what->step * plan.row + in_place[k] / what->step;
    }
    int64_t units = what->batch * what->groups * plan.in_row;
    int64_t each = plan.window + plan.staged;
    double work = (double)units * plan.stretch * what->num_out * what->num_in * what->num_taps;
    scratch += 2 * plan.taps;
    threads = threads_for(work, units, threads);
    if (threads == 1) {
        for (int64_t unit = 0; unit < units; unit++) run_unit(what, &plan, in_place, in_window, unit, scratch);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t thread = 0; thread < threads; thread++)
        for (int64_t unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++)
            run_unit(what, &plan, in_place, in_window, unit, scratch + thread * each);
}
