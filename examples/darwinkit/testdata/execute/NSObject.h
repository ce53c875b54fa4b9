// The declarations that darwinkit's object.m uses.
#pragma once
#include <objc/objc.h>
#include <objc/runtime.h>
#include <stdbool.h>
#include <stdint.h>

__attribute__((objc_root_class)) @interface NSObject {
    Class isa;
}
+ (id)new;
+ (id)alloc;
- (id)init;
- (id)retain;
- (oneway void)release;
- (id)autorelease;
- (int)retainCount;
- (bool)isKindOfClass:(Class)c;
- (bool)isMemberOfClass:(Class)c;
- (bool)respondsToSelector:(SEL)s;
- (bool)conformsToProtocol:(Protocol *)p;
- (bool)isProxy;
- (id)copy;
- (id)mutableCopy;
- (void)dealloc;
- (id)description;
- (id)performSelector:(SEL)s;
- (id)performSelector:(SEL)s withObject:(id)o;
- (id)performSelector:(SEL)s withObject:(id)o withObject:(id)p;
@end
