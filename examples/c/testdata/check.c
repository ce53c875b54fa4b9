// Check tests the C interface: check MODEL PROMPT ID... expects that MODEL continues PROMPT with
// the given token ids.
#define _DEFAULT_SOURCE 1
#include "pianola.h"
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int faults;

#define EXPECT(condition)                                                                            \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "%s:%d: not %s; the last error: %s\n", __FILE__, __LINE__, #condition,    \
                    pianola_error());                                                                \
            faults++;                                                                                \
        }                                                                                            \
    } while (0)

// error_has reports whether the text of this thread's last error contains part.
static int error_has(const char *part) { return strstr(pianola_error(), part) != NULL; }

// heard collects what a callback receives.
struct heard {
    int32_t ids[512];
    int32_t first_position;
    int count, stop_after; // the callback stops after that many tokens; 0: never
    char text[8192];
    size_t length;
    pthread_t thread;
    pianola_model model;
    pianola_session session;
    int inside; // status of calls from the callback that must fail
};

static int hear(void *user, const pianola_token *token) {
    struct heard *h = user;
    if (h->count == 0) h->first_position = token->position;
    if (token->position != h->first_position + h->count || token->text[token->length] != 0 || !pthread_equal(h->thread, pthread_self())) faults++;
    if (h->count < 512) h->ids[h->count++] = token->id;
    if (h->length + token->length < sizeof h->text) {
        memcpy(h->text + h->length, token->text, token->length + 1);
        h->length += token->length;
    }
    if (h->session.id && h->count == 1) {
        h->inside |= pianola_close(h->model) != pianola_invalid || !error_has("by a callback");
        h->inside |= (pianola_close_session(h->session) != pianola_invalid) << 1;
        h->inside |= (pianola_generate(h->session, "x", 1, NULL, hear, h) != pianola_busy) << 2;
        h->inside |= (pianola_reset(h->session) != pianola_busy) << 3;
    }
    return h->stop_after && h->count == h->stop_after;
}

static struct heard listener(void) {
    struct heard h;
    memset(&h, 0, sizeof h);
    h.thread = pthread_self();
    return h;
}

static int run(pianola_session s, const char *prompt, int32_t tokens, struct heard *h) {
    pianola_request r;
    memset(&r, 0, sizeof r);
    r.max_tokens = tokens;
    return pianola_generate(s, prompt, strlen(prompt), &r, hear, h);
}

// nested is a callback whose user is a number. It generates in another session, once.
static pianola_session inner;
static int nested(void *user, const pianola_token *token) {
    struct heard h = listener();
    (void)token;
    if ((uintptr_t)user != 3) faults++;
    if (inner.id && run(inner, "package main", 4, &h) != pianola_ok) faults++;
    return 0;
}

// tally is a callback that counts the tokens.
static int tally(void *user, const pianola_token *token) {
    (void)token;
    ++*(int *)user;
    return 0;
}

// endless returns a request whose text has 1000 tokens. Sampled text can reach a stop token at any
// position, and which seeds avoid that depends on the machine, whose sums may be rounded otherwise.
static pianola_request endless(pianola_session s, const char *prompt) {
    pianola_request r = {.max_tokens = 1000, .temperature = 1};
    int count = 0;
    while (count < r.max_tokens && r.seed < 100) {
        r.seed++;
        count = 0;
        EXPECT(pianola_reset(s) == pianola_ok);
        EXPECT(pianola_generate(s, prompt, strlen(prompt), &r, tally, &count) == pianola_ok);
    }
    EXPECT(count == r.max_tokens);
    EXPECT(pianola_reset(s) == pianola_ok);
    return r;
}

// waiting is a call of pianola_generate that another thread ends. The call's callback waits at the
// third token until that thread is about to end the call.
struct waiting {
    pianola_session session;
    pianola_request request;
    pthread_mutex_t mutex;
    pthread_cond_t change;
    int tokens, ending, result;
};

// await returns when the callback has received three tokens, and lets the callback go on.
static void await(struct waiting *w) {
    pthread_mutex_lock(&w->mutex);
    while (w->tokens < 3) pthread_cond_wait(&w->change, &w->mutex);
    w->ending = 1;
    pthread_cond_signal(&w->change);
    pthread_mutex_unlock(&w->mutex);
}

// count is the callback. Its last tokens take 1 ms each, so that a thousand of them give the other
// thread time to end the call.
static int count(void *user, const pianola_token *token) {
    const struct timespec interval = {.tv_nsec = 1000000};
    struct waiting *w = user;
    (void)token;
    pthread_mutex_lock(&w->mutex);
    w->tokens++;
    pthread_cond_signal(&w->change);
    while (w->tokens >= 3 && !w->ending) pthread_cond_wait(&w->change, &w->mutex);
    const int ending = w->ending;
    pthread_mutex_unlock(&w->mutex);
    if (ending) nanosleep(&interval, NULL);
    return 0;
}

static void *cancel(void *user) {
    struct waiting *w = user;
    await(w);
    if (pianola_error()[0] != 0) faults++; // errors are a thread's own
    if (pianola_cancel(w->session) != pianola_ok) faults++;
    return NULL;
}

static void check_cancel(pianola_session s, const char *prompt) {
    struct waiting w = {.session = s, .request = endless(s, prompt), .mutex = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    EXPECT(pianola_cancel(s) == pianola_ok); // without a call in progress: nothing
    EXPECT(pthread_create(&thread, NULL, cancel, &w) == 0);
    EXPECT(pianola_generate(s, prompt, strlen(prompt), &w.request, count, &w) == pianola_cancelled);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(w.tokens >= 3 && w.tokens < 1000);
}

static void *go_on(void *user) {
    struct waiting *w = user;
    w->result = pianola_generate(w->session, "x", 1, &w->request, count, w);
    if (!error_has("closed")) faults++;
    return NULL;
}

// check_close closes a session and a model while a call is in progress.
static void check_close(const char *path) {
    const pianola_options o = {.device = "cpu"};
    pianola_model m;
    EXPECT(pianola_open(path, &o, &m) == pianola_ok);
    for (int whole = 0; whole < 2; whole++) {
        struct waiting w = {.mutex = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
        pthread_t thread;
        EXPECT(pianola_new_session(m, &w.session) == pianola_ok);
        w.request = endless(w.session, "x");
        EXPECT(pthread_create(&thread, NULL, go_on, &w) == 0);
        await(&w);
        EXPECT((whole ? pianola_close(m) : pianola_close_session(w.session)) == pianola_ok);
        EXPECT(pthread_join(thread, NULL) == 0);
        EXPECT(w.result == pianola_failed && w.tokens < 1000);
        EXPECT(pianola_close_session(w.session) == (whole ? pianola_ok : pianola_invalid));
    }
}

static void *generate(void *user) {
    struct heard *h = user;
    h->thread = pthread_self();
    if (run(h->session, "package main", 16, h) != pianola_ok) faults++;
    return NULL;
}

// check_threads generates the same text in two sessions at once.
static void check_threads(pianola_model m) {
    struct heard h[2];
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        h[i] = listener();
        EXPECT(pianola_new_session(m, &h[i].session) == pianola_ok);
        h[i].model = m;
        EXPECT(pthread_create(&thread[i], NULL, generate, &h[i]) == 0);
    }
    for (int i = 0; i < 2; i++) EXPECT(pthread_join(thread[i], NULL) == 0);
    EXPECT(h[0].count == 16 && h[0].count == h[1].count && memcmp(h[0].ids, h[1].ids, sizeof h[0].ids) == 0);
    EXPECT(h[0].inside == 0 && h[1].inside == 0);
    for (int i = 0; i < 2; i++) EXPECT(pianola_close_session(h[i].session) == pianola_ok);
}

static void check_arguments(const char *path, pianola_model m, pianola_session s) {
    pianola_model none = {7};
    pianola_session nothing = {0}, of_model = {m.id};
    struct heard h = listener();
    EXPECT(pianola_open(NULL, NULL, &none) == pianola_invalid && none.id == 0 && error_has("path is NULL"));
    EXPECT(pianola_open(path, NULL, NULL) == pianola_invalid && error_has("model is NULL"));
    none.id = 7;
    EXPECT(pianola_open("/no/such/model.gguf", NULL, &none) == pianola_failed && none.id == 0 && error_has("/no/such/model.gguf"));
    EXPECT(pianola_open("", NULL, &none) == pianola_failed);
    EXPECT(pianola_open("/dev/null", NULL, &none) == pianola_failed);
    const pianola_options typewriter = {.device = "typewriter"}, latin = {.mode = "\xe9"}, negative = {.threads = -1}, long_name = {.device = path},
                          wrong_mode = {.device = "cpu", .mode = "resident"}, short_context = {.device = "cpu", .context = -5};
    EXPECT(pianola_open(path, &typewriter, &none) == pianola_invalid && error_has("typewriter"));
    EXPECT(pianola_open(path, &latin, &none) == pianola_invalid && error_has("UTF-8"));
    EXPECT(pianola_open(path, &negative, &none) == pianola_invalid && error_has("threads"));
    EXPECT(pianola_open(path, &long_name, &none) == pianola_invalid);
    EXPECT(pianola_open(path, &wrong_mode, &none) == pianola_failed && error_has("resident"));
    EXPECT(pianola_open(path, &short_context, &none) == pianola_invalid && error_has("context"));

    nothing.id = 7;
    EXPECT(pianola_new_session(none, &nothing) == pianola_invalid && nothing.id == 0);
    EXPECT(pianola_new_session(m, NULL) == pianola_invalid);
    EXPECT(run(nothing, "x", 1, &h) == pianola_invalid && error_has("handle 0"));
    EXPECT(run(of_model, "x", 1, &h) == pianola_invalid); // the handle of a model
    EXPECT(pianola_cancel(of_model) == pianola_invalid);
    EXPECT(pianola_reset(nothing) == pianola_invalid);

    EXPECT(pianola_generate(s, NULL, 3, NULL, hear, &h) == pianola_invalid && error_has("prompt is NULL"));
    EXPECT(pianola_chat(s, NULL, 3, NULL, hear, &h) == pianola_invalid && error_has("message is NULL"));
    EXPECT(pianola_generate(s, "abc", 3, NULL, NULL, &h) == pianola_invalid && error_has("callback is NULL"));
    EXPECT(pianola_generate(s, "\xff\xfe", 2, NULL, hear, &h) == pianola_invalid && error_has("UTF-8"));
    EXPECT(pianola_generate(s, "x", (size_t)-1, NULL, hear, &h) == pianola_invalid && error_has("bytes"));
    EXPECT(run(s, "x", -1, &h) == pianola_invalid && error_has("max_tokens"));
    const pianola_request hot = {.temperature = -1}, empty = {.stop = ""}, wrong = {.stop = "\xc0"};
    EXPECT(pianola_generate(s, "x", 1, &hot, hear, &h) == pianola_invalid);
    EXPECT(pianola_generate(s, "x", 1, &empty, hear, &h) == pianola_invalid);
    EXPECT(pianola_generate(s, "x", 1, &wrong, hear, &h) == pianola_invalid && error_has("stop"));
    EXPECT(h.count == 0);
    for (const char *c = pianola_error(); *c; c++) EXPECT(*c != '\n');
}

// resident returns the bytes of memory of this process.
static long resident(void) {
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &pages) != 2) faults++;
    if (f) fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

// entries returns the number of entries of a directory.
static int entries(const char *path) {
    int n = 0;
    DIR *d = opendir(path);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

// check_leaks opens and closes a model often. Memory, threads and open files must not grow.
static void check_leaks(const char *path) {
    long memory = 0;
    int threads = 0, files = 0;
    for (int i = 0; i < 40; i++) {
        if (i == 20) memory = resident(), threads = entries("/proc/self/task"), files = entries("/proc/self/fd");
        const pianola_options o = {.device = "cpu", .context = 512};
        pianola_model m;
        pianola_session s;
        struct heard h = listener();
        EXPECT(pianola_open(path, &o, &m) == pianola_ok);
        EXPECT(pianola_new_session(m, &s) == pianola_ok);
        EXPECT(run(s, "func", 4, &h) == pianola_ok && h.count == 4);
        if (i % 2) EXPECT(pianola_close_session(s) == pianola_ok); // the model's close frees it otherwise
        EXPECT(pianola_close(m) == pianola_ok);
        if (i % 2 == 0) EXPECT(pianola_close_session(s) == pianola_ok);
    }
    fprintf(stderr, "20 times: %ld KiB more memory, %d threads, %d files\n", (resident() - memory) / 1024, entries("/proc/self/task") - threads, entries("/proc/self/fd") - files);
    EXPECT(resident() - memory < 64 << 20); // models that are not freed take more than 20 times 8 MB
    EXPECT(entries("/proc/self/task") - threads < 8);
    EXPECT(entries("/proc/self/fd") <= files);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    const char *path = argv[1], *prompt = argv[2];
    const int expected = argc - 3;
    pianola_model m;
    pianola_session s;
    EXPECT(pianola_error()[0] == 0);
    if (pianola_open(path, NULL, &m) != pianola_ok || pianola_new_session(m, &s) != pianola_ok) {
        fprintf(stderr, "%s: %s\n", path, pianola_error());
        return 1;
    }

    struct heard h = listener();
    EXPECT(run(s, prompt, expected, &h) == pianola_ok && h.count == expected);
    for (int i = 0; i < expected; i++) EXPECT(h.ids[i] == atoi(argv[3 + i]));
    EXPECT(pianola_reset(s) == pianola_ok);

    struct heard stopped = listener();
    stopped.stop_after = 3;
    EXPECT(run(s, prompt, expected, &stopped) == pianola_stopped && stopped.count == 3);
    EXPECT(memcmp(stopped.ids, h.ids, 3 * sizeof h.ids[0]) == 0 && strncmp(stopped.text, h.text, stopped.length) == 0);
    EXPECT(pianola_reset(s) == pianola_ok);

    // The text ends before a stop text, which is what follows the first three tokens.
    struct heard ended = listener();
    const pianola_request until = {.max_tokens = expected, .stop = h.text + stopped.length};
    EXPECT(pianola_generate(s, prompt, strlen(prompt), &until, hear, &ended) == pianola_ok);
    EXPECT(ended.length == stopped.length && strcmp(ended.text, stopped.text) == 0);
    EXPECT(pianola_reset(s) == pianola_ok);

    check_cancel(s, prompt);
    EXPECT(pianola_reset(s) == pianola_ok);
    struct heard again = listener(); // a cancellation leaves nothing behind
    EXPECT(run(s, prompt, expected, &again) == pianola_ok);
    EXPECT(again.count == h.count && memcmp(again.ids, h.ids, sizeof h.ids) == 0);
    EXPECT(pianola_reset(s) == pianola_ok);

    // A conversation of two turns: the second begins where the first has ended.
    static const char user[] = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] ";
    EXPECT(pianola_chat(s, "hello", 5, NULL, hear, &h) == pianola_failed && error_has("chat template"));
    EXPECT(pianola_chat_template(s, "{% if %}", 8) == pianola_failed && error_has("template"));
    EXPECT(pianola_chat_template(s, user, sizeof user - 1) == pianola_ok);
    struct heard talk = listener(), more = listener();
    const pianola_request brief_answer = {.max_tokens = 8};
    EXPECT(pianola_chat(s, "hello", 5, &brief_answer, hear, &talk) == pianola_ok && talk.count > 0);
    EXPECT(pianola_chat(s, "and then?", 9, &brief_answer, hear, &more) == pianola_ok);
    EXPECT(more.count > 0 && more.first_position > talk.first_position + talk.count);
    EXPECT(pianola_reset(s) == pianola_ok);
    more = listener();
    EXPECT(pianola_chat(s, "hello", 5, &brief_answer, hear, &more) == pianola_ok);
    EXPECT(more.first_position == talk.first_position && strcmp(more.text, talk.text) == 0);
    EXPECT(pianola_reset(s) == pianola_ok);

    EXPECT(pianola_new_session(m, &inner) == pianola_ok);
    EXPECT(pianola_generate(s, "x", 1, &brief_answer, nested, (void *)(uintptr_t)3) == pianola_ok);
    EXPECT(pianola_close_session(inner) == pianola_ok && pianola_reset(s) == pianola_ok);

    check_threads(m);
    check_arguments(path, m, s);

    struct heard full = listener();
    const pianola_options small = {.device = "cpu", .context = 32};
    pianola_model tiny;
    pianola_session brief;
    EXPECT(pianola_open(path, &small, &tiny) == pianola_ok);
    EXPECT(pianola_new_session(tiny, &brief) == pianola_ok);
    EXPECT(run(brief, prompt, 0, &full) == pianola_full && full.count > 0 && error_has("context"));

    EXPECT(pianola_close(tiny) == pianola_ok);
    EXPECT(pianola_close(tiny) == pianola_invalid && error_has("handle")); // twice
    EXPECT(pianola_new_session(tiny, &brief) == pianola_invalid && brief.id == 0);
    EXPECT(pianola_close_session(s) == pianola_ok);
    EXPECT(pianola_close_session(s) == pianola_invalid);
    EXPECT(run(s, prompt, 1, &h) == pianola_invalid);
    EXPECT(pianola_close(m) == pianola_ok);

    check_close(path);
    check_leaks(path);
    if (faults) fprintf(stderr, "%d faults\n", faults);
    return faults != 0;
}
