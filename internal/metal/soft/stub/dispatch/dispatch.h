// The part of Apple's libdispatch that the Metal device uses, in the form in which its objects
// are Objective-C objects.
#pragma once
#import <Foundation/Foundation.h>

NS_ASSUME_NONNULL_BEGIN

@protocol OS_dispatch_data <NSObject>
@end
@protocol OS_dispatch_queue <NSObject>
@end
typedef NSObject<OS_dispatch_data> *dispatch_data_t;
typedef NSObject<OS_dispatch_queue> *dispatch_queue_t;
typedef void (^dispatch_block_t)(void);

#define DISPATCH_DATA_DESTRUCTOR_DEFAULT NULL

extern dispatch_data_t dispatch_data_create(const void *buffer, size_t size, dispatch_queue_t _Nullable queue,
                                            dispatch_block_t _Nullable destructor) NS_RETURNS_RETAINED;

NS_ASSUME_NONNULL_END
