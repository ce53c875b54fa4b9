// State, objects, faults and memory of the fake driver. One lock guards everything; it is
// released while an operation of a stream runs.
#define _GNU_SOURCE
#include "fake_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
struct fake F = {.version = 13000, .devices = 1, .total = 1ull << 30, .major = 9, .minor = 0, .next = 1ull << 40, .delay = 0};

static object *objects[KINDS]; // a list of each kind
static __thread struct { uint64_t id[16]; int n; } current; // stack of contexts of this thread

// complain records the first misuse; tests read it.
int complain(const char *call, const char *what) {
    if (!F.complaint[0]) snprintf(F.complaint, sizeof F.complaint, "%s: %s", call, what);
    return 1;
}

// enter begins a call. It returns the error that the call must return, or 0.
// The number of calls of each function.
static struct {
    const char *name;
    long calls;
} functions[128];

static void count(const char *call) {
    int i = 0;
    while (i < 127 && functions[i].name && strcmp(functions[i].name, call)) i++;
    functions[i].name = call;
    functions[i].calls++;
}

// The names of the first calls, in order.
static const char *trace[1 << 14];

int enter(const char *call, int context) {
    pthread_mutex_lock(&lock);
    if (F.calls < (long)(sizeof trace / sizeof *trace)) trace[F.calls] = call;
    F.calls++;
    count(call);
    snprintf(F.last, sizeof F.last, "%s", call);
    if (F.fail_at && F.calls == F.fail_at) {
        snprintf(F.failed, sizeof F.failed, "%s", call);
        if (F.fail_code >= 700 && F.context) F.sticky = F.fail_code;
        return F.fail_code;
    }
    if (!F.initialised && context) return complain(call, "before cuInit"), 3;
    if (context == 2 && (current.n == 0 || !F.context || current.id[current.n - 1] != F.context)) {
        complain(call, "no context is current");
        return 201;
    }
    return context ? F.sticky : 0;
}

int leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

// --- objects

object *object_new(enum kind kind) {
    object *o = calloc(1, sizeof *o);
    o->kind = kind;
    o->next = objects[kind];
    objects[kind] = o;
    F.live[kind]++;
    return o;
}

object *object_find(void *p, enum kind kind) {
    for (object *o = objects[kind]; o; o = o->next)
        if (o == p) return o;
    return NULL;
}

void object_free(object *o) {
    for (object **at = &objects[o->kind]; *at; at = &(*at)->next)
        if (*at == o) {
            *at = o->next;
            break;
        }
    F.live[o->kind]--;
    if (o->kind == MEMORY) F.used -= o->size;
    if (o->kind == MEMORY || o->kind == PINNED) {
        for (int i = 0; i < ZONE; i++)
            if (o->raw[i] != POISON || o->raw[ZONE + o->size + i] != POISON) complain("free", "memory was written outside of its bounds");
        memset(o->raw, 0xdd, o->size + 2 * ZONE);
        free(o->raw);
    }
    if (o->kind == LINK) free(o->raw);
    while (o->first) {
        op *next = o->first->next;
        free(o->first);
        o->first = next;
    }
    free(o->text);
    free(o->nodes);
    free(o->edges);
    free(o->order);
    free(o);
}

// object_part returns a function of a module, or a node of a graph, or NULL.
object *object_part(const object *whole, enum kind kind) {
    for (object *o = objects[kind]; o; o = o->next)
        if (o->whole == whole) return o;
    return NULL;
}

object *find_range(dptr p, uint64_t n) {
    for (object *o = objects[MEMORY]; o; o = o->next)
        if (p >= o->at && p - o->at <= o->size && n <= o->size - (p - o->at)) return o;
    return NULL;
}

static object *find_pinned(const void *p) {
    for (object *o = objects[PINNED]; o; o = o->next)
        if ((const uint8_t *)p >= o->raw + ZONE && (const uint8_t *)p < o->raw + ZONE + o->size) return o;
    return NULL;
}

// host returns the host's address of device memory, or NULL.
uint8_t *host(dptr p, uint64_t n) {
    object *o = find_range(p, n);
    return o ? o->raw + ZONE + (p - o->at) : NULL;
}

// --- start, devices, context

int cuInit(unsigned flags) {
    int e = enter("cuInit", 0);
    if (!e && flags) e = complain("cuInit", "flags");
    if (!e && F.init_code) e = F.init_code;
    if (!e && !F.devices) e = 100;
    if (!e) F.initialised = 1;
    return leave(e);
}

int cuDriverGetVersion(int *v) {
    int e = enter("cuDriverGetVersion", 0);
    if (!e) *v = F.version;
    return leave(e);
}

int cuGetErrorName(int code, const char **name) {
    static const struct { int code; const char *name; } names[] = {
        {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {100, "CUDA_ERROR_NO_DEVICE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"},
        {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {218, "CUDA_ERROR_INVALID_PTX"}, {400, "CUDA_ERROR_INVALID_HANDLE"}, {500, "CUDA_ERROR_NOT_FOUND"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}, {719, "CUDA_ERROR_LAUNCH_FAILED"}, {999, "CUDA_ERROR_UNKNOWN"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) {
            *name = names[i].name;
            return 0;
        }
    *name = NULL;
    return 1;
}

int cuDeviceGetCount(int *n) {
    int e = enter("cuDeviceGetCount", 1);
    if (!e) *n = F.devices;
    return leave(e);
}

int cuDeviceGet(int *dev, int ordinal) {
    int e = enter("cuDeviceGet", 1);
    if (!e && (ordinal < 0 || ordinal >= F.devices)) e = 101;
    if (!e) *dev = ordinal;
    return leave(e);
}

int cuDeviceGetName(char *name, int n, int dev) {
    int e = enter("cuDeviceGetName", 1);
    if (!e && dev >= F.devices) e = 101;
    if (!e) snprintf(name, (size_t)n, "Fake GPU");
    return leave(e);
}

int cuDeviceTotalMem_v2(size_t *n, int dev) {
    int e = enter("cuDeviceTotalMem", 1);
    if (!e && dev >= F.devices) e = 101;
    if (!e) *n = F.total;
    return leave(e);
}

int cuDeviceGetAttribute(int *v, int attribute, int dev) {
    int e = enter("cuDeviceGetAttribute", 1);
    if (!e && dev >= F.devices) e = 101;
    static const struct { int a, v; } known[] = {{1, 1024}, {5, 0x7fffffff}, {6, 65535}, {7, 65535}, {10, 32}, {16, 132}, {36, 3201000}, {37, 6144}, {95, 1}, {97, 232448}};
    if (!e) {
        *v = attribute == 75 ? F.major : attribute == 76 ? F.minor : -1;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (known[i].a == attribute) *v = known[i].v;
        if (*v < 0) e = complain("cuDeviceGetAttribute", "unknown attribute");
    }
    return leave(e);
}

int cuDevicePrimaryCtxRetain(uint64_t *c, int dev) {
    int e = enter("cuDevicePrimaryCtxRetain", 1);
    if (!e && dev >= F.devices) e = 101;
    if (!e) {
        if (F.retained++ == 0) F.context = 0xc0de0000ull + (uint64_t)++F.contexts;
        *c = F.context;
    }
    return leave(e);
}

// Releasing works on a lost device, too. The last release frees all remaining objects.
int cuDevicePrimaryCtxRelease_v2(int dev) {
    int e = enter("cuDevicePrimaryCtxRelease", 1);
    (void)dev;
    if (F.retained == 0) {
        complain("cuDevicePrimaryCtxRelease", "not retained");
        return leave(201);
    }
    int injected = e && e != F.sticky;
    if (injected) {
        F.excused++;
        return leave(e);
    }
    if (--F.retained == 0) {
        for (int kind = 0; kind < KINDS; kind++)
            while (objects[kind]) {
                if (!objects[kind]->tried) F.leaked++;
                object_free(objects[kind]);
            }
        F.context = 0;
        F.sticky = 0;
    }
    return leave(0);
}

// drop_contexts removes contexts that do not exist any more from this thread's stack. They stay there if popping
// them has failed.
static void drop_contexts(void) {
    int n = 0;
    for (int i = 0; i < current.n; i++)
        if (current.id[i] == F.context) current.id[n++] = current.id[i];
    current.n = n;
}

int cuCtxPushCurrent_v2(uint64_t c) {
    int e = enter("cuCtxPushCurrent", 1);
    if (e && e == F.sticky && F.fail_at != F.calls) e = 0; // an error of an earlier kernel, not of this call
    if (!e && (!F.context || c != F.context)) e = 201;
    if (!e && current.n == 16) drop_contexts();
    if (!e && current.n == 16) e = complain("cuCtxPushCurrent", "too deep");
    if (!e) current.id[current.n++] = c;
    return leave(e);
}

int cuCtxPopCurrent_v2(uint64_t *c) {
    int e = enter("cuCtxPopCurrent", 1);
    if (e && e == F.sticky && F.fail_at != F.calls) e = 0;
    if (!e && current.n == 0) e = 201;
    if (!e) *c = current.id[--current.n];
    return leave(e);
}

// --- memory

int cuMemGetInfo_v2(size_t *left, size_t *total) {
    int e = enter("cuMemGetInfo", 2);
    if (!e) {
        *left = F.total - F.used;
        *total = F.total;
    }
    return leave(e);
}

static object *allocate(enum kind kind, uint64_t n) {
    object *o = object_new(kind);
    o->size = n;
    o->raw = malloc(n + 2 * ZONE);
    memset(o->raw, POISON, n + 2 * ZONE);
    return o;
}

int cuMemAlloc_v2(dptr *p, size_t n) {
    int e = enter("cuMemAlloc", 2);
    if (!e && n == 0) e = complain("cuMemAlloc", "0 bytes");
    F.allocations++;
    if (!e && ((F.fail_alloc && F.allocations == F.fail_alloc) || n > F.total - F.used)) e = 2;
    if (!e) {
        object *o = allocate(MEMORY, n);
        o->at = F.next;
        F.next += (n + (2ull << 21)) >> 21 << 21; // leave a gap after the allocation
        F.used += n;
        *p = o->at;
    }
    return leave(e);
}

int cuMemFree_v2(dptr p) {
    int e = enter("cuMemFree", 2);
    object *o = find_range(p, 0);
    if (!o || o->at != p) return leave(complain("cuMemFree", "no such memory"));
    o->tried = 1;
    if (!e) {
        drain_all();
        object_free(o);
    }
    return leave(e);
}

int cuMemHostAlloc(void **p, size_t n, unsigned flags) {
    int e = enter("cuMemHostAlloc", 2);
    (void)flags;
    if (!e && n == 0) e = complain("cuMemHostAlloc", "0 bytes");
    F.allocations++;
    if (!e && F.fail_alloc && F.allocations == F.fail_alloc) e = 2;
    if (!e) *p = allocate(PINNED, n)->raw + ZONE;
    return leave(e);
}

int cuMemFreeHost(void *p) {
    int e = enter("cuMemFreeHost", 2);
    object *o = find_pinned(p);
    if (!o || o->raw + ZONE != p) return leave(complain("cuMemFreeHost", "no such memory"));
    o->tried = 1;
    if (!e) {
        drain_all();
        object_free(o);
    }
    return leave(e);
}

int cuMemsetD8Async(dptr p, unsigned char v, size_t n, object *s) {
    int e = enter("cuMemsetD8Async", 2);
    if (!e && !host(p, n)) e = complain("cuMemsetD8Async", "outside of device memory");
    if (!e) {
        op *o = op_new(s, OP_SET);
        if (!o) return leave(complain("cuMemsetD8Async", "no such stream"));
        o->dst = p, o->n = n, o->value = v;
        submit(s);
    }
    return leave(e);
}

// Pageable memory is copied at once, pinned memory when the stream executes the copy.
int cuMemcpyHtoDAsync_v2(dptr dst, const void *src, size_t n, object *s) {
    int e = enter("cuMemcpyHtoDAsync", 2);
    if (!e && !host(dst, n)) e = complain("cuMemcpyHtoDAsync", "outside of device memory");
    object *pin = find_pinned(src);
    if (!e && pin && (const uint8_t *)src + n > pin->raw + ZONE + pin->size) e = complain("cuMemcpyHtoDAsync", "past the end of pinned memory");
    if (!e) {
        op *o = op_new(s, OP_TO_DEVICE);
        if (!o) return leave(complain("cuMemcpyHtoDAsync", "no such stream"));
        o->dst = dst, o->n = n, o->src = src;
        if (!pin) {
            o->copy = malloc(n ? n : 1);
            memcpy(o->copy, src, n);
        }
        submit(s);
    }
    return leave(e);
}

// A copy to pageable memory is complete before the call returns.
int cuMemcpyDtoDAsync_v2(dptr dst, dptr src, size_t n, object *s) {
    int e = enter("cuMemcpyDtoDAsync", 2);
    if (!e && (!host(dst, n) || !host(src, n))) e = complain("cuMemcpyDtoDAsync", "outside of device memory");
    if (!e && dst < src + n && src < dst + n) e = complain("cuMemcpyDtoDAsync", "ranges overlap");
    if (!e) {
        op *o = op_new(s, OP_MOVE);
        if (!o) return leave(complain("cuMemcpyDtoDAsync", "no such stream"));
        o->dst = dst, o->from = src, o->n = n;
        submit(s);
    }
    return leave(e);
}

// place is one side of a CUDA_MEMCPY2D.
typedef struct {
    uint64_t x, y;
    uint32_t type, reserved;
    void *host;
    dptr device;
    void *array;
    uint64_t pitch;
} place;

typedef struct {
    place from, to;
    uint64_t width, height;
} copy_rows;

int cuMemcpy2DAsync_v2(const copy_rows *c, object *s) {
    int e = enter("cuMemcpy2DAsync", 2);
    const place *sides[] = {&c->from, &c->to};
    for (int i = 0; i < 2 && !e; i++) {
        const place *p = sides[i];
        if (p->type != 2 || p->x || p->y || p->host || p->array) e = complain("cuMemcpy2DAsync", "not device memory from its beginning on");
        else if (!c->height || !c->width || p->pitch < c->width || p->pitch > INT32_MAX) e = complain("cuMemcpy2DAsync", "pitch or size");
        else if (!host(p->device, (c->height - 1) * p->pitch + c->width)) e = complain("cuMemcpy2DAsync", "outside of device memory");
    }
    for (uint64_t i = 0; i < c->height && !e; i++) {
        op *o = op_new(s, OP_MOVE);
        if (!o) return leave(complain("cuMemcpy2DAsync", "no such stream"));
        o->dst = c->to.device + i * c->to.pitch, o->from = c->from.device + i * c->from.pitch, o->n = c->width;
        submit(s);
    }
    return leave(e);
}

int cuMemcpyDtoHAsync_v2(void *dst, dptr src, size_t n, object *s) {
    int e = enter("cuMemcpyDtoHAsync", 2);
    if (!e && !host(src, n)) e = complain("cuMemcpyDtoHAsync", "outside of device memory");
    if (!e) {
        op *o = op_new(s, OP_TO_HOST);
        if (!o) return leave(complain("cuMemcpyDtoHAsync", "no such stream"));
        o->dst = src, o->n = n, o->out = dst;
        int pinned = find_pinned(dst) != NULL;
        submit(s);
        if (!pinned) {
            drain(s);
            e = F.sticky;
        }
    }
    return leave(e);
}

// --- what tests ask and tell

void fake_fail_at(long call, int code) { F.fail_at = call ? F.calls + call : 0, F.fail_code = code, F.failed[0] = 0; }
void fake_fail_alloc(long n) { F.fail_alloc = n ? F.allocations + n : 0; }
void fake_fail_kernel(long n) { F.fail_kernel = n ? F.kernels + n : 0; }
void fake_set_version(int v) { F.version = v; }
void fake_set_init(int code) { F.init_code = code; }
void fake_set_devices(int n) { F.devices = n; }
void fake_set_capability(int major, int minor) { F.major = major, F.minor = minor; }
void fake_set_memory(uint64_t n) { F.total = n; }
void fake_set_eager(int on) { F.eager = on; }
void fake_set_delay(int microseconds) { F.delay = microseconds; }
long fake_calls(void) { return F.calls; }
long fake_kernels(void) { return F.kernels; }
long fake_launches(void) { return F.launches; }
long fake_graph_launches(void) { return F.graph_launches; }
uint64_t fake_used(void) { return F.used; }
int fake_retained(void) { return F.retained; }
long fake_leaked(void) { return F.leaked; }
long fake_excused(void) { return F.excused; }
const char *fake_complaint(void) { return F.complaint; }
const char *fake_failed(void) { return F.failed; }

// fake_trace returns the names of the first calls, a line each.
const char *fake_trace(void) {
    static char text[32 * (sizeof trace / sizeof *trace)];
    size_t n = 0;
    pthread_mutex_lock(&lock);
    text[0] = 0;
    for (int i = 0; i < (int)(sizeof trace / sizeof *trace) && trace[i]; i++) n += (size_t)snprintf(text + n, sizeof text - n, "%.30s\n", trace[i]);
    pthread_mutex_unlock(&lock);
    return text;
}

// fake_called returns lines with the name of a function and the number of its calls.
const char *fake_called(void) {
    static char text[1 << 14];
    size_t n = 0;
    pthread_mutex_lock(&lock);
    text[0] = 0;
    for (int i = 0; i < 128 && functions[i].name; i++) n += (size_t)snprintf(text + n, sizeof text - n, "%s %ld\n", functions[i].name, functions[i].calls);
    pthread_mutex_unlock(&lock);
    return text;
}

void fake_forgive(void) { F.complaint[0] = 0; }

// fake_release destroys the contexts whose release was made to fail.
void fake_release(void) {
    for (; F.excused; F.excused--) cuDevicePrimaryCtxRelease_v2(0);
}

// fake_live returns the number of objects that the caller has not tried to free.
long fake_live(void) {
    long n = 0;
    pthread_mutex_lock(&lock);
    for (int kind = 0; kind < KINDS; kind++)
        for (object *o = objects[kind]; o; o = o->next) n += !o->tried;
    pthread_mutex_unlock(&lock);
    return n;
}
