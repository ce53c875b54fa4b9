// The assembler of the fake driver: links that make images from PTX, and modules from images. An
// image holds the text, so that its module has the entries of the text.
#define _GNU_SOURCE
#include "fake_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ERROR_LOG = 5, ERROR_LOG_BYTES = 6, TARGET = 9, INPUT_PTX = 1, ACCELERATED = 0x10000 };

// What an image begins with. It loads only on the version and revision that made it.
typedef struct {
    char magic[8];
    int version, revision;
    uint64_t length; // of the text with its zero byte
    uint64_t sum;
} image_head;

static uint64_t sum(const char *text, uint64_t n) {
    uint64_t s = 1469598103934665603ull;
    for (uint64_t i = 0; i < n; i++) s = (s ^ (uint8_t)text[i]) * 1099511628211ull;
    return s;
}

// is_ptx reports whether the assembler takes a text.
int is_ptx(const char *text) { return strstr(text, ".version") && !strstr(text, "error;"); }

int cuLinkCreate_v2(unsigned n, const int *options, void **values, object **state) {
    int e = enter("cuLinkCreate", 2);
    if (!e && F.refuse_link) e = F.refuse_link;
    if (!e) {
        object *o = object_new(LINK);
        for (unsigned i = 0; i < n; i++) switch (options[i]) {
            case ERROR_LOG: o->log = values[i]; break;
            case ERROR_LOG_BYTES: o->log_size = (size_t)values[i]; break;
            case TARGET: o->target = (int)(size_t)values[i]; break;
            default: complain("cuLinkCreate", "unknown option");
            }
        *state = o;
    }
    return leave(e);
}

int cuLinkAddData_v2(object *o, int type, const char *text, size_t size, const char *name, unsigned n, const int *options, void **values) {
    int e = enter("cuLinkAddData", 2);
    if (!object_find(o, LINK)) return leave(complain("cuLinkAddData", "no such link"));
    if (!e && (type != INPUT_PTX || !size || text[size - 1] || strlen(text) != size - 1 || name || n || options || values || o->text))
        e = complain("cuLinkAddData", "want one PTX text that ends in a zero byte, without a name and options");
    if (!e && !is_ptx(text)) {
        e = 218;
        if (o->log) snprintf(o->log, o->log_size, "line 1: this is no PTX\n");
    }
    char exact[32] = "";
    if (!e && o->target >= ACCELERATED) snprintf(exact, sizeof exact, ".target sm_%da", o->target - ACCELERATED);
    if (!e && o->target && !strstr(text, exact)) e = complain("cuLinkAddData", "the text is for another target");
    if (!e) o->text = strdup(text);
    return leave(e);
}

int cuLinkComplete(object *o, void **image, size_t *size) {
    int e = enter("cuLinkComplete", 2);
    if (!object_find(o, LINK)) return leave(complain("cuLinkComplete", "no such link"));
    if (!e && (!o->text || o->raw)) e = complain("cuLinkComplete", "the link has no text, or is complete");
    if (!e) {
        image_head h = {.magic = "FAKEBIN", .version = F.version, .revision = F.revision, .length = strlen(o->text) + 1};
        h.sum = sum(o->text, h.length);
        *size = sizeof h + h.length;
        o->raw = malloc(*size);
        memcpy(o->raw, &h, sizeof h);
        memcpy(o->raw + sizeof h, o->text, h.length);
        *image = o->raw;
        F.assembled++;
    }
    return leave(e);
}

// The image goes with its link.
int cuLinkDestroy(object *o) {
    int e = enter("cuLinkDestroy", 1);
    if (!object_find(o, LINK)) return leave(complain("cuLinkDestroy", "no such link"));
    o->tried = 1;
    if (!e) object_free(o);
    return leave(e);
}

int cuModuleLoadData(object **m, const void *image) {
    int e = enter("cuModuleLoadData", 2);
    image_head h;
    memcpy(&h, image, sizeof h);
    const char *text = (const char *)image + sizeof h;
    if (!e && memcmp(h.magic, "FAKEBIN", 8)) e = complain("cuModuleLoadData", "the image is not this driver's");
    if (!e && (h.version != F.version || h.revision != F.revision)) e = 209;
    if (!e && h.sum != sum(text, h.length)) e = complain("cuModuleLoadData", "the image is damaged");
    if (!e) {
        *m = object_new(MODULE);
        (*m)->text = strdup(text);
    }
    return leave(e);
}

void fake_refuse_link(int code) { F.refuse_link = code; }
void fake_set_revision(int n) { F.revision = n; }
long fake_assembled(void) { return F.assembled; }
long fake_jits(void) { return F.jits; }
