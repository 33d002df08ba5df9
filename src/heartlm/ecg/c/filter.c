/* Recursive filters, in double precision and in the order of scipy.signal.sosfilt. */
#include "kernel.h"

/* Filter `rows` rows of x [rows, num] in place. A section is b0, b1, b2, a1, a2; its state is two numbers, which are
 * `at_rest` times the first sample of the row before it. */
void HEARTLM(filter_sections)(const double *sections, const double *at_rest, int64_t num_sections, int64_t rows,
                              int64_t num, double *x) {
    for (int64_t row = 0; row < rows; row++, x += num) {
        double first = num > 0 ? x[0] : 0.0;
        for (int64_t s = 0; s < num_sections; s++) {
            const double *c = sections + 5 * s;
            double z0 = at_rest[2 * s] * first, z1 = at_rest[2 * s + 1] * first;
            for (int64_t i = 0; i < num; i++) {
                double in = x[i], out = c[0] * in + z0;
                z0 = c[1] * in - c[3] * out + z1;
                z1 = c[2] * in - c[4] * out;
                x[i] = out;
            }
        }
    }
}
