/* Windows of tokens out of a corpus. */
#include <string.h>

#include "kernel.h"

/* Copy `num_windows` windows of `width` tokens of `token_bytes` each from `corpus` to `out` `[num_windows, width]`.
 * Window w starts at token first[w] and has length[w] valid tokens; its end repeats the last of them. Return how many
 * windows were copied: all, unless one lies outside the `num_tokens` of the corpus. */
int64_t HEARTLM(gather_windows)(const uint8_t *corpus, int64_t num_tokens, const int64_t *first, const int64_t *length,
                                int64_t num_windows, int64_t width, int64_t token_bytes, uint8_t *out) {
    for (int64_t w = 0; w < num_windows; w++) {
        int64_t valid = length[w] < width ? length[w] : width;
        if (first[w] < 0 || valid < 1 || first[w] > num_tokens - valid)
            return w;
        const uint8_t *from = corpus + first[w] * token_bytes;
        uint8_t *to = out + w * width * token_bytes;
        memcpy(to, from, (size_t)(valid * token_bytes));
        for (int64_t t = valid; t < width; t++)
            memcpy(to + t * token_bytes, from + (valid - 1) * token_bytes, (size_t)token_bytes);
    }
    return num_windows;
}

/* The same for tokens of `num_facets` codes, each widened to 64 bits as models take them. */
int64_t HEARTLM(gather_codes)(const uint16_t *corpus, int64_t num_tokens, const int64_t *first, const int64_t *length,
                              int64_t num_windows, int64_t width, int64_t num_facets, int64_t *out) {
    for (int64_t w = 0; w < num_windows; w++) {
        int64_t valid = length[w] < width ? length[w] : width;
        if (first[w] < 0 || valid < 1 || first[w] > num_tokens - valid)
            return w;
        const uint16_t *from = corpus + first[w] * num_facets;
        int64_t *to = out + w * width * num_facets;
        for (int64_t i = 0; i < valid * num_facets; i++)
            to[i] = from[i];
        for (int64_t i = valid * num_facets; i < width * num_facets; i++)
            to[i] = to[i - num_facets];
    }
    return num_windows;
}
