//go:build softmetal

// Queues and command buffers. A thread of the queue executes passes in any order that the
// fences allow, and the commands of a pass in any order that its barriers allow.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#import "internal.h"

Class soft_class(id object);
NSDictionary *soft_entry(NSString *key, id value);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *address(const soft_bound *b) { return b->buffer ? b->buffer->gpu + b->offset : (void *)(uintptr_t)b->bytes; }

static void run_command(SoftEncoder *e, const soft_dispatch *d) {
    if (e->owner->code) return;
    const soft_kernel *k = d->pipeline->kernel;
    void *buffers[8] = {0};
    for (uint32_t i = 0; i < k->bindings; i++) {
        if (soft_there(k, d->pipeline->specs, i)) buffers[i] = address(&d->bound[i]);
    }
    const char *error = NULL;
    const uint32_t threads = d->threads[0] * d->threads[1] * d->threads[2];
    if (soft.price) {
        e->owner->took += soft.price(k->name, d->pipeline->specs, address(&d->bound[index_params]), address(&d->bound[index_second]), d->groups, threads);
        if (e->owner->took > soft.watchdog) {
            [e->owner fail:MTLCommandBufferErrorTimeout because:"the watchdog ended the command buffer"];
            return;
        }
    }
    soft.dispatches++;
    if (soft.idle && strcmp(k->name, "patch") != 0) return;
    if (!soft_emulate(k, buffers, address(&d->bound[index_params]), address(&d->bound[index_second]), address(&d->bound[index_step]),
                      d->pipeline->specs, d->groups, threads, (uint32_t)d->threadgroup_memory, &error))
        [e->owner fail:MTLCommandBufferErrorPageFault because:error];
    if (soft.delay) usleep(soft.delay);
}

// phase is a list of commands without an order between them.
struct phase {
    const soft_dispatch *list[4096];
    NSUInteger n;
};

static void flush(SoftEncoder *e, struct phase *p) {
    for (NSUInteger i = p->n; i > 1; i--) {
        const unsigned j = soft.order == soft_random && !e->serial ? soft_below((unsigned)i) : (unsigned)i - 1;
        const soft_dispatch *d = p->list[i - 1];
        p->list[i - 1] = p->list[j];
        p->list[j] = d;
    }
    for (NSUInteger i = 0; i < p->n; i++) run_command(e, p->list[i]);
    p->n = 0;
}

static void append(SoftEncoder *e, struct phase *p, const soft_dispatch *d) {
    if (p->n == sizeof p->list / sizeof *p->list) flush(e, p);
    p->list[p->n++] = d;
}

static void execute(SoftEncoder *e, struct phase *p, SoftRecording *r, NSRange range) {
    if (range.length == 0) return;
    if (range.location + range.length > r->count) {
        soft_violate("an execution range of commands %lu to %lu of %lu", range.location, range.location + range.length, r->count);
        [e->owner fail:MTLCommandBufferErrorInvalidResource because:"execution range"];
        return;
    }
    for (NSUInteger i = range.location; i < range.location + range.length; i++) {
        soft_dispatch *d = &r->commands[i];
        [e check:d indirect:YES];
        if (e->owner->code) return;
        if (d->barrier) flush(e, p);
        append(e, p, d);
    }
}

void soft_run_pass(SoftEncoder *e) {
    struct phase *p = malloc(sizeof *p);
    p->n = 0;
    if (e->bounded) e->samples->at[e->sample_start] = (uint64_t)(now() * 1e9);
    for (NSUInteger i = 0; i < e->op_count && !e->owner->code; i++) {
        const soft_op *op = &e->ops[i];
        switch (op->kind) {
        case op_dispatch: append(e, p, op->dispatch); break;
        case op_barrier: flush(e, p); break;
        case op_execute: execute(e, p, op->recording, op->range); break;
        case op_execute_indirect: {
            // A GPU may read the range as soon as nothing orders the read: before the commands
            // that wait in p have run.
            MTLIndirectCommandBufferExecutionRange range;
            memcpy(&range, op->from->gpu + op->from_offset, sizeof range);
            execute(e, p, op->recording, NSMakeRange(range.location, range.length));
            break;
        }
        case op_sample: *op->sample = (uint64_t)(now() * 1e9); break;
        case op_copy:
            memcpy(op->to->gpu + op->to_offset, op->from->gpu + op->from_offset, op->size);
            soft.copied += op->size;
            break;
        }
        if (e->serial) flush(e, p);
    }
    flush(e, p);
    free(p);
    if (e->bounded) e->samples->at[e->sample_end] = (uint64_t)(now() * 1e9);
}

@interface SoftEncoderInfo : NSObject <MTLCommandBufferEncoderInfo> {
  @public
    NSString *label;
    MTLCommandEncoderErrorState state;
}
@end
@implementation SoftEncoderInfo
- (NSString *)label {
    return label;
}
- (MTLCommandEncoderErrorState)errorState {
    return state;
}
@end

@implementation MTLComputePassSampleBufferAttachmentDescriptor
@synthesize sampleBuffer, startOfEncoderSampleIndex, endOfEncoderSampleIndex;
- (id<MTLCounterSampleBuffer>)sampleBuffer {
    return sampleBuffer;
}
- (void)setSampleBuffer:(id<MTLCounterSampleBuffer>)b {
    [b retain];
    [sampleBuffer release];
    sampleBuffer = b;
}
- (void)dealloc {
    [sampleBuffer release];
    [super dealloc];
}
@end
@implementation MTLComputePassSampleBufferAttachmentDescriptorArray
- (MTLComputePassSampleBufferAttachmentDescriptor *)objectAtIndexedSubscript:(NSUInteger)index {
    (void)index;
    if (!first) first = [MTLComputePassSampleBufferAttachmentDescriptor new];
    return first;
}
- (void)dealloc {
    [first release];
    [super dealloc];
}
@end
@implementation MTLComputePassDescriptor
@synthesize dispatchType;
+ (MTLComputePassDescriptor *)computePassDescriptor {
    return [[MTLComputePassDescriptor new] autorelease];
}
- (MTLComputePassSampleBufferAttachmentDescriptorArray *)sampleBufferAttachments {
    if (!sampleBufferAttachments) sampleBufferAttachments = [MTLComputePassSampleBufferAttachmentDescriptorArray new];
    return sampleBufferAttachments;
}
- (void)dealloc {
    [sampleBufferAttachments release];
    [super dealloc];
}
@end

@implementation SoftCommandBuffer
- (MTLCommandBufferStatus)status {
    pthread_mutex_lock(&queue->lock);
    const MTLCommandBufferStatus s = state;
    pthread_mutex_unlock(&queue->lock);
    return s;
}
- (NSError *)error {
    if (!code) return nil;
    SoftError *e = (SoftError *)soft_error(code, "%s", text);
    SoftList *list = [[SoftList new] autorelease];
    for (NSUInteger i = 0; i < encoder_count && list->n < 256; i++) {
        SoftEncoderInfo *info = [SoftEncoderInfo new];
        info->label = encoders[i]->label;
        info->state = i < faulted ? MTLCommandEncoderErrorStateCompleted : i == faulted ? MTLCommandEncoderErrorStateFaulted : MTLCommandEncoderErrorStatePending;
        list->items[list->n++] = info;
    }
    e->info = soft_entry(MTLCommandBufferEncoderInfoErrorKey, list);
    return e;
}
- (CFTimeInterval)GPUStartTime {
    return start;
}
- (CFTimeInterval)GPUEndTime {
    return end;
}
- (void)fail:(NSInteger)why because:(const char *)because {
    if (code) return;
    code = why;
    snprintf(text, sizeof text, "%s", because);
}
- (void)use:(SoftResource *)resource {
    for (NSUInteger i = resource_count; i > 0; i--) {
        if (resources[i - 1] == resource) return;
    }
    if (resource_count == resource_room) {
        resource_room = resource_room * 2 + 32;
        resources = realloc(resources, resource_room * sizeof *resources);
    }
    resources[resource_count++] = retains ? [resource retain] : resource;
}
- (SoftEncoder *)encoder:(const char *)selector {
    if (soft_fails(selector, NULL)) return nil;
    if (state != MTLCommandBufferStatusNotEnqueued) {
        soft_violate("%s after commit", selector);
        return nil;
    }
    if (encoder_count && !encoders[encoder_count - 1]->ended) {
        soft_violate("%s before endEncoding of another encoder", selector);
        [self fail:MTLCommandBufferErrorInvalidResource because:"two encoders"];
    }
    if (encoder_count % 64 == 0) encoders = realloc(encoders, (encoder_count + 64) * sizeof *encoders);
    SoftEncoder *e = [SoftEncoder new];
    e->owner = self;
    encoders[encoder_count++] = e;
    return e;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
    CALLED("computeCommandEncoderWithDispatchType:");
    SoftEncoder *e = [self encoder:"computeCommandEncoderWithDispatchType:"];
    if (e) e->serial = type == MTLDispatchTypeSerial;
    return e;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDescriptor:(MTLComputePassDescriptor *)descriptor {
    CALLED("computeCommandEncoderWithDescriptor:");
    SoftEncoder *e = [self encoder:"computeCommandEncoderWithDescriptor:"];
    if (!e) return nil;
    e->serial = descriptor.dispatchType == MTLDispatchTypeSerial;
    MTLComputePassSampleBufferAttachmentDescriptor *a = [descriptor.sampleBufferAttachments objectAtIndexedSubscript:0];
    e->samples = [(SoftSamples *)a.sampleBuffer retain];
    e->bounded = e->samples != nil;
    e->sample_start = a.startOfEncoderSampleIndex;
    e->sample_end = a.endOfEncoderSampleIndex;
    if (e->samples && (e->sample_start >= e->samples->n || e->sample_end >= e->samples->n)) {
        soft_violate("samples %lu and %lu of %lu", e->sample_start, e->sample_end, e->samples->n);
        e->sample_start = e->sample_end = 0;
    }
    return e;
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
    CALLED("blitCommandEncoder");
    SoftEncoder *e = [self encoder:"blitCommandEncoder"];
    if (e) e->blit = YES;
    return e;
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)block {
    (void)block;
    soft_violate("addCompletedHandler:, which the software Metal does not support");
}

// fly marks the resources of the command buffer as in flight (n = 1), or as no longer in flight
// (n = -1). While they are in flight, the host may read but not write them.
- (void)fly:(int)n {
    pthread_mutex_lock(&soft_flight);
    for (NSUInteger i = 0; i < resource_count; i++) {
        SoftResource *r = resources[i];
        r->flight += n;
        if (soft_class(r) != [SoftBuffer class]) continue;
        SoftBuffer *b = (SoftBuffer *)r;
        if (b->wrapped) continue;
        if (n > 0 && r->flight == 1) mprotect(b->host, b->mapped, PROT_READ);
        if (n < 0 && r->flight == 0) mprotect(b->host, b->mapped, PROT_READ | PROT_WRITE);
    }
    pthread_mutex_unlock(&soft_flight);
}
- (void)commit {
    CALLED("commit");
    if (state != MTLCommandBufferStatusNotEnqueued) {
        soft_violate("a command buffer is committed twice");
        return;
    }
    if (encoder_count && !encoders[encoder_count - 1]->ended) {
        soft_violate("commit before endEncoding");
        [self fail:MTLCommandBufferErrorInvalidResource because:"commit before endEncoding"];
        encoders[encoder_count - 1]->ended = YES;
    }
    int injected = 0;
    if (soft_fails("commit", &injected) && injected) [self fail:injected because:"injected"];
    if (injected == MTLCommandBufferErrorDeviceRemoved) soft.removed = 1;
    if (soft.removed) [self fail:MTLCommandBufferErrorDeviceRemoved because:"the device was removed"];
    [self fly:1];
    [self retain];
    pthread_mutex_lock(&queue->lock);
    state = MTLCommandBufferStatusCommitted;
    SoftCommandBuffer **at = &queue->first;
    int flying = 1;
    for (; *at; flying++) at = &(*at)->next;
    *at = self;
    if (flying > soft.most) soft.most = flying;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}
- (void)waitUntilCompleted {
    CALLED("waitUntilCompleted");
    pthread_mutex_lock(&queue->lock);
    if (state == MTLCommandBufferStatusNotEnqueued) {
        soft_violate("waitUntilCompleted before commit");
    } else {
        queue->waiting++;
        pthread_cond_broadcast(&queue->changed);
        while (state < MTLCommandBufferStatusCompleted) pthread_cond_wait(&queue->changed, &queue->lock);
        queue->waiting--;
    }
    pthread_mutex_unlock(&queue->lock);
}
- (void)dealloc {
    for (NSUInteger i = 0; i < encoder_count; i++) [encoders[i] release];
    for (NSUInteger i = 0; retains && i < resource_count; i++) [resources[i] release];
    free(encoders);
    free(resources);
    [super dealloc];
}
@end

// held reports whether a pass must wait for an earlier pass.
static BOOL held(SoftQueue *q, SoftEncoder *pass) {
    for (SoftCommandBuffer *b = q->first; b; b = b->next) {
        for (NSUInteger i = 0; i < b->encoder_count; i++) {
            SoftEncoder *e = b->encoders[i];
            if (e == pass) return NO;
            if (e->done) continue;
            for (int w = 0; w < 4 && pass->waits[w]; w++) {
                for (int u = 0; u < 4 && e->updates[u]; u++) {
                    if (pass->waits[w] == e->updates[u]) return YES;
                }
            }
        }
    }
    return NO;
}

// choose returns a pass that may run, or nil. The lock is held.
static SoftEncoder *choose(SoftQueue *q) {
    SoftEncoder *chosen = nil;
    unsigned n = 0;
    for (SoftCommandBuffer *b = q->first; b; b = b->next) {
        for (NSUInteger i = 0; i < b->encoder_count; i++) {
            SoftEncoder *e = b->encoders[i];
            if (e->done || (!soft.no_fences && held(q, e))) continue;
            n++;
            if (!chosen || (soft.order == soft_random && soft_below(n) == 0)) chosen = e;
        }
    }
    return chosen;
}

// complete ends command buffers whose passes are all done. The lock is held.
static void complete(SoftQueue *q) {
    for (SoftCommandBuffer **at = &q->first; *at;) {
        SoftCommandBuffer *b = *at;
        BOOL done = YES;
        for (NSUInteger i = 0; i < b->encoder_count; i++) done = done && b->encoders[i]->done;
        if (!done) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        b->end = now();
        if (b->start == 0) b->start = b->end;
        if (soft.price) {
            const uint64_t took = (uint64_t)(b->took * 1e9);
            b->end = b->start + b->took;
            if (took > soft.longest) soft.longest = took;
        }
        soft.buffers++;
        [b fly:-1];
        b->state = b->code ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
        [b release];
    }
    pthread_cond_broadcast(&q->changed);
}

static void *work(void *argument) {
    SoftQueue *q = (SoftQueue *)argument;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        complete(q);
        SoftEncoder *e = choose(q);
        if (!e) {
            if (q->closing) break;
            pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        if (soft.order == soft_random && !q->first->next && !q->waiting && q->first->start == 0) {
            // A pass that is committed soon may run first, if nothing orders the two.
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 300000;
            if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
            pthread_cond_timedwait(&q->changed, &q->lock, &until);
            e = choose(q);
        }
        if (e->owner->start == 0) e->owner->start = now();
        pthread_mutex_unlock(&q->lock);
        @autoreleasepool {
            if (!e->owner->code) {
                soft_run_pass(e);
                for (NSUInteger i = 0; e->owner->code && i < e->owner->encoder_count; i++) {
                    if (e->owner->encoders[i] == e) e->owner->faulted = i;
                }
            }
        }
        pthread_mutex_lock(&q->lock);
        e->done = YES;
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

@implementation SoftQueue
@dynamic label, device;
- (id<MTLDevice>)device {
    return device;
}
- (void)setLabel:(NSString *)text {
    label = text;
}
- (NSString *)label {
    return label;
}
- (instancetype)init {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
    return self;
}
- (id<MTLCommandBuffer>)made:(BOOL)retains {
    if (soft_fails("commandBuffer", NULL)) return nil;
    if (!started) started = pthread_create(&worker, NULL, work, self) == 0;
    SoftCommandBuffer *b = [[SoftCommandBuffer new] autorelease];
    b->queue = self;
    b->retains = retains;
    return b;
}
- (id<MTLCommandBuffer>)commandBuffer {
    CALLED("commandBuffer");
    return [self made:YES];
}
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences {
    CALLED("commandBufferWithUnretainedReferences");
    return [self made:NO];
}
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor *)descriptor {
    CALLED("commandBufferWithDescriptor:");
    return [self made:descriptor.retainedReferences];
}
- (void)addResidencySet:(id<MTLResidencySet>)set {
    CALLED("addResidencySet:");
    soft_add_set(self, set);
}
- (void)removeResidencySet:(id<MTLResidencySet>)set {
    CALLED("removeResidencySet:");
    soft_remove_set(self, set);
}
- (void)dealloc {
    pthread_mutex_lock(&lock);
    if (first) soft_violate("a queue is freed while its command buffers run");
    closing = YES;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (started) pthread_join(worker, NULL);
    [device release];
    [super dealloc];
}
@end
