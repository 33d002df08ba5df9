/* Ranks of one machine add up their numbers through memory they share.
 *
 *   flags   one a rank, a cache line each: 2 k - 1 when its numbers of round k are there, 2 k when its part is summed
 *   even    slot of rank 0 | slot of rank 1 | …      numbers of rounds 2, 4, …
 *   odd     slot of rank 0 | slot of rank 1 | …      numbers of rounds 1, 3, …
 *
 * A rank copies its numbers to its slot, sums its part of all slots into the first, and copies the whole sum back. Two
 * ranks, and any number of ranks with few numbers, each add up everything instead: no rank then waits for another to come
 * and do its part, only for its numbers. Who begins round k + 2 in the slots of round k has seen everyone in round k + 1,
 * so they are not read any more. The order of a sum is that of the ranks, so all have the same bits. */
#include "kernel.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { CACHE_LINE = 64, FEW_BYTES = 4096, LOOKING_NS = 100000, NAP_NS = 20000 };

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int all_there(char *flags, int64_t num_ranks, int64_t mark) {
    for (int64_t rank = 0; rank < num_ranks; rank++)
        if (atomic_load_explicit((_Atomic int64_t *)(flags + rank * CACHE_LINE), memory_order_acquire) < mark)
            return 0;
    return 1;
}

/* Whether all flags reach `mark` in time. Ranks that go in step are waited for by looking; after that, sleeping a little
 * again and again gives the core to whoever else has something to do on it, and gets it back. */
static int wait_for_all(char *flags, int64_t num_ranks, int64_t mark, int64_t patience_ns) {
    const int64_t begin = now_ns();
    for (int64_t looks = 1; !all_there(flags, num_ranks, mark); looks++) {
        if (looks % 64)
            continue;
        const int64_t waited = now_ns() - begin;
        if (waited > patience_ns)
            return 0;
        if (waited > LOOKING_NS)
            nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
    return 1;
}

static void mark(char *flags, int64_t rank, int64_t reached) {
    atomic_store_explicit((_Atomic int64_t *)(flags + rank * CACHE_LINE), reached, memory_order_release);
}

static void sum_floats(float *sums, const float *theirs, int64_t num) {
    for (int64_t i = 0; i < num; i++)
        sums[i] += theirs[i];
}

static void sum_doubles(double *sums, const double *theirs, int64_t num) {
    for (int64_t i = 0; i < num; i++)
        sums[i] += theirs[i];
}

/* Whole numbers wrap around at 2^64. */
static void sum_integers(uint64_t *sums, const uint64_t *theirs, int64_t num) {
    for (int64_t i = 0; i < num; i++)
        sums[i] += theirs[i];
}

enum { FLOATS, DOUBLES, INTEGERS };

static void add(void *sums, const void *theirs, int64_t num_bytes, int64_t kind) {
    if (kind == INTEGERS)
        sum_integers(sums, theirs, num_bytes / 8);
    else if (kind == DOUBLES)
        sum_doubles(sums, theirs, num_bytes / 8);
    else
        sum_floats(sums, theirs, num_bytes / 4);
}

/* Add up the numbers of all ranks in `data`, which holds those of `rank`. */
static void add_everything(void *data, const char *slots, int64_t slot_bytes, int64_t num_ranks, int64_t rank,
                           int64_t num_bytes, int64_t kind) {
    if (num_ranks == 2) { /* a + b is b + a, bit for bit */
        add(data, slots + (1 - rank) * slot_bytes, num_bytes, kind);
        return;
    }
    memcpy(data, slots, (size_t)num_bytes);
    for (int64_t other = 1; other < num_ranks; other++)
        add(data, slots + other * slot_bytes, num_bytes, kind);
}

/* Where the part of `rank` begins; parts are whole cache lines, so that no two ranks write to one. */
static int64_t part(int64_t num_bytes, int64_t rank, int64_t num_ranks) {
    const int64_t lines = (num_bytes + CACHE_LINE - 1) / CACHE_LINE;
    const int64_t begin = lines * rank / num_ranks * CACHE_LINE;
    return begin < num_bytes ? begin : num_bytes;
}

/* Continue with round `round`, from 1, at `stage`, 0 at first; return the stage that waits for another rank after
 * `patience_ns`, to be called again with, or 3 when `data`, numbers of that `kind`, holds the sum. */
int64_t HEARTLM(shared_sum)(char *memory, int64_t slot_bytes, int64_t num_ranks, int64_t rank, int64_t round,
                            int64_t stage, void *data, int64_t num_bytes, int64_t kind, int64_t patience_ns) {
    char *slots = memory + num_ranks * CACHE_LINE + (round % 2) * num_ranks * slot_bytes;
    if (stage == 0) {
        memcpy(slots + rank * slot_bytes, data, (size_t)num_bytes);
        mark(memory, rank, 2 * round - 1);
        stage = 1;
    }
    if (stage == 1) {
        if (!wait_for_all(memory, num_ranks, 2 * round - 1, patience_ns))
            return 1;
        if (num_ranks == 2 || num_bytes <= FEW_BYTES) {
            add_everything(data, slots, slot_bytes, num_ranks, rank, num_bytes, kind);
            return 3;
        }
        const int64_t begin = part(num_bytes, rank, num_ranks);
        const int64_t size = part(num_bytes, rank + 1, num_ranks) - begin;
        for (int64_t other = 1; other < num_ranks; other++)
            add(slots + begin, slots + begin + other * slot_bytes, size, kind);
        mark(memory, rank, 2 * round);
    }
    if (!wait_for_all(memory, num_ranks, 2 * round, patience_ns))
        return 2;
    memcpy(data, slots, (size_t)num_bytes);
    return 3;
}
