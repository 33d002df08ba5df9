/* Numbers in fixed point, 64 bits, so that sums do not depend on their order; one pass over memory each way. */
#include "kernel.h"

#include <math.h>

/* total[i] = numbers[i] * factor, rounded to a whole number, to the even one where two are as near; with `more` that is
 * added to what total[i] was, and sums wrap around. Returns how many of the products are not below `limit` in
 * magnitude, or no numbers: what becomes of these is not said. */
int64_t HEARTLM(add_in_fixed_point)(
    const double *numbers, int64_t num, double factor, double limit, int64_t more, int64_t *total
) {
    int64_t bad = 0;
    for (int64_t i = 0; i < num; i++) {
        double scaled = numbers[i] * factor;
        bad += !(fabs(scaled) < limit);
        total[i] = (int64_t)((more ? (uint64_t)total[i] : 0) + (uint64_t)(int64_t)llrint(scaled));
    }
    return bad;
}

/* out[i] = numbers[i] * unit * factor, rounded after each product. */
void HEARTLM(from_fixed_point)(const int64_t *numbers, int64_t num, double unit, double factor, double *out) {
    for (int64_t i = 0; i < num; i++) out[i] = (double)numbers[i] * unit * factor;
}

/* out[i] = vector[i] + numbers[i] * unit * factor in double precision, rounded after each operation, then to float. */
void HEARTLM(moved_by_fixed_point)(
    const float *vector, const int64_t *numbers, int64_t num, double unit, double factor, float *out
) {
    for (int64_t i = 0; i < num; i++) out[i] = (float)((double)vector[i] + (double)numbers[i] * unit * factor);
}
