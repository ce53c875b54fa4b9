// Streams, events, modules, launches and graphs of the fake driver.
#define _GNU_SOURCE
#include "fake_internal.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_OPS = 1024 }; // per stream, until the host must wait

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static object *streams[64];

// free_parts frees the functions of a module or the nodes of a graph.
static void free_parts(object *whole, enum kind kind) {
    for (;;) {
        object *o = object_part(whole, kind);
        if (!o) return;
        object_free(o);
    }
}

// op_new appends an operation to a stream. It returns NULL if s is not a stream.
op *op_new(object *s, enum what what) {
    if (!object_find(s, STREAM)) return NULL;
    op *o = calloc(1, sizeof *o);
    o->what = what;
    if (s->last && s->first) s->last->next = o;
    else s->first = o;
    s->last = o;
    s->submitted++;
    return o;
}

// translate converts the addresses of a launch to host addresses. It returns 0 if an address is
// not in device memory.
static int translate(const dispatch *d, launch *l) {
    memset(l, 0, sizeof *l);
    for (int i = 0; i < 8; i++) {
        if (!d->args.bind[i]) continue;
        object *o = find_range(d->args.bind[i], 1);
        if (!o) return 0;
        l->bind[i] = host(d->args.bind[i], 1);
        l->size[i] = o->size - (d->args.bind[i] - o->at);
    }
    l->params = d->args.params;
    if (d->args.second && !(l->second = host(d->args.second, 16))) return 0;
    if (!(l->step = host(d->args.step, 64))) return 0;
    l->specs = d->args.specs;
    memcpy(l->grid, d->grid, sizeof l->grid);
    memcpy(l->block, d->block, sizeof l->block);
    l->shared = d->shared;
    return 1;
}

static void run_as(const dispatch *d, kernel run);

// body returns the kernel of a body of the resident kernel; the PTX text contains its name.
static kernel body(const object *module, uint32_t index) {
    char line[64], name[128];
    snprintf(line, sizeof line, "// body %u ", index);
    const char *at = strstr(module->text, line);
    if (!at || sscanf(at + strlen(line), "%127[^\n]", name) != 1) return NULL;
    char *instance = strstr(name, "__");
    if (instance) *instance = 0;
    return fake_kernel(name);
}

// walk performs the work of the resident kernel of package ptx: it executes the records of a
// command array for a number of tokens, until patch finds the stop flag set.
static void walk(const dispatch *d) {
    uint32_t tokens, last, stop;
    memcpy(&tokens, d->args.params, 4);
    memcpy(&last, d->args.params + 4, 4);
    object *whole = d->function->whole;
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t i = 0; i <= last; i++) {
            const uint8_t *r = host(d->args.bind[0] + 256 * (uint64_t)i, 256), *step = host(d->args.step, 64), *counter = host(d->args.bind[2], 4);
            if (!r || !step || !counter) {
                complain("resident", "a record, the step block or the counter is not device memory");
                return;
            }
            dispatch one = {.function = d->function, .shared = d->shared};
            uint32_t own[6]; // body, grid x, y, tiles, barrier, threads
            memcpy(&one.args, r, sizeof one.args);
            memcpy(own, r + 192, sizeof own);
            one.block[0] = own[5], one.block[1] = one.block[2] = 1;
            one.grid[0] = own[1], one.grid[1] = own[2], one.grid[2] = own[3] / (own[1] * own[2]);
            kernel run = body(whole, own[0]);
            if (!run || one.args.second < d->args.second || (i == 1 && !own[4]) || own[5] < 32 || own[5] > d->block[0]) {
                complain("resident", "a record's body, second bytes, barrier or threads");
                return;
            }
            run_as(&one, run);
            memcpy(&stop, step + 32, sizeof stop);
            if (F.sticky || (i == 0 && stop)) return;
        }
}

// run_kernel executes a launch. It is called without the lock.
static void run_kernel(const dispatch *d) {
    if (F.sticky) return;
    if (object_find(d->function, FUNCTION) && !strcmp(d->function->name, "resident")) return walk(d);
    run_as(d, object_find(d->function, FUNCTION) ? d->function->run : NULL);
}

uint8_t *device_memory(dptr at, uint64_t n) {
    pthread_mutex_lock(&lock);
    uint8_t *p = host(at, n);
    pthread_mutex_unlock(&lock);
    if (!p) {
        fprintf(stderr, "fake driver: a kernel reads %llu bytes at %llx, which is not device memory\n", (unsigned long long)n, (unsigned long long)at);
        abort();
    }
    return p;
}

static void run_as(const dispatch *d, kernel run) {
    launch l;
    if (F.sticky) return;
    F.kernels++;
    if (F.fail_kernel && F.kernels >= F.fail_kernel) {
        F.sticky = 719;
        F.fail_kernel = 0;
        return;
    }
    if (!run || !translate(d, &l)) {
        complain("launch", "a kernel's function or memory was freed");
        F.sticky = 700;
        return;
    }
    pthread_mutex_unlock(&lock);
    uint32_t stop;
    memcpy(&stop, l.step + 32, sizeof stop);
    if (F.delay && !stop) usleep((useconds_t)F.delay); // a real kernel also checks the flag first
    run(&l);
    pthread_mutex_lock(&lock);
}

// pending reports whether an operation waits for an event record that has not been executed.
static int pending(const op *o) {
    return o->what == OP_WAIT && object_find(o->event, EVENT) && o->event->happened < o->serial;
}

// execute runs one operation. It never blocks: an OP_WAIT is executed only after its event has
// been recorded.
static void execute(op *o) {
    uint8_t *p;
    switch (o->what) {
    case OP_SET:
        if ((p = host(o->dst, o->n))) memset(p, o->value, o->n);
        break;
    case OP_TO_DEVICE:
        if ((p = host(o->dst, o->n))) memcpy(p, o->copy ? o->copy : o->src, o->n);
        break;
    case OP_TO_HOST:
        if ((p = host(o->dst, o->n)) && !F.sticky) memcpy(o->out, p, o->n);
        break;
    case OP_MOVE:
        if ((p = host(o->dst, o->n)) && host(o->from, o->n)) memcpy(p, host(o->from, o->n), o->n);
        break;
    case OP_RECORD:
        if (object_find(o->event, EVENT)) {
            o->event->when = now();
            if (o->event->happened < o->serial) o->event->happened = o->serial;
        }
        break;
    case OP_WAIT:
        break;
    case OP_LAUNCH:
        run_kernel(&o->d);
        break;
    case OP_GRAPH:
        if (!object_find(o->exec, EXEC)) {
            complain("cuGraphLaunch", "the graph was destroyed");
            break;
        }
        for (int i = 0; i < o->exec->count; i++) run_kernel(&o->exec->nodes[o->exec->order[i]]);
        break;
    }
    free(o->copy);
}

// advance executes one operation of s, or an operation on which the first operation of s
// depends: if that waits for an event, the stream that records the event must advance first.
// The dependencies form no cycle, because an event can only be waited for after its record was
// submitted. If the stream that has to advance is busy, another thread is executing its first
// operation, and advance waits for that thread, which finishes because execute never blocks.
static void advance(object *s) {
    while (!s->busy && pending(s->first)) s = s->first->source;
    if (s->busy) {
        pthread_cond_wait(&changed, &lock);
        return;
    }
    op *o = s->first;
    s->busy = 1;
    execute(o);
    s->first = o->next;
    s->done++;
    free(o);
    s->busy = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock); // lets other threads run
    sched_yield();
    pthread_mutex_lock(&lock);
}

// drain executes all operations that were submitted to s before the call. Another thread may
// destroy s meanwhile, and a new stream may get the same address.
void drain(object *s) {
    if (!object_find(s, STREAM)) return;
    long id = s->id, until = s->submitted;
    while (object_find(s, STREAM) && s->id == id && s->done < until) advance(s);
}

void drain_all(void) {
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i]) drain(streams[i]);
}

void submit(object *s) {
    if (F.eager) drain(s);
    while (s->submitted - s->done > MOST_OPS) advance(s);
}

int cuStreamCreate(object **s, unsigned flags) {
    int e = enter("cuStreamCreate", 2);
    if (!e && flags != 1) e = complain("cuStreamCreate", "a stream that waits for the default one");
    if (!e) {
        static long created;
        size_t i = 0;
        while (i < sizeof streams / sizeof *streams && object_find(streams[i], STREAM)) i++;
        if (i == sizeof streams / sizeof *streams) return leave(complain("cuStreamCreate", "more streams than the fake driver supports"));
        *s = streams[i] = object_new(STREAM);
        (*s)->id = ++created;
    }
    return leave(e);
}

int cuStreamDestroy_v2(object *s) {
    int e = enter("cuStreamDestroy", 2);
    if (!object_find(s, STREAM)) return leave(complain("cuStreamDestroy", "no such stream"));
    s->tried = 1;
    if (!e) {
        drain(s);
        for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
            if (streams[i] == s) streams[i] = NULL;
        object_free(s);
    }
    return leave(e);
}

int cuStreamSynchronize(object *s) {
    int e = enter("cuStreamSynchronize", 2);
    if (!e && !object_find(s, STREAM)) e = complain("cuStreamSynchronize", "no such stream");
    if (!e) {
        drain(s);
        e = F.sticky;
    }
    return leave(e);
}

int cuStreamWaitEvent(object *s, object *event, unsigned flags) {
    int e = enter("cuStreamWaitEvent", 2);
    (void)flags;
    if (!e && (!object_find(s, STREAM) || !object_find(event, EVENT))) e = complain("cuStreamWaitEvent", "no such stream or event");
    if (!e) {
        op *o = op_new(s, OP_WAIT);
        o->event = event, o->serial = event->recorded, o->source = event->source;
        submit(s);
    }
    return leave(e);
}

int cuEventCreate(object **event, unsigned flags) {
    int e = enter("cuEventCreate", 2);
    if (!e) {
        *event = object_new(EVENT);
        (*event)->timing = !(flags & 2);
    }
    return leave(e);
}

int cuEventDestroy_v2(object *event) {
    int e = enter("cuEventDestroy", 2);
    if (!object_find(event, EVENT)) return leave(complain("cuEventDestroy", "no such event"));
    event->tried = 1;
    if (!e) {
        drain_all();
        object_free(event);
    }
    return leave(e);
}

int cuEventRecord(object *event, object *s) {
    int e = enter("cuEventRecord", 2);
    if (!e && (!object_find(s, STREAM) || !object_find(event, EVENT))) e = complain("cuEventRecord", "no such stream or event");
    if (!e) {
        op *o = op_new(s, OP_RECORD);
        o->event = event, o->serial = ++event->recorded;
        event->source = s;
        submit(s);
    }
    return leave(e);
}

int cuEventSynchronize(object *event) {
    int e = enter("cuEventSynchronize", 2);
    if (!e && !object_find(event, EVENT)) e = complain("cuEventSynchronize", "no such event");
    if (!e) {
        long serial = event->recorded;
        object *s = event->source;
        while (object_find(event, EVENT) && event->happened < serial && object_find(s, STREAM)) advance(s);
        e = F.sticky;
    }
    return leave(e);
}

int cuEventElapsedTime(float *ms, object *from, object *to) {
    int e = enter("cuEventElapsedTime", 2);
    if (!e && (!object_find(from, EVENT) || !object_find(to, EVENT))) e = complain("cuEventElapsedTime", "no such event");
    if (!e && (!from->timing || !to->timing)) e = complain("cuEventElapsedTime", "an event without timing");
    if (!e && (!from->recorded || !to->recorded)) e = complain("cuEventElapsedTime", "an event that was not recorded");
    if (!e && (from->happened < from->recorded || to->happened < to->recorded)) e = 600;
    if (!e) *ms = (float)(to->when - from->when);
    return leave(e);
}

// --- modules

int cuModuleLoadDataEx(object **m, const char *text, unsigned n, const int *options, void **values) {
    int e = enter("cuModuleLoadDataEx", 2);
    if (!e && !is_ptx(text)) {
        e = 218;
        for (unsigned i = 0; i < n; i++)
            if (options[i] == 5) snprintf(values[i], 64, "line 1: this is no PTX\n");
    }
    if (!e) {
        *m = object_new(MODULE);
        (*m)->text = strdup(text);
        F.jits++;
    }
    return leave(e);
}

int cuModuleUnload(object *m) {
    int e = enter("cuModuleUnload", 2);
    if (!object_find(m, MODULE)) return leave(complain("cuModuleUnload", "no such module"));
    m->tried = 1;
    if (!e) {
        drain_all();
        free_parts(m, FUNCTION);
        object_free(m);
    }
    return leave(e);
}

int cuModuleGetFunction(object **f, object *m, const char *name) {
    int e = enter("cuModuleGetFunction", 2);
    if (!e && !object_find(m, MODULE)) e = complain("cuModuleGetFunction", "no such module");
    char entry[160], base[128];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    snprintf(base, sizeof base, "%s", name);
    char *instance = strstr(base, "__");
    if (instance) *instance = 0;
    if (!e && (!strstr(m->text, entry) || (!fake_kernel(base) && strcmp(base, "resident")))) e = 500;
    if (!e) {
        object *o = object_new(FUNCTION);
        o->whole = m, o->run = fake_kernel(base), o->tried = 1; // freed with its module
        o->allowed = 48 << 10;
        snprintf(o->name, sizeof o->name, "%s", name);
        *f = o;
    }
    return leave(e);
}

int cuFuncGetAttribute(int *v, int attribute, object *f) {
    int e = enter("cuFuncGetAttribute", 2);
    if (!e && (!object_find(f, FUNCTION) || attribute != 0)) e = complain("cuFuncGetAttribute", "no such function or attribute");
    if (!e) *v = 512;
    return leave(e);
}

int cuFuncSetAttribute(object *f, int attribute, int v) {
    int e = enter("cuFuncSetAttribute", 2);
    if (!e && (!object_find(f, FUNCTION) || attribute != 8)) e = complain("cuFuncSetAttribute", "no such function or attribute");
    if (!e && (v < 0 || v > 232448)) e = 1;
    if (!e) f->allowed = (uint32_t)v;
    return leave(e);
}

// --- matrices

// A descriptor is 128 bytes at a multiple of 64. The fake kernels do not read it.
int cuTensorMapEncodeTiled(uint8_t *map, int type, uint32_t rank, dptr at, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
    int e = enter("cuTensorMapEncodeTiled", 2);
    if (!e && ((uintptr_t)map % 64 != 0 || type != 6 || rank != 2 || interleave != 0 || swizzle != 3 || promotion != 3 || fill != 0))
        e = complain("cuTensorMapEncodeTiled", "address or settings of the descriptor");
    if (!e && (at % 16 != 0 || strides[0] % 16 != 0 || dims[0] == 0 || dims[1] == 0 || strides[0] < 2 * dims[0]))
        e = complain("cuTensorMapEncodeTiled", "address or size of the matrix");
    if (!e && !host(at, (dims[1] - 1) * strides[0] + 2 * dims[0])) e = complain("cuTensorMapEncodeTiled", "outside of device memory");
    if (!e && (box[0] != 64 || box[1] != 64 || steps[0] != 1 || steps[1] != 1)) e = complain("cuTensorMapEncodeTiled", "box");
    if (!e) memset(map, 0x5a, 128);
    return leave(e);
}

// --- launches

static int fill(dispatch *d, object *f, const uint32_t *grid, const uint32_t *block, uint32_t shared, void **params, void **extra) {
    if (!object_find(f, FUNCTION)) return complain("launch", "no such function");
    if (params || !extra || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) return complain("launch", "arguments are not one buffer");
    if (*(size_t *)extra[3] != sizeof(arguments)) return complain("launch", "the size of the arguments differs from that of the kernel's parameters");
    for (int i = 0; i < 3; i++)
        if (grid[i] == 0 || block[i] == 0 || (i > 0 && grid[i] > 65535)) return complain("launch", "grid or block");
    if (block[0] * block[1] * block[2] > 512 || shared > f->allowed) return 701;
    d->function = f, d->shared = shared;
    memcpy(d->grid, grid, 12);
    memcpy(d->block, block, 12);
    memcpy(&d->args, extra[1], sizeof d->args);
    launch l;
    if (!translate(d, &l)) return complain("launch", "an argument is not device memory");
    return 0;
}

int cuLaunchKernel(object *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, object *s, void **params, void **extra) {
    int e = enter("cuLaunchKernel", 2);
    uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    dispatch d;
    if (!e) e = fill(&d, f, grid, block, shared, params, extra);
    if (!e && !object_find(s, STREAM)) e = complain("cuLaunchKernel", "no such stream");
    if (!e) {
        F.launches++;
        op_new(s, OP_LAUNCH)->d = d;
        submit(s);
    }
    return leave(e);
}

// cluster is the value of a launch attribute for clusters, whose id is 4.
enum { ATTRIBUTE_CLUSTER = 4 };

typedef struct {
    unsigned x, y, z;
} cluster;

typedef struct {
    int id;
    char pad[4];
    union {
        cluster cluster;
        char bytes[64];
    } value;
} launch_attribute;

typedef struct {
    unsigned grid[3], block[3], shared;
    object *stream;
    const launch_attribute *attributes;
    unsigned count;
} launch_config;

// divides complains unless a grid consists of whole clusters, of at most 8 blocks.
static int divides(const char *name, const uint32_t *grid, const cluster *c) {
    if (c->x == 0 || c->x > 8 || c->y != 1 || c->z != 1 || grid[0] % c->x) return complain(name, "the grid does not consist of clusters");
    return F.major < 9 ? complain(name, "the GPU has no clusters") : 0;
}

int cuLaunchKernelEx(const launch_config *config, object *f, void **params, void **extra) {
    int e = enter("cuLaunchKernelEx", 2);
    dispatch d;
    if (!e && (config->count != 1 || config->attributes->id != ATTRIBUTE_CLUSTER)) e = complain("cuLaunchKernelEx", "unknown attributes");
    if (!e) e = divides("cuLaunchKernelEx", config->grid, &config->attributes->value.cluster);
    if (!e) e = fill(&d, f, config->grid, config->block, config->shared, params, extra);
    if (!e && !object_find(config->stream, STREAM)) e = complain("cuLaunchKernelEx", "no such stream");
    if (!e) {
        F.launches++;
        op_new(config->stream, OP_LAUNCH)->d = d;
        submit(config->stream);
    }
    return leave(e);
}

enum { BLOCKS = 2 }; // blocks of a kernel per multiprocessor

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, object *f, int threads, size_t shared) {
    int e = enter("cuOccupancyMaxActiveBlocksPerMultiprocessor", 2);
    if (!e && (!object_find(f, FUNCTION) || threads <= 0)) e = complain("cuOccupancyMaxActiveBlocksPerMultiprocessor", "no such function, or no threads");
    if (!e) *n = threads > 512 || shared > f->allowed ? 0 : BLOCKS;
    return leave(e);
}

int cuLaunchCooperativeKernel(object *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, object *s, void **params) {
    int e = enter("cuLaunchCooperativeKernel", 2);
    uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    arguments a;
    size_t size = sizeof a;
    dispatch d;
    if (!e && !params) e = complain("cuLaunchCooperativeKernel", "no arguments");
    if (!e && gx * gy * gz > 132 * BLOCKS) e = 720;
    if (!e) {
        for (int i = 0; i < 8; i++) memcpy(&a.bind[i], params[i], 8);
        memcpy(a.params, params[8], 64);
        memcpy(&a.second, params[9], 8);
        memcpy(&a.step, params[10], 8);
        memcpy(a.specs, params[11], 32);
        void *extra[] = {(void *)1, &a, (void *)2, &size, NULL};
        e = fill(&d, f, grid, block, shared, NULL, extra);
    }
    if (!e && !object_find(s, STREAM)) e = complain("cuLaunchCooperativeKernel", "no such stream");
    if (!e) {
        F.launches++;
        op_new(s, OP_LAUNCH)->d = d;
        submit(s);
    }
    return leave(e);
}

// --- graphs

int cuGraphCreate(object **g, unsigned flags) {
    int e = enter("cuGraphCreate", 2);
    (void)flags;
    if (!e) *g = object_new(GRAPH);
    return leave(e);
}

int cuGraphDestroy(object *g) {
    int e = enter("cuGraphDestroy", 2);
    if (!object_find(g, GRAPH)) return leave(complain("cuGraphDestroy", "no such graph"));
    g->tried = 1;
    if (!e) {
        free_parts(g, NODE);
        object_free(g);
    }
    return leave(e);
}

typedef struct {
    object *function;
    uint32_t grid[3], block[3], shared;
    void **params, **extra;
} node_params;

int cuGraphAddKernelNode(object **node, object *g, object **after, size_t n, const node_params *p) {
    int e = enter("cuGraphAddKernelNode", 2);
    if (!e && !object_find(g, GRAPH)) e = complain("cuGraphAddKernelNode", "no such graph");
    for (size_t i = 0; !e && i < n; i++)
        if (!object_find(after[i], NODE) || after[i]->whole != g) e = complain("cuGraphAddKernelNode", "a dependency is not a node of the graph");
    dispatch d;
    if (!e) e = fill(&d, p->function, p->grid, p->block, p->shared, p->params, p->extra);
    if (!e) {
        g->nodes = realloc(g->nodes, (size_t)(g->count + 1) * sizeof d);
        g->nodes[g->count] = d;
        g->edges = realloc(g->edges, (size_t)(g->edge_count + (int)n + 1) * sizeof *g->edges);
        for (size_t i = 0; i < n; i++) g->edges[g->edge_count++] = (edge){after[i]->index, g->count};
        *node = object_new(NODE);
        (*node)->whole = g, (*node)->index = g->count++, (*node)->tried = 1; // freed with its graph
    }
    return leave(e);
}

int cuGraphKernelNodeSetAttribute(object *node, int id, const cluster *value) {
    int e = enter("cuGraphKernelNodeSetAttribute", 2);
    if (!e && !object_find(node, NODE)) e = complain("cuGraphKernelNodeSetAttribute", "no such node");
    if (!e && id != ATTRIBUTE_CLUSTER) e = complain("cuGraphKernelNodeSetAttribute", "unknown attribute");
    if (!e) e = divides("cuGraphKernelNodeSetAttribute", node->whole->nodes[node->index].grid, value);
    return leave(e);
}

typedef struct {
    uint8_t from_port, to_port, type, reserved[5];
} edge_data;

int cuGraphAddDependencies_v2(object *g, object **from, object **to, const edge_data *data, size_t n) {
    int e = enter("cuGraphAddDependencies", 2);
    if (!e && !object_find(g, GRAPH)) e = complain("cuGraphAddDependencies", "no such graph");
    for (size_t i = 0; !e && i < n; i++) {
        if (!object_find(from[i], NODE) || !object_find(to[i], NODE) || from[i]->whole != g || to[i]->whole != g)
            e = complain("cuGraphAddDependencies", "an edge between nodes that are not in the graph");
        else if (data && (data[i].to_port || data[i].type > 1 || data[i].from_port != data[i].type))
            e = complain("cuGraphAddDependencies", "unknown kind of edge");
        if (e) break;
        g->edges = realloc(g->edges, (size_t)(g->edge_count + 1) * sizeof *g->edges);
        g->edges[g->edge_count++] = (edge){from[i]->index, to[i]->index};
    }
    return leave(e);
}

// order_nodes puts a graph's nodes in an order that differs as much as possible from the order
// in which they were added: of the nodes that may run, it takes the last. So a missing edge
// becomes visible.
static int *order_nodes(const object *g) {
    int *order = malloc((size_t)(g->count + 1) * sizeof *order), *waits = calloc((size_t)g->count + 1, sizeof *waits);
    for (int i = 0; i < g->edge_count; i++) waits[g->edges[i].to]++;
    for (int n = 0; n < g->count; n++) {
        int at = g->count - 1;
        while (waits[at]) at--;
        order[n] = at;
        waits[at] = -1;
        for (int i = 0; i < g->edge_count; i++)
            if (g->edges[i].from == at) waits[g->edges[i].to]--;
    }
    free(waits);
    return order;
}

int cuGraphInstantiateWithFlags(object **exec, object *g, unsigned long long flags) {
    int e = enter("cuGraphInstantiateWithFlags", 2);
    (void)flags;
    if (!e && !object_find(g, GRAPH)) e = complain("cuGraphInstantiateWithFlags", "no such graph");
    if (!e) {
        object *o = object_new(EXEC);
        o->nodes = malloc((size_t)(g->count + 1) * sizeof *g->nodes);
        memcpy(o->nodes, g->nodes, (size_t)g->count * sizeof *g->nodes);
        o->count = g->count;
        o->order = order_nodes(g);
        *exec = o;
    }
    return leave(e);
}

int cuGraphExecDestroy(object *exec) {
    int e = enter("cuGraphExecDestroy", 2);
    if (!object_find(exec, EXEC)) return leave(complain("cuGraphExecDestroy", "no such graph"));
    exec->tried = 1;
    if (!e) {
        drain_all();
        object_free(exec);
    }
    return leave(e);
}

#ifndef WITHOUT_GRAPH_UPLOAD
int cuGraphUpload(object *exec, object *s) {
    int e = enter("cuGraphUpload", 2);
    if (!e && (!object_find(exec, EXEC) || !object_find(s, STREAM))) e = complain("cuGraphUpload", "no such graph or stream");
    return leave(e);
}
#endif

int cuGraphLaunch(object *exec, object *s) {
    int e = enter("cuGraphLaunch", 2);
    if (!e && (!object_find(exec, EXEC) || !object_find(s, STREAM))) e = complain("cuGraphLaunch", "no such graph or stream");
    if (!e) {
        F.graph_launches++;
        op_new(s, OP_GRAPH)->exec = exec;
        submit(s);
    }
    return leave(e);
}
