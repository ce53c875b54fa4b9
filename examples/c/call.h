// Functions in C that the library's Go code calls. They are not part of its interface.
#pragma once
#include "pianola.h"

// call_stream is pianola_generate, or pianola_chat if chat is 1. It is written in Go, which must not
// see user as a pointer: it may be a number, and Go's collector rejects small ones.
int call_stream(pianola_session session, int chat, const char *text, size_t length, const pianola_request *request,
                pianola_callback callback, uintptr_t user);

// call_callback passes a token to a callback and returns the callback's result.
int call_callback(pianola_callback f, uintptr_t user, const char *text, size_t length, int32_t id, int32_t position);

// call_depth returns the number of callbacks that are running on this thread.
int call_depth(void);

// call_fail stores the error text of this thread. call_text returns it.
void call_fail(const char *text, size_t length);
const char *call_text(void);
