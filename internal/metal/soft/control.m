//go:build softmetal

// Settings, counts and faults of the software Metal, and the emulator.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#import "internal.h"

struct soft_settings soft = {.timestamps = 1, .name = "Apple M4 Pro (software)", .family = 9, .cores = 20};
pthread_mutex_t soft_flight = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static soft_call_count *calls, *listed[128];
static unsigned listed_count;
static _Atomic uint64_t redundant;
static _Atomic int64_t bytes;
static uint64_t fallible, fail_at;
static int fail_code;
static char failed_selector[128], violation[512], given[512];
static soft_kernel kernels[64];
static unsigned kernel_count;
// An emulator is a shared library with kernels. The first one contains the repository's
// kernels, the others those of programs.
typedef struct emulator {
    int (*run)(const char *, void *const *, const unsigned long *, const void *, const void *, void *, const unsigned *, const unsigned *, unsigned,
               unsigned, int, unsigned long);
    const char *(*error)(void);
} emulator;
static emulator emulators[8];
static unsigned emulator_count;

const char *soft_load(const char *path) {
    if (emulator_count == sizeof emulators / sizeof *emulators) return "too many emulators";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return dlerror();
    emulator e = {0};
    *(void **)&e.run = dlsym(library, "pianola_emulate");
    *(void **)&e.error = dlsym(library, "pianola_error");
    if (!e.run || !e.error) return "the library is no emulator";
    emulators[emulator_count++] = e;
    return NULL;
}

void soft_add_kernel(const soft_kernel *k) {
    if (kernel_count == sizeof kernels / sizeof *kernels) return;
    kernels[kernel_count] = *k;
    kernels[kernel_count++].emulator = emulator_count - 1;
}

const soft_kernel *soft_find(const char *name) {
    for (unsigned i = 0; i < kernel_count; i++) {
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    }
    return NULL;
}

BOOL soft_ready(void) { return emulator_count > 0; }

int soft_emulate(const soft_kernel *k, void *const buffers[8], const void *params, const void *second, void *step, const uint32_t specs[8],
                 const uint32_t grid[3], uint32_t threads, uint32_t memory, const char **error) {
    const unsigned long sizes[8] = {0};
    const uint64_t seed = soft.order == soft_random ? soft_below(1u << 30) : 0;
    const int order = soft.order == soft_random ? (int)(seed % 3) : 0;
    const emulator *e = &emulators[k->emulator];
    const int rc = e->run(k->name, buffers, sizes, params, second, step, specs, grid, threads, memory, order, seed);
    if (rc) *error = e->error();
    return rc == 0;
}

void soft_order(int order, uint64_t seed) {
    soft.order = order;
    soft.state = seed * 0x9e3779b97f4a7c15u + 1;
}
void soft_ignore_fences(int on) { soft.no_fences = on; }
void soft_residency(int on) { soft.no_residency = !on; }
uint64_t soft_copied(void) { return soft.copied; }
uint64_t soft_compiled(void) { return soft.compiled; }
void soft_null(int on) { soft.null = on; }
void soft_timestamps(int where) { soft.timestamps = where; }
void soft_delay(unsigned us) { soft.delay = us; }
void soft_clock(soft_price price, double watchdog, int run) {
    soft.price = price;
    soft.watchdog = watchdog;
    soft.idle = price && !run;
}
double soft_longest(void) { return (double)atomic_exchange(&soft.longest, 0) * 1e-9; }
uint64_t soft_buffers(void) { return atomic_exchange(&soft.buffers, 0); }
void soft_limits(uint64_t buffer, uint64_t memory) {
    soft.max_buffer = buffer;
    soft.memory = memory;
}

void soft_gpu_is(const char *name, uint32_t family, uint32_t cores, int entry) {
    const BOOL set = name[0] != 0;
    snprintf(soft.name, sizeof soft.name, "%s", set ? name : "Apple M4 Pro (software)");
    soft.family = set ? family : 9;
    soft.cores = set ? cores : 20;
    soft.entry = set ? entry : soft_entry_gpu;
}

// soft_below returns a random number below n, or 0 if the order is not random.
unsigned soft_below(unsigned n) {
    if (soft.order != soft_random || n < 2) return 0;
    uint64_t from = soft.state, to;
    do {
        to = from * 6364136223846793005u + 1442695040888963407u;
    } while (!atomic_compare_exchange_weak(&soft.state, &from, to));
    return (unsigned)((to >> 33) % n);
}

void soft_fail(uint64_t n, int code) {
    pthread_mutex_lock(&lock);
    fail_at = n ? fallible + n : 0;
    fail_code = code;
    failed_selector[0] = 0;
    soft.removed = 0;
    pthread_mutex_unlock(&lock);
}
const char *soft_failed(void) { return failed_selector; }
uint64_t soft_fallible(void) { return fallible; }

BOOL soft_fails(const char *selector, int *code) {
    pthread_mutex_lock(&lock);
    const BOOL fails = ++fallible == fail_at;
    if (fails) {
        snprintf(failed_selector, sizeof failed_selector, "%s", selector);
        if (code) *code = fail_code;
    }
    pthread_mutex_unlock(&lock);
    return fails;
}

void soft_violate(const char *format, ...) {
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&lock);
    if (!violation[0]) vsnprintf(violation, sizeof violation, format, args);
    pthread_mutex_unlock(&lock);
    va_end(args);
}
const char *soft_violation(void) {
    pthread_mutex_lock(&lock);
    memcpy(given, violation, sizeof given);
    violation[0] = 0;
    pthread_mutex_unlock(&lock);
    return given;
}

void soft_count(soft_call_count *c) {
    if (!atomic_exchange(&c->listed, 1)) {
        pthread_mutex_lock(&lock);
        if (listed_count < sizeof listed / sizeof *listed) listed[listed_count++] = c;
        c->next = calls;
        calls = c;
        pthread_mutex_unlock(&lock);
    }
    c->count++;
}
const char *soft_call(unsigned i, uint64_t *count) {
    if (i >= listed_count) return NULL;
    *count = listed[i]->count;
    return listed[i]->selector;
}
void soft_set_redundant(void) { redundant++; }
uint64_t soft_redundant(void) { return redundant; }
uint64_t soft_dispatches(void) { return soft.dispatches; }
void soft_add_bytes(int64_t n) { bytes += n; }
int64_t soft_bytes(void) { return bytes; }
int soft_most(void) {
    const int n = soft.most;
    soft.most = 0;
    return n;
}
