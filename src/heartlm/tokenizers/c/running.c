/* Medians that run along series of beats. */
#include "kernel.h"
#include "median.h"
#include "sorted_window.h"

/* Median of each value and the up to `width` - 1 before it, NaN left out; `ordered` is scratch for `width` values. */
void HEARTLM(trailing_median)(const double *values, int64_t num_values, int64_t width, double *ordered,
                              double *median) {
    int64_t count = 0;
    for (int64_t i = 0; i < num_values; i++) {
        if (i >= width) remove_value(ordered, &count, values[i - width]);
        insert_value(ordered, &count, values[i]);
        median[i] = median_of(ordered, count);
    }
}

enum { TILE = 16, MOST_PLACES = 1024 };

/* Rows of `row_length` numbers to columns of `num_rows` keys. */
static void to_columns(const float *rows, int64_t num_rows, int64_t row_length, int32_t *columns) {
    for (int64_t row = 0; row < num_rows; row += TILE)
        for (int64_t place = 0; place < row_length; place++) {
            int64_t stop = row + TILE < num_rows ? row + TILE : num_rows;
            for (int64_t i = row; i < stop; i++) columns[place * num_rows + i] = to_key(rows[i * row_length + place]);
        }
}

/* Stretches of rows, `first[b]` to `last[b]`, exclusive, which only move on. */
typedef struct {
    const int64_t *first, *last;
} Stretches;

/* Medians of one column over the stretches `b` to `stop`; `keys` are those of the rows from `base` on, `middle` is where
 * the median of the stretch before lay. */
static void medians_of(const int32_t *keys, int64_t base, const Stretches *of, int64_t b, int64_t stop, Middle *middle,
                       float *medians, int64_t row_length) {
    for (; b < stop; b++) {
        int64_t first = of->first[b];
        int64_t length = of->last[b] - first;
        if (b == 0 || first >= of->last[b - 1]) {
            *middle = about_the_middle(keys + first - base, length, extremes_of(keys + first - base, length));
        } else {
            int64_t begin = of->first[b - 1];
            int64_t end = of->last[b - 1];
            middle->up_to += count_up_to(keys + end - base, of->last[b] - end, middle->key);
            middle->up_to -= count_up_to(keys + begin - base, first - begin, middle->key);
        }
        medians[b * row_length] = median_from(keys + first - base, length, middle);
    }
}

/* Medians of stretches of rows, place by place, to `medians` [num_stretches, row_length]; a row has MOST_PLACES at most.
 * From a stretch to the next little changes, so that each median is a few steps from the one before. `columns` is scratch
 * for `rows_at_once` rows, as many as a stretch and the one before span, or more. */
void HEARTLM(stretch_medians)(const float *rows, int64_t row_length, const int64_t *first, const int64_t *last,
                              int64_t num_stretches, int64_t rows_at_once, int32_t *columns, float *medians) {
    const Stretches of = {first, last};
    Middle middles[MOST_PLACES];
    for (int64_t b = 0, stop; b < num_stretches; b = stop) {
        int64_t base = first[b ? b - 1 : 0];
        for (stop = b + 1; stop < num_stretches && last[stop] - base <= rows_at_once;) stop++;
        int64_t num_rows = last[stop - 1] - base;
        to_columns(rows + base * row_length, num_rows, row_length, columns);
        for (int64_t place = 0; place < row_length; place++)
            medians_of(columns + place * num_rows, base, &of, b, stop, &middles[place], medians + place, row_length);
    }
}
