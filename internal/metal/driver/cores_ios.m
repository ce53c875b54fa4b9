//go:build cgo

// Number of cores of a GPU on iOS. Apps may not read the system's registry there and Metal does not
// report the number, so it is unknown. The chip's data have the number of the GPU's name.
#include "metal.h"

uint32_t pm_gpu_cores(uint64_t id) {
    (void)id;
    return 0;
}
