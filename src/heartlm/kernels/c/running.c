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

enum { TILE = 16 };

/* Rows of `row_length` numbers to columns of `num_rows` keys. */
static void to_columns(const float *rows, int64_t num_rows, int64_t row_length, int32_t *columns) {
    for (int64_t row = 0; row < num_rows; row += TILE)
        for (int64_t place = 0; place < row_length; place++) {
            int64_t stop = row + TILE < num_rows ? row + TILE : num_rows;
            for (int64_t i = row; i < stop; i++) columns[place * num_rows + i] = to_key(rows[i * row_length + place]);
        }
}

/* Medians of stretches of rows, place by place: of rows `first[b]` to `last[b]`, exclusive, to `medians`
 * [num_stretches, row_length]. Stretches only move on. From one to the next little changes, so that each median is a
 * few steps from the one before. `columns` is scratch for all numbers of `rows`. */
void HEARTLM(stretch_medians)(const float *rows, int64_t num_rows, int64_t row_length, const int64_t *first,
                              const int64_t *last, int64_t num_stretches, int32_t *columns, float *medians) {
    to_columns(rows, num_rows, row_length, columns);
    for (int64_t place = 0; place < row_length; place++) {
        const int32_t *keys = columns + place * num_rows;
        Middle middle = {0, 0, 0};
        int64_t begin = 0, end = 0;
        for (int64_t b = 0; b < num_stretches; b++) {
            if (b == 0 || first[b] >= end) {
                int64_t length = last[b] - first[b];
                middle = about_the_middle(keys + first[b], length, extremes_of(keys + first[b], length));
            } else {
                middle.up_to += count_up_to(keys + end, last[b] - end, middle.key);
                middle.up_to -= count_up_to(keys + begin, first[b] - begin, middle.key);
            }
            begin = first[b];
            end = last[b];
            medians[b * row_length + place] = median_from(keys + begin, end - begin, &middle);
        }
    }
}
