// The emulator. Every thread of a threadgroup is a fiber that runs until it must wait for
// others: the lanes of a SIMD group meet at SIMD-group functions and barriers, all threads meet
// at threadgroup barriers. It is an error if lanes wait at different places, or if a lane
// returns while others wait. A missing barrier shows as a result that depends on the order in
// which lanes run.
#include "emulator.h"
#include "fiber.h"
#if defined(PIANOLA_COUNT)
#include "count.h"
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace pianola {
namespace {
constexpr char at_barrier[] = "threadgroup_barrier";
constexpr char finished[] = "";

struct Group;

struct Lane {
    Fiber fiber;
    const char *where; // the function at which the lane waits; null while it runs
    unsigned parity;   // index of the group's next set of words
    unsigned number;   // index in the SIMD group
    Group *group;
    pianola_position at;
};

// Matrices are the operands of pianola_multiply, each 8 by 8 in rows.
struct Matrices {
    float a[64], b[64], c[64];
    bool multiplied; // c is the result
};

// Products are the operands of pianola_add_products or pianola_add_byte_products: columns 4t to 4t+3 of
// the rows of the first matrix and, for each of these columns, the columns of the second.
template <typename T, typename Sum> struct Products {
    T a[16][4][4];
    T b[4][4][8];
    Sum sums[16][8]; // of the products
    bool multiplied; // sums are the result
};

// Group is a SIMD group. It has two sets of words and of matrices, so that a lane may write its
// part while others still read the previous ones.
struct Group {
    unsigned words[2][pianola_simd_width];
    Matrices matrices[2];
    Products<double, double> halves[2];
    Products<int, int> bytes[2];
    Lane *order[pianola_simd_width];
    unsigned next; // index in order of the lane that runs
    bool done;
};

struct Emulator {
    Lane lanes[pianola_max_threads];
    Group groups[pianola_max_threads / pianola_simd_width];
    Group *order[pianola_max_threads / pianola_simd_width];
    unsigned threads, simds, current; // current: index in order of the group that runs
    Fiber home;
    Lane *running;
    const pianola_kernel *kernel;
    pianola_arguments arguments;
    char *stacks;
    bool failed;
    char error[512];

    ~Emulator() {
        if (stacks) munmap(stacks, pianola_max_threads * stack_size);
    }
};

thread_local Emulator *emulator;
thread_local char failure[640];

// Generator is PCG's linear congruential generator with an output of 31 bits.
struct Generator {
    uint64_t state;
    unsigned below(unsigned n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (unsigned)((state >> 33) % n);
    }
};

template <typename T> void arrange(T *list, unsigned n, int order, Generator &g) {
    for (unsigned i = 0; order == pianola_reverse && i < n / 2; i++) {
        T t = list[i];
        list[i] = list[n - 1 - i];
        list[n - 1 - i] = t;
    }
    for (unsigned i = n; order == pianola_random && i > 1; i--) {
        const unsigned j = g.below(i);
        T t = list[i - 1];
        list[i - 1] = list[j];
        list[j] = t;
    }
}

void go(Lane *from, Lane *to) {
    emulator->running = to;
    change(&from->fiber, &to->fiber);
}

// fail ends the dispatch with an error. It abandons the fibers and their stacks.
[[noreturn]] void fail(const Lane *l, const char *what, const char *where, const char *other) {
    Emulator *e = emulator;
    e->failed = true;
    snprintf(e->error, sizeof e->error, "threadgroup (%u, %u, %u), thread %u: %s%s%s", l->at.group[0], l->at.group[1], l->at.group[2],
             l->at.index, what, where, other);
    change(&e->running->fiber, &e->home);
    abort();
}

// met checks a group whose lanes all wait or have finished. It returns the place at which all
// of them wait, or finished.
const char *met(Group *g) {
    const Lane *first = g->order[0];
    for (Lane *l : g->order) {
        if (l->where == first->where || strcmp(l->where, first->where) == 0) continue;
        if (l->where == finished) fail(l, "returned while others of its SIMD group wait at ", first->where, "");
        if (first->where == finished) fail(first, "returned while others of its SIMD group wait at ", l->where, "");
        char other[128];
        snprintf(other, sizeof other, ", others of its SIMD group at %s", first->where);
        fail(l, "waits at ", l->where, other);
    }
    return first->where;
}

// rest is called by the last lane of a group that waits at a threadgroup barrier or has
// finished. It runs the next group or, if no group is left, lets all groups continue.
void rest(Lane *l) {
    Emulator *e = emulator;
    while (++e->current < e->simds) {
        if (Group *g = e->order[e->current]; !g->done) return go(l, g->order[0]);
    }
    unsigned done = 0;
    for (unsigned i = 0; i < e->simds; i++) done += e->groups[i].done;
    if (done == e->simds) return change(&l->fiber, &e->home);
    for (unsigned i = 0; i < e->simds; i++) {
        if (e->groups[i].done) fail(e->groups[i].order[0], "returned while others wait at ", at_barrier, "");
    }
    e->current = 0;
#if defined(PIANOLA_COUNT)
    pianola_counted.barriers++;
#endif
    if (Lane *to = e->order[0]->order[0]; to != l) go(l, to);
}

// last suspends the last lane of a group that waits.
[[gnu::noinline]] void last(Lane *l, Group *g) {
    const char *all = met(g);
    g->next = 0;
    g->done = all == finished;
    if (g->done || all == at_barrier) {
        rest(l);
    } else if (g->order[0] != l) {
        go(l, g->order[0]);
    }
}

// wait suspends the running lane until it may continue.
void wait(const char *where) {
    Lane *l = emulator->running;
    Group *g = l->group;
    l->where = where;
    if (++g->next < pianola_simd_width) {
        go(l, g->order[g->next]);
    } else {
        last(l, g);
    }
    l->where = nullptr;
}

void run_lane() {
    emulator->kernel->run(&emulator->arguments, &emulator->running->at);
    wait(finished);
    abort();
}

void run_threadgroup(Emulator *e, const unsigned group[3], int order, Generator &g) {
    for (unsigned i = 0; i < e->simds; i++) e->order[i] = &e->groups[i];
    for (unsigned t = 0; t < e->threads; t++) {
        Lane *l = &e->lanes[t];
        l->where = nullptr;
        l->parity = 0;
        for (int d = 0; d < 3; d++) l->at.group[d] = group[d];
        l->fiber.start(run_lane, t % 61);
        l->group->order[l->number] = l;
    }
    for (unsigned i = 0; i < e->simds; i++) {
        e->groups[i].next = 0;
        e->groups[i].done = false;
        arrange(e->groups[i].order, pianola_simd_width, order, g);
    }
    arrange(e->order, e->simds, order, g);
    e->current = 0;
    e->running = e->order[0]->order[0];
    change(&e->home, &e->running->fiber);
}

// make allocates the memory that a thread reuses from one dispatch to the next.
Emulator *make() {
    static thread_local struct Owner {
        Emulator *e = nullptr;
        ~Owner() { delete e; }
    } owner;
    if (!owner.e) {
        owner.e = new Emulator();
        owner.e->stacks = stacks(pianola_max_threads);
        if (!owner.e->stacks) {
            delete owner.e;
            owner.e = nullptr;
        }
    }
    return owner.e;
}

// multiply adds a*b to c. The products of an element are added in the order of the columns of a.
void multiply(Matrices *m) {
    for (unsigned r = 0; r < 8; r++) {
        float sums[8];
        memcpy(sums, m->c + 8 * r, sizeof sums);
        for (unsigned k = 0; k < 8; k++) {
            for (unsigned i = 0; i < 8; i++) sums[i] += m->a[8 * r + k] * m->b[8 * k + i];
        }
        memcpy(m->c + 8 * r, sums, sizeof sums);
    }
    m->multiplied = true;
}

// products computes the sums of the products: those of four columns of the first matrix by pairs, and
// then the sum of all four of these sums.
template <typename T, typename Sum> void products(Products<T, Sum> *p) {
    for (unsigned r = 0; r < 16; r++) {
        Sum sums[8] = {};
        for (unsigned t = 0; t < 4; t++) {
            const T *a = p->a[r][t];
            for (unsigned i = 0; i < 8; i++) sums[i] += (a[0] * p->b[t][0][i] + a[1] * p->b[t][1][i]) + (a[2] * p->b[t][2][i] + a[3] * p->b[t][3][i]);
        }
        memcpy(p->sums[r], sums, sizeof sums);
    }
    p->multiplied = true;
}

// meet lets a lane wait for the operands of the others and returns the sums of its row g. Those of row g+8
// are 64 elements behind them.
template <typename T, typename Sum> const Sum *meet(Products<T, Sum> *p, const Lane *l, const char *where) {
    if (l->group->next == 0) p->multiplied = false; // this lane is the first
    wait(where);
    // The first lane that continues computes the products of all.
    if (!p->multiplied) products(p);
    return p->sums[l->number / 4] + l->number % 4 * 2;
}

int refuse(const char *name, const char *why) {
    snprintf(failure, sizeof failure, "%s: %s", name, why);
    return 1;
}
} // namespace
} // namespace pianola

using namespace pianola;

extern "C" {
unsigned pianola_lane(void) { return emulator->running->number; }

const unsigned *pianola_exchange(unsigned word, const char *what) {
    Lane *l = emulator->running;
    unsigned *words = l->group->words[l->parity];
    l->parity ^= 1;
    words[l->number] = word;
    wait(what);
    return words;
}

void pianola_multiply(const float a[2], const float b[2], float c[2]) {
    Lane *l = emulator->running;
    Group *g = l->group;
    Matrices *m = &g->matrices[l->parity];
    l->parity ^= 1;
    if (g->next == 0) m->multiplied = false; // this lane is the first
    const unsigned at = 2 * l->number;
    memcpy(m->a + at, a, 8);
    memcpy(m->b + at, b, 8);
    memcpy(m->c + at, c, 8);
    wait("simdgroup_multiply_accumulate");
    // The first lane that continues computes the products of all.
    if (!m->multiplied) multiply(m);
    memcpy(c, m->c + at, 8);
}

void pianola_add_products(const unsigned x[4], const unsigned y[2], float c[4]) {
    typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
    typedef double Double4 __attribute__((ext_vector_type(4)));
    Lane *l = emulator->running;
    auto *p = &l->group->halves[l->parity];
    l->parity ^= 1;
    const unsigned g = l->number / 4, t = l->number % 4;
    Half4 h[3];
    memcpy(h, x, 16);
    memcpy(h + 2, y, 8);
    for (unsigned i = 0; i < 2; i++) {
        const Double4 a = __builtin_convertvector(h[i], Double4);
        memcpy(p->a[g + 8 * i][t], &a, sizeof a);
    }
    for (unsigned i = 0; i < 4; i++) p->b[t][i][g] = (double)h[2][i];
    const double *sums = meet(p, l, "products of float16");
    for (unsigned i = 0; i < 4; i++) c[i] = (float)(c[i] + sums[i / 2 * 64 + i % 2]);
}

void pianola_add_byte_products(const unsigned x[2], unsigned y, int c[4]) {
    Lane *l = emulator->running;
    auto *p = &l->group->bytes[l->parity];
    l->parity ^= 1;
    const unsigned g = l->number / 4, t = l->number % 4;
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned r = 0; r < 2; r++) p->a[g + 8 * r][t][i] = (signed char)(x[r] >> 8 * i);
        p->b[t][i][g] = (signed char)(y >> 8 * i);
    }
    const int *sums = meet(p, l, "products of int8");
    for (unsigned i = 0; i < 4; i++) c[i] += sums[i / 2 * 64 + i % 2];
}

void pianola_threadgroup_barrier(void) { wait(at_barrier); }

const char *pianola_error(void) { return failure; }

int pianola_emulate(const char *name, void *const buffers[8], const unsigned long sizes[8], const void *params, const void *second,
                    void *step, const unsigned specs[8], const unsigned grid[3], unsigned threads, unsigned tgmem, int order,
                    unsigned long seed) {
    (void)sizes; // used by the server and for counts
    failure[0] = 0;
    const pianola_kernel *k = pianola_kernels;
    while (k->name && strcmp(k->name, name) != 0) k++;
    if (!k->name) return refuse(name, "no such kernel");
    if (threads == 0 || threads % pianola_simd_width != 0 || threads > k->max_threads)
        return refuse(name, "the number of threads is not a multiple of 32 within the kernel's maximum");
    Emulator *e = make();
    if (!e) return refuse(name, "no memory for stacks");
    // The address is a multiple of 16, as on devices. The address sanitizer detects accesses
    // past the end.
    void *tg = nullptr;
    if (tgmem > 0 && posix_memalign(&tg, 16, tgmem) != 0) return refuse(name, "no memory for the threadgroup");
#if defined(PIANOLA_COUNT)
    pianola_count_begin(buffers, sizes, params, second, step, tg, tgmem);
#endif
    Emulator *outer = emulator;
    emulator = e;
    e->kernel = k;
    e->arguments = {buffers, params, second, step, tg, specs};
    e->threads = threads;
    e->simds = threads / pianola_simd_width;
    e->failed = false;
    for (unsigned t = 0; t < threads; t++) {
        Lane *l = &e->lanes[t];
        l->number = t % pianola_simd_width;
        l->group = &e->groups[t / pianola_simd_width];
        l->fiber.stack = e->stacks + t * stack_size;
        for (int d = 0; d < 3; d++) l->at.groups[d] = grid[d];
        l->at.index = t;
        l->at.threads = threads;
    }
    Generator g{seed};
    const uint64_t n = (uint64_t)grid[0] * grid[1] * grid[2];
    const uint64_t turn = order == pianola_random && n > 0 ? g.below((unsigned)(n < 1u << 30 ? n : 1u << 30)) : 0;
    for (uint64_t i = 0; i < n && !e->failed; i++) {
        const uint64_t j = order == pianola_reverse ? n - 1 - i : (i + turn) % n;
        const unsigned group[3] = {(unsigned)(j % grid[0]), (unsigned)(j / grid[0] % grid[1]), (unsigned)(j / grid[0] / grid[1])};
        if (tg) memset(tg, 0xff, tgmem);
        run_threadgroup(e, group, order, g);
    }
    emulator = outer;
    if (e->failed) forget(e->stacks, pianola_max_threads);
    free(tg);
    return e->failed ? refuse(name, e->error) : 0;
}
}
