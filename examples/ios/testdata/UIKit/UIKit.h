// The part of Apple's UIKit, Foundation and libdispatch that the app uses, with Apple's
// declarations. With it the app's types are checked without Apple's SDK.
#pragma once
#import <Foundation/Foundation.h>
#import <dispatch/dispatch.h>
#include <string.h>

size_t strlen(const char *);

NS_ASSUME_NONNULL_BEGIN

typedef double CGFloat;
typedef struct {
    CGFloat x, y;
} CGPoint;
typedef struct {
    CGFloat width, height;
} CGSize;
typedef struct {
    CGPoint origin;
    CGSize size;
} CGRect;
static inline CGRect CGRectMake(CGFloat x, CGFloat y, CGFloat width, CGFloat height) {
    const CGRect r = {{x, y}, {width, height}};
    return r;
}

extern dispatch_queue_t dispatch_queue_create(const char *_Nullable label, void *_Nullable attributes) NS_RETURNS_RETAINED;
extern dispatch_queue_t dispatch_get_main_queue(void);
extern void dispatch_async(dispatch_queue_t queue, dispatch_block_t block);

extern NSString *NSStringFromClass(Class aClass);

@interface NSString (UIKitTest)
- (NSString *)stringByAppendingString:(NSString *)other;
@end

@interface NSBundle : NSObject
@property (class, readonly, strong) NSBundle *mainBundle;
- (nullable NSString *)pathForResource:(nullable NSString *)name ofType:(nullable NSString *)extension;
@end

typedef NS_OPTIONS(NSUInteger, UIControlState) { UIControlStateNormal = 0 };
typedef NS_OPTIONS(NSUInteger, UIControlEvents) { UIControlEventTouchUpInside = 1 << 6 };
typedef NS_ENUM(NSInteger, UIButtonType) { UIButtonTypeCustom = 0, UIButtonTypeSystem };

@interface UIResponder : NSObject
@end

@interface UIView : UIResponder
@property (nonatomic) CGRect frame, bounds;
- (instancetype)initWithFrame:(CGRect)frame;
- (void)addSubview:(UIView *)view;
@end

@interface UIControl : UIView
@property (nonatomic, getter=isEnabled) BOOL enabled;
- (void)addTarget:(nullable id)target action:(SEL)action forControlEvents:(UIControlEvents)controlEvents;
@end

@interface UIButton : UIControl
+ (instancetype)buttonWithType:(UIButtonType)buttonType;
- (void)setTitle:(nullable NSString *)title forState:(UIControlState)state;
@end

@interface UITextView : UIView
@property (null_resettable, nonatomic, copy) NSString *text;
@property (nonatomic, getter=isEditable) BOOL editable;
@end

@interface UIViewController : UIResponder
@property (null_resettable, nonatomic, strong) UIView *view;
- (void)viewDidLoad;
@end

@interface UISceneSession : NSObject
@end
@interface UISceneConnectionOptions : NSObject
@end
@interface UIScene : UIResponder
@end
@interface UIWindowScene : UIScene
@end

@interface UIWindow : UIView
- (instancetype)initWithWindowScene:(UIWindowScene *)windowScene;
@property (nullable, nonatomic, strong) UIViewController *rootViewController;
- (void)makeKeyAndVisible;
@end

@interface UIApplication : UIResponder
@end

@protocol UIApplicationDelegate <NSObject>
@end

@protocol UISceneDelegate <NSObject>
@optional
- (void)scene:(UIScene *)scene
    willConnectToSession:(UISceneSession *)session
                 options:(UISceneConnectionOptions *)connectionOptions;
- (void)sceneWillResignActive:(UIScene *)scene;
@end

@protocol UIWindowSceneDelegate <UISceneDelegate>
@optional
@property (nullable, nonatomic, strong) UIWindow *window;
@end

extern int UIApplicationMain(int argc, char *_Nullable *_Nonnull argv, NSString *_Nullable principalClassName,
                             NSString *_Nullable delegateClassName);

NS_ASSUME_NONNULL_END
