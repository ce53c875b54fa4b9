// An app of one screen that continues a text. It has never run: Linux checks its types only. See
// README.md for the commands that build it.
#import <UIKit/UIKit.h>
#include "pianola.h"

@interface Screen : UIViewController
- (void)append:(NSString *)piece;
- (void)stop;
@end

@interface App : UIResponder <UIApplicationDelegate>
@end

// Info.plist names this class.
@interface Scene : UIResponder <UIWindowSceneDelegate>
@property (nullable, strong, nonatomic) UIWindow *window;
@end

// show receives each token on the work queue, and passes its text to the main queue.
static int show(void *user, const pianola_token *token) {
    Screen *screen = (__bridge Screen *)user; // the block in -toggle keeps it alive
    NSString *piece = [[NSString alloc] initWithBytes:token->text length:token->length encoding:NSUTF8StringEncoding];
    if (!piece) return 1;
    dispatch_async(dispatch_get_main_queue(), ^{
        [screen append:piece];
    });
    return 0;
}

@implementation Screen {
    UITextView *_text;
    UIButton *_button;
    // Calls that take long run on this queue, one after another. It alone writes the handles, before
    // the button is enabled.
    dispatch_queue_t _work;
    pianola_model _model;
    pianola_session _session;
    BOOL _running; // main queue
}

- (void)viewDidLoad {
    [super viewDidLoad];
    _work = dispatch_queue_create("pianola", NULL);
    const CGRect all = self.view.bounds;
    const CGFloat bar = 80;
    _text = [[UITextView alloc] initWithFrame:CGRectMake(0, bar, all.size.width, all.size.height - 2 * bar)];
    _text.text = @"func main() {";
    [self.view addSubview:_text];
    _button = [UIButton buttonWithType:UIButtonTypeSystem];
    _button.frame = CGRectMake(0, all.size.height - bar, all.size.width, bar / 2);
    _button.enabled = NO;
    [_button setTitle:@"Loading" forState:UIControlStateNormal];
    [_button addTarget:self action:@selector(toggle) forControlEvents:UIControlEventTouchUpInside];
    [self.view addSubview:_button];
    NSString *path = [NSBundle.mainBundle pathForResource:@"model" ofType:@"gguf"];
    dispatch_async(_work, ^{
        [self load:path];
    });
}

// load opens the model of the app's bundle on the GPU.
- (void)load:(NSString *)path {
    const pianola_options options = {.device = "metal", .context = 2048};
    NSString *fault = nil;
    if (!path) {
        fault = @"The app has no model.gguf.";
    } else if (pianola_open(path.UTF8String, &options, &_model) != pianola_ok || pianola_new_session(_model, &_session) != pianola_ok) {
        fault = [NSString stringWithUTF8String:pianola_error()];
    }
    dispatch_async(dispatch_get_main_queue(), ^{
        if (fault) self->_text.text = fault;
        self->_button.enabled = fault == nil;
        [self->_button setTitle:@"Continue" forState:UIControlStateNormal];
    });
}

// toggle continues the text, or stops the generation in progress.
- (void)toggle {
    if (_running) {
        [self stop];
        return;
    }
    _running = YES;
    _text.editable = NO;
    [_button setTitle:@"Stop" forState:UIControlStateNormal];
    NSString *prompt = _text.text;
    dispatch_async(_work, ^{
        const pianola_request request = {.max_tokens = 256};
        const char *bytes = prompt.UTF8String;
        int result = pianola_reset(self->_session);
        if (result == pianola_ok) {
            result = pianola_generate(self->_session, bytes, strlen(bytes), &request, show, (__bridge void *)self);
        }
        NSString *fault = result > pianola_full ? [NSString stringWithUTF8String:pianola_error()] : nil;
        dispatch_async(dispatch_get_main_queue(), ^{
            if (fault) [self append:fault];
            self->_running = NO;
            self->_text.editable = YES;
            [self->_button setTitle:@"Continue" forState:UIControlStateNormal];
        });
    });
}

- (void)append:(NSString *)piece {
    _text.text = [_text.text stringByAppendingString:piece];
}

- (void)stop {
    if (_running) pianola_cancel(_session); // an invalid handle before a model is open
}

- (void)dealloc {
    pianola_close_session(_session);
    pianola_close(_model);
}

@end

@implementation App
@end

@implementation Scene

- (void)scene:(UIScene *)scene willConnectToSession:(UISceneSession *)session options:(UISceneConnectionOptions *)options {
    (void)session, (void)options;
    self.window = [[UIWindow alloc] initWithWindowScene:(UIWindowScene *)scene];
    self.window.rootViewController = [Screen new];
    [self.window makeKeyAndVisible];
}

// iOS lets no app in the background use the GPU: a submission then fails, and with it the device.
- (void)sceneWillResignActive:(UIScene *)scene {
    (void)scene;
    [(Screen *)self.window.rootViewController stop];
}

@end

int main(int argc, char **argv) {
    @autoreleasepool {
        return UIApplicationMain(argc, argv, nil, NSStringFromClass(App.class));
    }
}
