/* Prototypes of the kernels of this extension, which `kernels/library.py` reads as it does those of kernels/kernels.h. */
#include <stdint.h>

/* c/fixed_point.c: add_in_fixed_point returns how many products were not below the limit in magnitude; their totals
 * are undefined. With `more` it adds to the totals, else it replaces them. */
int64_t add_in_fixed_point(const double *numbers, int64_t num, double factor, double limit, int64_t more,
    int64_t *total);
void from_fixed_point(const int64_t *numbers, int64_t num, double unit, double factor, double *out);
void moved_by_fixed_point(const float *vector, const int64_t *numbers, int64_t num, double unit, double factor,
    float *out);
