/* What every kernel starts with. HEARTLM(name) is `name` with the suffix of the kind of processor it is compiled for,
 * and visible to the loader. Kernels take plain pointers and lengths, allocate nothing, and never fail but by a
 * return value.
 *
 * Contracted multiply-adds are off, so that every variant rounds alike where the order of sums is the same. */
#ifndef HEARTLM_KERNEL_H
#define HEARTLM_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define HEARTLM_JOIN2(name, variant) name##_##variant
#define HEARTLM_JOIN(name, variant) HEARTLM_JOIN2(name, variant)
#define HEARTLM(name) __attribute__((visibility("default"))) HEARTLM_JOIN(name, HEARTLM_VARIANT)

#endif
