/* Byte-pair encoding: replacing one pair of symbols while a vocabulary is learnt, and encoding by the longest match. */
#include "kernel.h"

/* No symbol: what stands before the first and behind the last, and between stretches that must not be joined. */
#define BREAK 0xFFFFu

/* Replace each `left` followed by `right` in `symbols` `[num_symbols]` by `merged`, from the first on and in place.
 * For each of them write what then stands before it, and what stands behind it before anything further is replaced, to
 * `before` and `after`, `[num_symbols / 2]` each. Return how many there were: the number of symbols falls by it. */
int64_t HEARTLM(bpe_merge_pair)(uint16_t *symbols, int64_t num_symbols, int32_t left, int32_t right, int32_t merged,
                                uint16_t *before, uint16_t *after) {
    int64_t found = 0, to = 0, from = 0;
    while (from + 1 < num_symbols) {
        if (symbols[from] != left || symbols[from + 1] != right) {
            symbols[to++] = symbols[from++];
            continue;
        }
        before[found] = to > 0 ? symbols[to - 1] : BREAK;
        after[found] = from + 2 < num_symbols ? symbols[from + 2] : BREAK;
        found++;
        symbols[to++] = (uint16_t)merged;
        from += 2;
    }
    if (from < num_symbols) symbols[to] = symbols[from];
    return found;
}

/* Cut `symbols` `[num_symbols]` into the longest runs that have a code, from the first on, none across a multiple of
 * `every`; write their codes `[num_symbols at most]` and return how many.
 *
 * `next` `[num_nodes, num_bases]` is the trie of all runs: next[node, symbol] is the node behind it, 0 where there is
 * none. The node of a run that has a code is numbered like its code, 0 to `num_codes` - 1, and a single symbol's code is
 * the symbol itself; so a walk starts at the node of its first symbol, and no node leads to node 0. */
int64_t HEARTLM(bpe_encode)(const uint16_t *symbols, int64_t num_symbols, int64_t every, const int32_t *next,
                            int64_t num_bases, int32_t num_codes, uint16_t *codes) {
    int64_t num_found = 0;
    for (int64_t begin = 0; begin < num_symbols; begin += every) {
        int64_t end = num_symbols - begin < every ? num_symbols : begin + every;
        for (int64_t first = begin; first < end;) {
            int32_t node = symbols[first], longest = node;
            int64_t at = first + 1, stop = at;
            while (at < end && (node = next[node * num_bases + symbols[at]]) != 0) {
                at++;
                if (node < num_codes) {
                    longest = node;
                    stop = at;
                }
            }
            codes[num_found++] = (uint16_t)longest;
            first = stop;
        }
    }
    return num_found;
}
