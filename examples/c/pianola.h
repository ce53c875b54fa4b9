// The C interface of Pianola, a replay engine for transformer decoding.
//
// Build the library and a program that uses it, with cgo and a C compiler:
//
//     CGO_ENABLED=1 go build -buildmode=c-archive -o libpianola.a ./examples/c
//     cc -I examples/c program.c libpianola.a -lpthread -lm
//
// Handles. A pianola_model or pianola_session is a number, which a function of this header
// returns. 0 is never one. Closing a handle makes the number invalid for ever: a function that
// gets a closed handle, or any other number, returns pianola_invalid and has no other effect.
//
// Ownership. The library copies what it needs of an argument before the function returns, so
// every pointer that is passed to it may be freed afterwards. Pointers that it passes to a
// callback are valid until the callback returns. Nothing that it returns must be freed, but each
// handle must be closed once.
//
// Threads. Every function may be called from any thread at any time. A session runs one call at
// a time: a second one returns pianola_busy. Sessions of a model run side by side, and their
// submissions take turns on the device. Calls of pianola_cancel, pianola_close_session and
// pianola_close may overlap a call that runs.
//
// The process. The library contains Go's runtime, which starts threads and installs signal
// handlers with SA_ONSTACK. It cannot be unloaded, and a process that has called it must not go
// on after fork without exec.
#ifndef PIANOLA_H
#define PIANOLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The results of functions. Every function that returns int returns one of them.
enum pianola_status {
    pianola_ok = 0,
    pianola_stopped = 1,   // the callback returned a value other than 0
    pianola_cancelled = 2, // pianola_cancel ended the call
    pianola_full = 3,      // the context is full; the tokens before are complete
    pianola_busy = 4,      // another call is using the session
    pianola_invalid = 5,   // an argument is invalid
    pianola_failed = 6     // anything else
};

// pianola_error describes the last call of this thread that returned pianola_full or a later
// value: one line of UTF-8 text of less than 1,024 bytes, or "" before the first such call. It is
// valid until this thread's next call.
const char *pianola_error(void);

typedef struct pianola_model {
    uint64_t id;
} pianola_model;

typedef struct pianola_session {
    uint64_t id;
} pianola_session;

// pianola_options are the settings of pianola_open. All fields may be 0.
typedef struct pianola_options {
    const char *device; // "auto", "cpu", "metal" or "cuda"; NULL means "auto", which prefers a GPU
    const char *mode;   // "encode", "record" or "resident"; NULL selects the device's first mode
    int32_t threads;    // threads of the CPU device; 0 selects one per processor
    int32_t context;    // positions of a session's context; 0 selects the smaller of 4096 and the model's
} pianola_options;

// pianola_open loads a model: a GGUF file, a safetensors file, or a directory in Hugging Face's
// format. options may be NULL, which is the same as all 0. It stores the handle in *model, or 0
// if it fails.
int pianola_open(const char *path, const pianola_options *options, pianola_model *model);

// pianola_close frees a model and its sessions. Their calls in progress end with pianola_failed,
// and pianola_close waits for them, so it must not be called by a callback; it then returns
// pianola_invalid. Handles of the sessions remain to be closed.
int pianola_close(pianola_model model);

// pianola_new_session stores a new session with an empty context in *session, or 0 if it fails.
int pianola_new_session(pianola_model model, pianola_session *session);

// pianola_close_session frees a session. A call in progress ends with pianola_failed. It must not
// be called by a callback; it then returns pianola_invalid.
int pianola_close_session(pianola_session session);

// pianola_request are the settings of one generation. All fields may be 0, which chooses the most
// probable token each time, up to a stop token of the model or the end of the context.
typedef struct pianola_request {
    int32_t max_tokens; // largest number of tokens; 0: no limit but the context
    int32_t top_k;      // keep the k most probable tokens; 0 keeps all
    double temperature; // 0 chooses the most probable token
    double top_p;       // keep the most probable tokens up to this total; 0 and 1 keep all
    double min_p;       // keep tokens with this fraction of the largest probability; 0 keeps all
    uint64_t seed;      // draws depend on the seed and the position only
    const char *stop;   // end before this text; NULL: no such text
} pianola_request;

// pianola_token is one generated token.
typedef struct pianola_token {
    const char *text; // what the token adds: whole characters of UTF-8, followed by a 0 byte
    size_t length;    // bytes of text; 0 while a character is incomplete
    int32_t id;
    int32_t position; // position in the context, from 0
} pianola_token;

// pianola_callback receives each token, on the thread that called the generating function.
// user is that call's argument. Any result but 0 ends the generation with pianola_stopped. A
// callback must return: it must not throw a C++ exception or call longjmp. It may call any
// function but pianola_close and pianola_close_session; its own session is busy.
typedef int (*pianola_callback)(void *user, const pianola_token *token);

// pianola_generate appends length bytes of prompt, which are UTF-8, to the session's context and
// generates tokens. It returns pianola_ok after the last token. request may be NULL. The context
// keeps the tokens that the callback received.
int pianola_generate(pianola_session session, const char *prompt, size_t length, const pianola_request *request,
                     pianola_callback callback, void *user);

// pianola_chat sends length bytes of message, which are UTF-8, as the user's next message of a
// conversation, and generates the answer. The model's chat template renders the conversation,
// which the session keeps until pianola_reset.
int pianola_chat(pianola_session session, const char *message, size_t length, const pianola_request *request,
                 pianola_callback callback, void *user);

// pianola_chat_template makes the session's conversations use length bytes of a Jinja template in
// UTF-8, instead of the model's. It begins a new conversation; the context keeps its tokens until
// the next message.
int pianola_chat_template(pianola_session session, const char *source, size_t length);

// pianola_cancel ends the session's call in progress: pianola_generate or pianola_chat returns
// pianola_cancelled within the time of a submission, about 50 ms. It does not wait for that. It
// has no effect if no such call is in progress, and none on later calls.
int pianola_cancel(pianola_session session);

// pianola_reset empties a session's context and forgets its conversation.
int pianola_reset(pianola_session session);

#ifdef __cplusplus
}
#endif

#endif
