// Declarations shared by the files of the fake driver.
#ifndef FAKE_INTERNAL_H
#define FAKE_INTERNAL_H

#include "fake.h"

#include <pthread.h>

enum kind { MEMORY, PINNED, STREAM, EVENT, LINK, MODULE, FUNCTION, GRAPH, NODE, EXEC, KINDS };

enum { ZONE = 64, POISON = 0xff }; // float32 and float16 NaN

typedef struct object object;

enum what { OP_SET, OP_TO_DEVICE, OP_TO_HOST, OP_MOVE, OP_RECORD, OP_WAIT, OP_LAUNCH, OP_GRAPH };

// A kernel launch by a stream or by a node of a graph.
typedef struct {
    object *function;
    uint32_t grid[3], block[3], shared;
    arguments args;
} dispatch;

typedef struct {
    int from, to;
} edge;

// An operation of a stream.
typedef struct op {
    struct op *next;
    enum what what;
    dptr dst, from;
    uint64_t n;
    int value;
    const void *src;
    void *copy, *out;
    object *event;
    long serial;    // of the event's record
    object *source; // of an OP_WAIT: the stream of that record
    object *exec;
    dispatch d;
} op;

struct object {
    object *next;
    enum kind kind;
    int tried; // the caller has tried to free it
    // memory
    dptr at;
    uint64_t size;
    uint8_t *raw;
    // streams
    op *first, *last;
    long id, submitted, done; // the last two count operations
    int busy;                 // a thread executes the first operation
    // events: the last submitted record, its stream, and the last executed record
    long recorded, happened;
    object *source;
    int timing;
    double when;
    // modules and links
    char *text;
    // links: the error log, and the option that selects a target; raw is the image
    char *log;
    size_t log_size;
    int target;
    // functions and nodes: the module or the graph that contains them
    object *whole;
    // functions
    char name[128];
    kernel run;
    uint32_t allowed; // dynamic shared memory
    // graphs and executable graphs: nodes in an order that respects dependencies
    dispatch *nodes;
    int count;
    edge *edges;
    int edge_count, *order;
    // nodes
    int index;
};

struct fake {
    int version, init_code, devices, major, minor, initialised, eager, delay;
    uint64_t total, used, next, context;
    int retained, contexts, sticky;
    long calls, fail_at, allocations, fail_alloc, kernels, fail_kernel, launches, graph_launches, leaked, excused;
    long assembled, jits; // images made by links, modules made from PTX
    int fail_code, refuse_link, revision;
    long live[KINDS];
    char complaint[256], failed[64], last[64];
};

extern struct fake F;
extern pthread_mutex_t lock;
extern pthread_cond_t changed;

int complain(const char *call, const char *what);
int enter(const char *call, int context);
int leave(int code);
object *object_new(enum kind kind);
object *object_part(const object *whole, enum kind kind);
object *object_find(void *p, enum kind kind);
void object_free(object *o);
object *find_range(dptr p, uint64_t n);
uint8_t *host(dptr p, uint64_t n);
int is_ptx(const char *text);

op *op_new(object *stream, enum what what);
void submit(object *stream);
void drain(object *stream);
void drain_all(void);

#endif
