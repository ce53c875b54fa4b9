//go:build softmetal

// The classes of Foundation that callers of Metal use, for GCC's runtime. Each object is
// preceded by its reference count.
#import "internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern size_t class_getInstanceSize(Class c);
extern Class object_setClass(id object, Class c);
Class soft_class(id object);
extern bool class_respondsToSelector(Class c, SEL selector);

Class soft_class(id object) { return *(Class *)(void *)object; }

static _Atomic int64_t objects;
int64_t soft_objects(void) { return objects; }
void soft_add_objects(int64_t n) { objects += n; }

static _Atomic long *references(id o) { return (_Atomic long *)(void *)o - 2; }

@implementation NSObject
+ (void)initialize {
}
+ (instancetype)alloc {
    char *p = calloc(1, class_getInstanceSize(self) + 16);
    if (!p) return nil;
    id o = (id)(void *)(p + 16);
    object_setClass(o, self);
    *references(o) = 1;
    objects++;
    return o;
}
+ (instancetype)new {
    return [[self alloc] init];
}
+ (Class)class {
    return self;
}
- (instancetype)init {
    return self;
}
- (void)dealloc {
    objects--;
    free((char *)(void *)self - 16);
}
- (instancetype)retain {
    (*references(self))++;
    return self;
}
- (oneway void)release {
    const long n = --*references(self);
    if (n < 0) {
        fprintf(stderr, "softmetal: an object is released more often than it is retained\n");
        abort();
    }
    if (n == 0) [self dealloc];
}
- (instancetype)autorelease {
    [NSAutoreleasePool addObject:self];
    return self;
}
- (NSUInteger)retainCount {
    return (NSUInteger)*references(self);
}
- (BOOL)respondsToSelector:(SEL)selector {
    return class_respondsToSelector(soft_class(self), selector);
}
@end

@interface SoftString : NSString {
  @public
    char *text;
}
@end

@implementation NSString
@dynamic UTF8String, length;
+ (instancetype)stringWithUTF8String:(const char *)c {
    return [[[SoftString alloc] initWithUTF8String:c] autorelease];
}
+ (instancetype)alloc {
    return self == [NSString class] ? (id)[SoftString alloc] : [super alloc];
}
- (instancetype)initWithUTF8String:(const char *)c {
    return [self initWithBytes:c length:strlen(c) encoding:NSUTF8StringEncoding];
}
- (instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)n encoding:(NSUInteger)encoding {
    (void)bytes, (void)n, (void)encoding;
    return self;
}
- (const char *)UTF8String {
    return "";
}
- (NSUInteger)length {
    return strlen(self.UTF8String);
}
- (BOOL)isEqualToString:(NSString *)other {
    return strcmp(self.UTF8String, other.UTF8String) == 0;
}
@end

@implementation SoftString
- (instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)n encoding:(NSUInteger)encoding {
    (void)encoding;
    if (!(text = malloc(n + 1))) abort();
    memcpy(text, bytes, n);
    text[n] = 0;
    return self;
}
- (const char *)UTF8String {
    return text;
}
- (void)dealloc {
    free(text);
    [super dealloc];
}
@end

@implementation NSConstantString
- (const char *)UTF8String {
    return _text;
}
- (instancetype)retain {
    return self;
}
- (oneway void)release {
}
- (instancetype)autorelease {
    return self;
}
@end

@implementation NSArray
@dynamic count;
- (NSUInteger)count {
    return 0;
}
+ (instancetype)arrayWithObject:(id)object {
    return [SoftList arrayWithObject:object];
}
- (id)objectAtIndex:(NSUInteger)index {
    fprintf(stderr, "softmetal: index %lu is past the end of an array\n", index);
    abort();
}
@end

@implementation SoftList
+ (instancetype)arrayWithObject:(id)object {
    SoftList *l = [[SoftList new] autorelease];
    l->items[l->n++] = [object retain];
    return l;
}
- (NSUInteger)count {
    return n;
}
- (id)objectAtIndex:(NSUInteger)index {
    if (index >= n) return [super objectAtIndex:index];
    return items[index];
}
- (void)dealloc {
    for (NSUInteger i = 0; i < n; i++) [items[i] release];
    [super dealloc];
}
@end

// Dictionaries have one key in this implementation.
@interface SoftEntry : NSDictionary {
  @public
    NSString *key;
    id value;
}
@end
@implementation NSDictionary
- (id)objectForKey:(id)k {
    (void)k;
    return nil;
}
@end
@implementation SoftEntry
- (id)objectForKey:(id)k {
    return [key isEqualToString:k] ? value : nil;
}
- (void)dealloc {
    [value release];
    [super dealloc];
}
@end
NSDictionary *soft_entry(NSString *key, id value) {
    SoftEntry *e = [SoftEntry new];
    e->key = key;
    e->value = [value retain];
    return e;
}

@interface SoftURL : NSURL {
  @public
    NSString *text;
}
@end
@implementation NSURL
@dynamic path;
+ (NSURL *)fileURLWithPath:(NSString *)path {
    SoftURL *u = [[SoftURL new] autorelease];
    u->text = [path retain];
    return u;
}
- (NSString *)path {
    return nil;
}
@end
@implementation SoftURL
- (NSString *)path {
    return text;
}
- (void)dealloc {
    [text release];
    [super dealloc];
}
@end

@implementation NSProcessInfo
@dynamic operatingSystemVersionString;
+ (NSProcessInfo *)processInfo {
    return [[NSProcessInfo new] autorelease];
}
- (NSString *)operatingSystemVersionString {
    return [NSString stringWithUTF8String:soft.no_residency ? "Version 14.5 (Build 23F79)" : "Version 15.1 (Build 24B83)"];
}
@end

@implementation NSData
@dynamic length, bytes;
- (NSUInteger)length {
    return 0;
}
- (const void *)bytes {
    return "";
}
@end

@implementation NSError
@dynamic domain, code, userInfo, localizedDescription;
- (NSErrorDomain)domain {
    return MTLCommandBufferErrorDomain;
}
- (NSInteger)code {
    return 0;
}
- (NSDictionary *)userInfo {
    return nil;
}
- (NSString *)localizedDescription {
    return nil;
}
@end

@implementation SoftError
- (NSInteger)code {
    return code;
}
- (NSDictionary *)userInfo {
    return info;
}
- (NSString *)localizedDescription {
    return [NSString stringWithUTF8String:text];
}
- (void)dealloc {
    [info release];
    [super dealloc];
}
@end
NSError *soft_error(NSInteger code, const char *format, ...) {
    SoftError *e = [SoftError new];
    e->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return [e autorelease];
}

// Constant strings get their class when the first device is created.
static struct {
    Class isa;
    const char *text;
    unsigned int length;
} domain = {0, "MTLCommandBufferErrorDomain", 27}, encoders = {0, "MTLCommandBufferEncoderInfoErrorKey", 35}, timestamp = {0, "timestamp", 9};
NSErrorDomain const MTLCommandBufferErrorDomain = (NSString *)(void *)&domain;
NSErrorUserInfoKey const MTLCommandBufferEncoderInfoErrorKey = (NSString *)(void *)&encoders;
NSString *const MTLCommonCounterSetTimestamp = (NSString *)(void *)&timestamp;
void soft_strings(void) { domain.isa = encoders.isa = timestamp.isa = [NSConstantString class]; }

struct pool {
    struct pool *up;
    id *items;
    unsigned n, room;
};
static __thread struct pool *top;

@implementation NSAutoreleasePool
- (instancetype)init {
    struct pool *p = calloc(1, sizeof *p);
    p->up = top;
    top = p;
    _pool = p;
    return self;
}
+ (void)addObject:(id)o {
    struct pool *p = top;
    if (!p) {
        soft_violate("an object is autoreleased without a pool");
        return;
    }
    if (p->n == p->room) {
        p->room = p->room * 2 + 16;
        p->items = realloc(p->items, p->room * sizeof *p->items);
    }
    p->items[p->n++] = o;
}
- (void)drain {
    struct pool *p = _pool;
    if (top != p) soft_violate("autorelease pools are not drained in reverse order of creation");
    for (unsigned i = 0; i < p->n; i++) [p->items[i] release];
    free(p->items);
    top = p->up;
    free(p);
    [self release];
}
@end

@interface SoftData : NSObject <OS_dispatch_data> {
  @public
    char *bytes;
    size_t n;
}
@end
@implementation SoftData
- (void)dealloc {
    free(bytes);
    [super dealloc];
}
@end
dispatch_data_t dispatch_data_create(const void *buffer, size_t size, dispatch_queue_t queue, dispatch_block_t destructor) {
    (void)queue, (void)destructor;
    SoftData *d = [SoftData new];
    d->bytes = calloc(1, size + 1);
    memcpy(d->bytes, buffer, size);
    d->n = size;
    return (dispatch_data_t)d;
}
const char *soft_data(dispatch_data_t d) { return ((SoftData *)d)->bytes; }
