/* Prototypes of the kernels of this extension, which `kernels/library.py` reads as it does those of kernels/kernels.h. */
#include <stdint.h>

typedef struct conv1d_call conv1d_call;

/* c/conv1d.c */
int64_t conv1d_scratch(const conv1d_call *call, int64_t pass, int64_t *lists);
void conv1d_forward(const conv1d_call *call, const float *x, const float *weight, const float *bias, float *out,
    float *scratch);
void conv1d_input_gradient(const conv1d_call *call, const float *dy, const float *gate, const float *weight,
    float *dx, float *scratch);
void conv1d_weight_gradient(const conv1d_call *call, const float *x, const float *dy, const float *gate,
    float *dweight, float *dbias, float *scratch);
