//go:build softmetal

// Residency sets and archives of pipelines.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#import "internal.h"

@implementation MTLResidencySetDescriptor
@synthesize initialCapacity;
- (void)setLabel:(NSString *)text {
    label = text;
}
- (NSString *)label {
    return label;
}
@end

// Changes of a set take effect with commit. in and waiting are guarded by soft_flight.
@implementation SoftResidency
- (soft_member *)member:(SoftResource *)resource {
    for (NSUInteger i = 0; i < n; i++) {
        if (list[i].resource == resource) return &list[i];
    }
    return NULL;
}
- (BOOL)has:(SoftResource *)resource {
    pthread_mutex_lock(&soft_flight);
    const soft_member *m = [self member:resource];
    const BOOL in = m && m->in;
    pthread_mutex_unlock(&soft_flight);
    return in;
}
- (NSUInteger)allocationCount {
    return n;
}
- (uint64_t)allocatedSize {
    return 0;
}
- (BOOL)containsAllocation:(id<MTLAllocation>)allocation {
    return [self member:(SoftResource *)allocation] != NULL;
}
- (void)addAllocation:(id<MTLAllocation>)allocation {
    CALLED("addAllocation:");
    SoftResource *r = (SoftResource *)allocation;
    pthread_mutex_lock(&soft_flight);
    soft_member *m = [self member:r];
    if (m) soft_violate("addAllocation: the residency set already contains the resource");
    if (!m && n == room) {
        room = room * 2 + 32;
        list = realloc(list, room * sizeof *list);
    }
    if (!m) {
        list[n++] = (soft_member){.resource = r};
        r->sets++;
    }
    changed = YES;
    pthread_mutex_unlock(&soft_flight);
}
- (void)removeAllocation:(id<MTLAllocation>)allocation {
    CALLED("removeAllocation:");
    SoftResource *r = (SoftResource *)allocation;
    pthread_mutex_lock(&soft_flight);
    soft_member *m = [self member:r];
    if (!m) soft_violate("removeAllocation: the residency set does not contain the resource");
    if (m) m->leaving = YES;
    changed = YES;
    pthread_mutex_unlock(&soft_flight);
}
- (void)removeAllAllocations {
    CALLED("removeAllAllocations");
    pthread_mutex_lock(&soft_flight);
    for (NSUInteger i = 0; i < n; i++) list[i].leaving = YES;
    changed = YES;
    pthread_mutex_unlock(&soft_flight);
}
- (void)commit {
    CALLED("residency commit");
    pthread_mutex_lock(&soft_flight);
    if (!changed) soft_set_redundant();
    changed = NO;
    NSUInteger kept = 0;
    for (NSUInteger i = 0; i < n; i++) {
        soft_member m = list[i];
        m.in = !m.leaving;
        if (m.leaving && m.resource->flight && queues) soft_violate("a resource is removed from a residency set while a command buffer uses it");
        if (m.leaving) m.resource->sets--;
        else list[kept++] = m;
    }
    n = kept;
    pthread_mutex_unlock(&soft_flight);
}
- (void)requestResidency {
    CALLED("requestResidency");
}
- (void)endResidency {
    CALLED("endResidency");
}
- (void)dealloc {
    if (queues) soft_violate("a residency set is freed while a queue uses it");
    pthread_mutex_lock(&soft_flight);
    for (NSUInteger i = 0; i < n; i++) list[i].resource->sets--;
    pthread_mutex_unlock(&soft_flight);
    free(list);
    [super dealloc];
}
@end

BOOL soft_resident(SoftQueue *q, SoftResource *resource) {
    for (int i = 0; i < q->set_count; i++) {
        if ([q->sets[i] has:resource]) return YES;
    }
    return NO;
}
void soft_add_set(SoftQueue *q, id<MTLResidencySet> set) {
    if (q->set_count == max_residency_sets) {
        soft_violate("a queue with more than %d residency sets", max_residency_sets);
        return;
    }
    SoftResidency *s = (SoftResidency *)set;
    s->queues++;
    q->sets[q->set_count++] = s;
}
void soft_remove_set(SoftQueue *q, id<MTLResidencySet> set) {
    SoftResidency *s = (SoftResidency *)set;
    for (int i = 0; i < q->set_count; i++) {
        if (q->sets[i] != s) continue;
        q->sets[i] = q->sets[--q->set_count];
        s->queues--;
        return;
    }
    soft_violate("removeResidencySet: the queue does not have the set");
}

@implementation MTLBinaryArchiveDescriptor
- (void)setUrl:(NSURL *)u {
    [u retain];
    [url release];
    url = u;
}
- (NSURL *)url {
    return url;
}
- (void)dealloc {
    [url release];
    [super dealloc];
}
@end

// An archive file is a line that names the GPU, and a line for each pipeline.
static const char header[] = "archive of pipelines for Apple M4 Pro (software)\n";

// entry writes the line that identifies a pipeline.
static void entry(char text[256], MTLComputePipelineDescriptor *d) {
    const SoftFunction *f = (SoftFunction *)d.computeFunction;
    int n = snprintf(text, 256, "%s %016lx %lu %d %d", f->kernel->name, f->text, d.maxTotalThreadsPerThreadgroup,
                     d.threadGroupSizeIsMultipleOfThreadExecutionWidth, d.supportIndirectCommandBuffers);
    for (uint32_t i = 0; i < f->kernel->constants; i++) n += snprintf(text + n, 256 - (size_t)n, " %u", f->specs[i]);
    snprintf(text + n, 256 - (size_t)n, "\n");
}

@implementation SoftArchive
@dynamic label;
- (void)setLabel:(NSString *)text {
    (void)text;
}
- (NSString *)label {
    return nil;
}
- (BOOL)read:(const char *)path {
    FILE *file = fopen(path, "r");
    if (!file) return NO;
    char line[256];
    BOOL ok = fgets(line, sizeof line, file) && strcmp(line, header) == 0;
    while (ok && fgets(line, sizeof line, file)) {
        ok = strchr(line, '\n') != NULL;
        if (ok) [self keep:line];
    }
    fclose(file);
    return ok;
}
- (void)keep:(const char *)line {
    const size_t more = strlen(line);
    lines = realloc(lines, length + more + 1);
    memcpy(lines + length, line, more + 1);
    length += more;
}
- (BOOL)has:(MTLComputePipelineDescriptor *)d {
    char text[256];
    entry(text, d);
    return lines && strstr(lines, text) != NULL;
}
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor *)d error:(NSError **)error {
    CALLED("addComputePipelineFunctionsWithDescriptor:error:");
    if (soft_fails("addComputePipelineFunctionsWithDescriptor:error:", NULL)) {
        if (error) *error = soft_error(2, "injected: archive");
        return NO;
    }
    if ([self has:d]) soft_set_redundant();
    char text[256];
    entry(text, d);
    [self keep:text];
    soft.compiled++;
    return YES;
}
- (BOOL)serializeToURL:(NSURL *)url error:(NSError **)error {
    CALLED("serializeToURL:error:");
    if (!length) soft_violate("an archive without pipelines is written");
    FILE *file = soft_fails("serializeToURL:error:", NULL) ? NULL : fopen(url.path.UTF8String, "w");
    BOOL ok = file && fputs(header, file) >= 0 && fwrite(lines, 1, length, file) == length;
    if (file) ok = fclose(file) == 0 && ok;
    if (!ok && error) *error = soft_error(4, "the file cannot be written");
    return ok;
}
- (void)dealloc {
    free(lines);
    [super dealloc];
}
@end

id<MTLResidencySet> soft_new_residency(NSError **error) {
    if (soft_fails("newResidencySetWithDescriptor:error:", NULL) || soft.no_residency) {
        if (error) *error = soft_error(1, "residency sets are not supported");
        return nil;
    }
    return [SoftResidency new];
}

id<MTLBinaryArchive> soft_new_archive(NSURL *url, NSError **error) {
    SoftArchive *a = [SoftArchive new];
    if (soft_fails("newBinaryArchiveWithDescriptor:error:", NULL) || (url && ![a read:url.path.UTF8String])) {
        if (error) *error = soft_error(1, "not an archive of this GPU's");
        [a release];
        return nil;
    }
    return a;
}
