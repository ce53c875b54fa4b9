// The kernel patch: how a recorded token gets its position.
#ifndef PIANOLA_PATCH_H
#define PIANOLA_PATCH_H

#include "params.h"

// PIANOLA_STOP_CANCEL in the stop flag: the submission was cancelled.
#define PIANOLA_STOP_CANCEL 256

// pianola_patch is the patch of one command.
typedef struct pianola_patch {
    uint32_t second;   // index of the command's secondary bytes
    uint8_t kind;      // PIANOLA_PATCH_TOKEN to PIANOLA_PATCH_ROW; 0 if there is no value
    uint8_t rows;      // 1: the step's rows go to byte 12
    uint8_t offset;    // byte that the kind's value goes to, a multiple of 4 up to 12
    uint8_t reserved;
} pianola_patch;
PIANOLA_ASSERT_SIZE(pianola_patch, 8);

typedef struct pianola_patch_params {
    uint32_t count;   // patches
    uint32_t records; // commands with secondary bytes
} pianola_patch_params;
PIANOLA_ASSERT_SIZE(pianola_patch_params, 8);

#endif
