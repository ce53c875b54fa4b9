// Generate continues a text: it prints the text that the model adds, and the ids of the tokens on
// standard error. An interrupt (Ctrl-C) ends the text.
//
//     generate testdata/gopher-q8_0.gguf 'func main() {' 40
#define _POSIX_C_SOURCE 200809L // sigwait
#include "pianola.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pianola_session session;

static int print(void *user, const pianola_token *token) {
    (void)user;
    fprintf(stderr, "%d ", (int)token->id);
    return fwrite(token->text, 1, token->length, stdout) != token->length || fflush(stdout) != 0;
}

// interrupt waits for SIGINT, which all threads block, and cancels the generation. A signal
// handler must not call the library.
static void *interrupt(void *signals) {
    int number;
    while (sigwait(signals, &number) == 0) pianola_cancel(session);
    return NULL;
}

static int failed(const char *what) {
    fprintf(stderr, "generate: %s: %s\n", what, pianola_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: generate MODEL PROMPT TOKENS\n");
        return 2;
    }
    sigset_t signals;
    pthread_t thread;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    if (pthread_sigmask(SIG_BLOCK, &signals, NULL) != 0) return 1;

    pianola_model model;
    if (pianola_open(argv[1], NULL, &model) != pianola_ok) return failed(argv[1]);
    if (pianola_new_session(model, &session) != pianola_ok) return failed("a session");
    if (pthread_create(&thread, NULL, interrupt, &signals) != 0) return 1;

    const pianola_request request = {.max_tokens = atoi(argv[3])};
    const int result = pianola_generate(session, argv[2], strlen(argv[2]), &request, print, NULL);
    putchar('\n');
    fputc('\n', stderr);
    if (result >= pianola_full) failed("generation");
    pianola_close_session(session);
    if (pianola_close(model) != pianola_ok) return failed("close");
    return result == pianola_ok ? 0 : 1;
}
