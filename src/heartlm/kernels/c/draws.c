/* Random numbers by their place in a stream, and what is chosen by them: nothing has to be drawn that comes before.
 *
 * A stream is Philox4x64-10 (Salmon 2011, "Parallel random numbers: as easy as 1, 2, 3") as NumPy numbers it: key
 * (seed, stream), counter (0, 0, 0, step); draw p is word p % 4 of block p / 4, whose counter is one more. */
#include <math.h>

#include "kernel.h"

struct stream {
    uint64_t seed, use, step;
};

/* The draws of one block. */
static inline void philox(const struct stream *s, uint64_t block, uint64_t *words) {
    uint64_t c0 = block + 1, c1 = 0, c2 = 0, c3 = s->step, key0 = s->seed, key1 = s->use;
    for (int round = 0; round < 10; round++) {
        unsigned __int128 first = (unsigned __int128)c0 * 0xD2E7470EE14C6C93u;
        unsigned __int128 second = (unsigned __int128)c2 * 0xCA5A826395121157u;
        c0 = (uint64_t)(second >> 64) ^ c1 ^ key0;
        c2 = (uint64_t)(first >> 64) ^ c3 ^ key1;
        c1 = (uint64_t)second;
        c3 = (uint64_t)first;
        key0 += 0x9E3779B97F4A7C15u;
        key1 += 0xBB67AE8584CAA73Bu;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

enum { AHEAD = 64 };

/* Draws one after the other, made AHEAD at a time, so that the processor works on several blocks at once. */
struct reader {
    struct stream stream;
    uint64_t place, words[AHEAD];
};

static inline void refill(struct reader *r) {
    for (uint64_t b = 0; b < AHEAD / 4; b++)
        philox(&r->stream, r->place / 4 + b, r->words + 4 * b);
}

static void start(struct reader *r, struct stream stream, uint64_t first) {
    r->stream = stream;
    r->place = first & ~(uint64_t)(AHEAD - 1);
    refill(r);
    r->place = first;
}

static inline uint64_t next(struct reader *r) {
    uint64_t drawn = r->words[r->place % AHEAD];
    if (++r->place % AHEAD == 0)
        refill(r);
    return drawn;
}

static inline double unit(uint64_t drawn) { return (double)(drawn >> 11) * 0x1p-53; }

/* unit(drawn) < share is drawn >> 11 < whole(share). */
static inline uint64_t whole(double share) { return share < 1.0 ? (uint64_t)ceil(share * 0x1p53) : (uint64_t)1 << 53; }

/* Draws `first` to `first + num` of a stream, to `out`. */
void HEARTLM(draws)(int64_t seed, int64_t use, int64_t step, int64_t first, int64_t num, uint64_t *out) {
    struct reader r;
    start(&r, (struct stream){(uint64_t)seed, (uint64_t)use, (uint64_t)step}, (uint64_t)first);
    for (int64_t i = 0; i < num; i++)
        out[i] = next(&r);
}

/* Which of draws `first` to `first + num` are below `share`, to `out`. */
void HEARTLM(draws_below)(int64_t seed, int64_t use, int64_t step, int64_t first, int64_t num, double share,
                          uint8_t *out) {
    struct reader r;
    start(&r, (struct stream){(uint64_t)seed, (uint64_t)use, (uint64_t)step}, (uint64_t)first);
    const uint64_t below = whole(share);
    for (int64_t i = 0; i < num; i++)
        out[i] = next(&r) >> 11 < below;
}

/* Choose runs of tokens of windows `first_window` to `first_window + num_windows` of a batch of `batch_size`, of `width`
 * tokens each, to `hidden` `[num_windows, width]`. A run begins at a token with probability `begin`, and at one token of
 * each window for sure; it has 1 to `longest` tokens; tokens from length[w] on are left alone. Count what is hidden in
 * each window to `num_hidden`.
 *
 * The stream holds, for the whole batch, a draw a token (runs that begin), then a draw a window (the sure one), then half
 * a draw a token (lengths). */
void HEARTLM(hide_spans)(int64_t seed, int64_t use, int64_t step, int64_t first_window, int64_t batch_size,
                         const int64_t *length, int64_t num_windows, int64_t width, double begin, int64_t longest,
                         uint8_t *hidden, int64_t *num_hidden) {
    struct stream stream = {(uint64_t)seed, (uint64_t)use, (uint64_t)step};
    struct reader begins, sure, lengths;
    uint64_t place = (uint64_t)(first_window * width), pair = 0;
    start(&begins, stream, place);
    start(&sure, stream, (uint64_t)(batch_size * width + first_window));
    start(&lengths, stream, (uint64_t)(batch_size * (width + 1)) + place / 2);
    if (place % 2)
        pair = next(&lengths);
    const uint64_t below = whole(begin);
    for (int64_t w = 0; w < num_windows; w++, hidden += width) {
        int64_t chosen = (int64_t)(unit(next(&sure)) * (double)length[w]), hide_to = 0, count = 0;
        for (int64_t t = 0; t < width; t++)
            hidden[t] = next(&begins) >> 11 < below;
        hidden[chosen] = 1; /* chosen < length[w] <= width; taken back below in an empty window */
        for (int64_t t = 0; t < width; t++, place++) {
            pair = place % 2 ? pair >> 32 : next(&lengths);
            int64_t end = t + 1 + (int64_t)((pair & 0xFFFFFFFFu) * (uint64_t)longest >> 32);
            end = hidden[t] ? end : 0;
            hide_to = end > hide_to ? end : hide_to;
            hidden[t] = t < hide_to;
        }
        for (int64_t t = 0; t < width; t++) {
            hidden[t] &= t < length[w];
            count += hidden[t];
        }
        num_hidden[w] = count;
    }
}

/* Draw windows `first_window` to `first_window + num_windows` of a batch of `batch_size`: a row by `reach`, the sums of
 * the rows' probabilities up to and with each, and a place in it, any as likely; the first token of each to `first`, its
 * valid tokens to `length`. The stream holds a draw a window for the row, then one for the place. */
void HEARTLM(draw_windows)(int64_t seed, int64_t use, int64_t step, int64_t first_window, int64_t batch_size,
                           int64_t num_windows, const double *reach, const int64_t *row_first,
                           const int64_t *row_tokens, int64_t num_rows, int64_t width, int64_t *first,
                           int64_t *length) {
    struct reader rows, places;
    start(&rows, (struct stream){(uint64_t)seed, (uint64_t)use, (uint64_t)step}, (uint64_t)first_window);
    start(&places, rows.stream, (uint64_t)(batch_size + first_window));
    for (int64_t w = 0; w < num_windows; w++) {
        double wanted = unit(next(&rows));
        int64_t row = 0, stop = num_rows - 1;
        while (row < stop) {
            int64_t middle = row + (stop - row) / 2;
            if (reach[middle] <= wanted)
                row = middle + 1;
            else
                stop = middle;
        }
        int64_t room = row_tokens[row] > width ? row_tokens[row] - width : 0;
        first[w] = row_first[row] + (int64_t)(unit(next(&places)) * (double)(room + 1));
        length[w] = row_tokens[row] < width ? row_tokens[row] : width;
    }
}
