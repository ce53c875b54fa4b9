// The kernel patch, which sets the positions of a recorded token's commands.
#ifndef PIANOLA_PATCH_H
#define PIANOLA_PATCH_H

#include "params.h"

// PIANOLA_STOP_CANCEL in the stop flag means that the submission was cancelled.
#define PIANOLA_STOP_CANCEL 256

// pianola_patch is the patch of one command.
typedef struct pianola_patch {
    uint32_t second;   // index of the command's secondary bytes
    uint8_t kind;      // PIANOLA_PATCH_TOKEN to PIANOLA_PATCH_ROW; 0: no value
    uint8_t rows;      // 1: write the step's number of rows to byte 12
    uint8_t offset;    // byte to which the kind's value is written: a multiple of 4, at most 12
    uint8_t reserved;
} pianola_patch;
PIANOLA_ASSERT_SIZE(pianola_patch, 8);

typedef struct pianola_patch_params {
    uint32_t count;   // number of patches
    uint32_t records; // number of commands with secondary bytes
} pianola_patch_params;
PIANOLA_ASSERT_SIZE(pianola_patch_params, 8);

#endif
