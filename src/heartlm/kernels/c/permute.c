/* Permutations by a key, place by place. */
#include "kernel.h"

static inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Where each of `num` places goes in the permutation of 0 … size - 1 that its key names; `key_step` is 0 where all share
 * one key, else 1. A Feistel network over the next power of two, walked until it lands inside (Black and Rogaway 2002,
 * "Ciphers with arbitrary finite domains"). */
void HEARTLM(permute)(const int64_t *place, int64_t num, int64_t size, const uint64_t *key, int64_t key_step,
                      int64_t *out) {
    int bits = 1;
    while (bits < 63 && ((int64_t)1 << bits) < size)
        bits++;
    int low = bits - bits / 2;
    uint64_t low_mask = ((uint64_t)1 << low) - 1;
    uint64_t high_mask = ((uint64_t)1 << (bits - low)) - 1;
    for (int64_t i = 0; i < num; i++) {
        uint64_t x = (uint64_t)place[i];
        uint64_t k = key[i * key_step];
        do {
            uint64_t left = x >> low, right = x & low_mask;
            for (uint64_t round = 0; round < 10; round += 2) {
                left ^= mix(right + mix(k + round)) & high_mask;
                right ^= mix(left + mix(k + round + 1)) & low_mask;
            }
            x = left << low | right;
        } while (x >= (uint64_t)size);
        out[i] = (int64_t)x;
    }
}
