//go:build cgo

#include "call.h"
#include <string.h>

static _Thread_local int depth;
static _Thread_local char text[1024];

int pianola_generate(pianola_session session, const char *prompt, size_t length, const pianola_request *request,
                     pianola_callback callback, void *user) {
    return call_stream(session, 0, prompt, length, request, callback, (uintptr_t)user);
}

int pianola_chat(pianola_session session, const char *message, size_t length, const pianola_request *request,
                 pianola_callback callback, void *user) {
    return call_stream(session, 1, message, length, request, callback, (uintptr_t)user);
}

int call_callback(pianola_callback f, uintptr_t user, const char *piece, size_t length, int32_t id, int32_t position) {
    const pianola_token token = {.text = piece, .length = length, .id = id, .position = position};
    depth++;
    const int result = f((void *)user, &token);
    depth--;
    return result;
}

int call_depth(void) { return depth; }

// A text that is too long ends before the character that does not fit.
void call_fail(const char *from, size_t length) {
    if (length >= sizeof text) {
        length = sizeof text - 1;
        while (length > 0 && ((unsigned char)from[length] & 0xc0) == 0x80) length--;
    }
    memcpy(text, from, length);
    text[length] = 0;
}

const char *call_text(void) { return text; }
