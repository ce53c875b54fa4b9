// The part of Apple's Foundation that the Metal device uses, with Apple's declarations. With it
// the host code compiles without Apple's SDK.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define nil ((id)0)
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define NS_ENUM(type, name) enum name : type name; enum name : type
#define NS_OPTIONS(type, name) enum name : type name; enum name : type
#define NS_ASSUME_NONNULL_BEGIN _Pragma("clang assume_nonnull begin")
#define NS_ASSUME_NONNULL_END _Pragma("clang assume_nonnull end")
#define NS_RETURNS_RETAINED __attribute__((ns_returns_retained))

// The SDKs of macOS 15 and iOS 18 define this macro.
#define __MAC_15_0 150000
#ifdef __APPLE__
#define API_AVAILABLE(mac, phone) __attribute__((availability(API_SINCE_##mac))) __attribute__((availability(API_SINCE_##phone)))
#define API_SINCE_macos(version) macos, introduced = version
#define API_SINCE_ios(version) ios, introduced = version
#else
#define API_AVAILABLE(mac, phone)
#endif

typedef bool BOOL;
typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double CFTimeInterval;
typedef struct _NSRange {
    NSUInteger location, length;
} NSRange;
static inline NSRange NSMakeRange(NSUInteger location, NSUInteger length) {
    const NSRange r = {location, length};
    return r;
}

NS_ASSUME_NONNULL_BEGIN

@class NSString;

@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
- (NSUInteger)retainCount;
- (BOOL)respondsToSelector:(SEL)selector;
@end

@protocol NSCopying
@end

__attribute__((objc_root_class))
@interface NSObject <NSObject> {
    Class isa;
}
+ (instancetype)alloc;
+ (instancetype)new;
+ (void)initialize;
+ (Class)class;
- (instancetype)init;
- (void)dealloc;
@end

@interface NSString : NSObject
+ (nullable instancetype)stringWithUTF8String:(const char *)text;
- (nullable instancetype)initWithUTF8String:(const char *)text;
- (nullable instancetype)initWithBytes:(const void *)bytes length:(NSUInteger)length encoding:(NSUInteger)encoding;
@property (nullable, readonly) const char *UTF8String;
@property (readonly) NSUInteger length;
- (BOOL)isEqualToString:(NSString *)other;
@end

enum { NSUTF8StringEncoding = 4 };

@interface NSURL : NSObject
+ (NSURL *)fileURLWithPath:(NSString *)path;
@property (nullable, readonly, copy) NSString *path;
@end

@interface NSProcessInfo : NSObject
@property (class, readonly) NSProcessInfo *processInfo;
@property (readonly, copy) NSString *operatingSystemVersionString;
@end

@interface NSArray<ObjectType> : NSObject
+ (instancetype)arrayWithObject:(ObjectType)object;
@property (readonly) NSUInteger count;
- (ObjectType)objectAtIndex:(NSUInteger)index;
@end

@interface NSDictionary<KeyType, ObjectType> : NSObject
- (nullable ObjectType)objectForKey:(KeyType)key;
@end

@interface NSData : NSObject
@property (readonly) NSUInteger length;
@property (readonly) const void *bytes;
@end

typedef NSString *NSErrorDomain;
typedef NSString *NSErrorUserInfoKey;

@interface NSError : NSObject
@property (readonly, copy) NSErrorDomain domain;
@property (readonly) NSInteger code;
@property (readonly, copy) NSDictionary<NSErrorUserInfoKey, id> *userInfo;
@property (readonly, copy) NSString *localizedDescription;
@end

@interface NSAutoreleasePool : NSObject {
    void *_pool;
}
+ (void)addObject:(id)object;
- (void)drain;
@end

NS_ASSUME_NONNULL_END
