/* OpenMP for compilers that know its pragmas and bring no library for them, such as zig.
 *
 * clang compiles a parallel region into calls of LLVM's library. These are the few that the kernels make, carried out by
 * the threads of libgomp, which torch has loaded: the kernels share one pool of threads with torch whatever compiled
 * them. Without libgomp in the process a region runs on the thread that enters it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_ARGUMENTS = 40 };

typedef void (*region)(int32_t *thread, int32_t *bound, ...);

typedef struct {
    region body;
    void *arguments[MOST_ARGUMENTS];
} call;

static void (*gomp_parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
static void (*gomp_barrier)(void);
static int (*gomp_thread)(void), (*gomp_num_threads)(void);
static _Atomic int gomp_found; /* set last: another thread that reads 1 sees the functions */

static _Thread_local int32_t asked_threads; /* for the next region; 0 is libgomp's default */
static _Thread_local int serial;            /* regions around this one that run on one thread */

static int has_gomp(void) {
    if (atomic_load(&gomp_found)) return 1;
    void *library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) return 0;
    *(void **)&gomp_parallel = dlsym(library, "GOMP_parallel");
    *(void **)&gomp_barrier = dlsym(library, "GOMP_barrier");
    *(void **)&gomp_thread = dlsym(library, "omp_get_thread_num");
    *(void **)&gomp_num_threads = dlsym(library, "omp_get_num_threads");
    int found = gomp_parallel && gomp_barrier && gomp_thread && gomp_num_threads;
    if (found) atomic_store(&gomp_found, 1);
    return found;
}

static void run(void *data) {
    const call *from = data;
    void *const *a = from->arguments;
    int32_t thread = 0;
    /* A region takes its own number of pointers. Where the caller clears the stack, as on x86-64 and ARM64, it does not
     * see the ones after them. */
    ((void (*)(int32_t *, int32_t *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *,
               void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *,
               void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *,
               void *, void *, void *, void *))from->body)(
        &thread, &thread, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14],
        a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24], a[25], a[26], a[27], a[28], a[29], a[30],
        a[31], a[32], a[33], a[34], a[35], a[36], a[37], a[38], a[39]);
}

void __kmpc_fork_call(const void *place, int32_t num_arguments, region body, ...) {
    (void)place;
    call made = {.body = body};
    if (num_arguments > MOST_ARGUMENTS) {
        fprintf(stderr, "heartlm: a parallel region uses %d variables; openmp.c has place for %d\n", num_arguments,
                MOST_ARGUMENTS);
        abort();
    }
    va_list arguments;
    va_start(arguments, body);
    for (int32_t i = 0; i < num_arguments; i++) made.arguments[i] = va_arg(arguments, void *);
    va_end(arguments);
    unsigned threads = (unsigned)asked_threads;
    asked_threads = 0;
    if (has_gomp()) {
        gomp_parallel(run, &made, threads, 0);
        return;
    }
    serial++;
    run(&made);
    serial--;
}

int32_t __kmpc_global_thread_num(const void *place) {
    (void)place;
    return 0; /* only handed back to the functions of this file */
}

void __kmpc_push_num_threads(const void *place, int32_t thread, int32_t threads) {
    (void)place, (void)thread;
    asked_threads = threads;
}

void __kmpc_serialized_parallel(const void *place, int32_t thread) {
    (void)place, (void)thread;
    asked_threads = 0;
    serial++;
}

void __kmpc_end_serialized_parallel(const void *place, int32_t thread) {
    (void)place, (void)thread;
    serial--;
}

void __kmpc_barrier(const void *place, int32_t thread) {
    (void)place, (void)thread;
    if (!serial) gomp_barrier();
}

/* This thread's part of a loop from `*lower` to `*upper`, both inclusive, in equal parts in the order of threads: the
 * only schedule that the kernels use. The compiler has counted the loop from 0 in steps of 1. */
#define STATIC_PART(name, integer)                                                                                    \
    void name(const void *place, int32_t thread, int32_t schedule, int32_t *last, integer *lower, integer *upper,     \
              integer *stride, integer step, integer chunk) {                                                         \
        (void)place, (void)schedule, (void)step, (void)chunk;                                                         \
        integer count = *upper - *lower + 1, threads = serial ? 1 : gomp_num_threads();                               \
        integer mine = serial ? 0 : gomp_thread(), each = count / threads, more = count % threads;                    \
        (void)thread;                                                                                                 \
        *lower += mine * each + (mine < more ? mine : more);                                                          \
        *upper = *lower + each - (mine < more ? 0 : 1);                                                               \
        *stride = count;                                                                                              \
        *last = mine == threads - 1;                                                                                  \
    }

STATIC_PART(__kmpc_for_static_init_4, int32_t)
STATIC_PART(__kmpc_for_static_init_8, int64_t)

void __kmpc_for_static_fini(const void *place, int32_t thread) { (void)place, (void)thread; }
