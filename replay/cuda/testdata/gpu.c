// Kernels for a test on a GPU: enough to check that the driver receives arguments, graphs and
// patches correctly from the device. This command compiles gpu.ptx:
//
//	clang-19 --target=nvptx64-nvidia-cuda -march=sm_70 -Xclang -target-feature -Xclang +ptx63 -O2 -ffreestanding -nostdlib -S gpu.c -o gpu.ptx
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned char u8;

typedef struct { u32 w[16]; } __attribute__((aligned(16))) words;
typedef struct { u32 w[8]; } specs;
typedef struct { u64 rng; u32 position, kv_row, kv_len, token_index, row, rows, stop, count; } step_block;

#define KERNEL(name) __attribute__((nvptx_kernel)) void name(u64 b0, u64 b1, u64 b2, u64 b3, u64 b4, u64 b5, u64 b6, u64 b7, words p, u64 second, u64 step, specs s)
#define GLOBAL(type, at) ((__attribute__((address_space(1))) type *)(at))
#define STOPPED (*(volatile __attribute__((address_space(1))) u32 *)(step + 32))

// The stand-in for rmsnorm computes out[i] = 2 * x[i] + 1 of uint32.
KERNEL(rmsnorm) {
    if (STOPPED) return;
    u32 i = __nvvm_read_ptx_sreg_tid_x();
    if (i < p.w[0]) GLOBAL(u32, b2)[i] = 2 * GLOBAL(u32, b0)[i] + 1;
}

// The stand-in for argmax sets tokens[token] = tokens[token-1] * 3 + logits[0] and increments
// the step block's count. It sets the stop flag if the token is the first stop id.
KERNEL(argmax) {
    if (STOPPED || __nvvm_read_ptx_sreg_tid_x() != 0) return;
    u32 at = GLOBAL(u32, second)[0], last = p.w[1] - 1;
    at = at < last ? at : last;
    u32 v = GLOBAL(u32, b2)[at - 1] * 3 + GLOBAL(u32, b0)[0];
    GLOBAL(u32, b2)[at] = v;
    GLOBAL(step_block, step)->count++;
    if (GLOBAL(u32, b1)[0] && GLOBAL(u32, b1)[1] == v) GLOBAL(step_block, step)->stop = 1;
}

KERNEL(patch) {
    __attribute__((address_space(1))) step_block *at = GLOBAL(step_block, step);
    if (STOPPED) return;
    u32 token = at->token_index, position = at->position, kv = at->kv_len, row = at->row, rows = at->rows;
    for (u32 i = __nvvm_read_ptx_sreg_tid_x(); i < p.w[0]; i += __nvvm_read_ptx_sreg_ntid_x()) {
        u32 to = GLOBAL(u32, b0)[2 * i], how = GLOBAL(u32, b0)[2 * i + 1], kind = how & 0xff, o0 = how >> 16 & 0xff, o1 = how >> 24;
        u32 v = kind == 1 ? token : kind == 3 ? kv : kind == 5 ? token + rows : kind == 6 ? row : position;
        if (to >= p.w[1]) continue;
        u64 second = b1 + 16 * (u64)to;
        if (kind && o0 <= 12) *GLOBAL(u32, second + o0) = v;
        if (kind == 4 && o1 <= 12) *GLOBAL(u32, second + o1) = kv;
        if (how >> 8 & 0xff) *GLOBAL(u32, second + 12) = rows;
    }
    __syncthreads();
    if (__nvvm_read_ptx_sreg_tid_x() == 0) {
        at->position = position + rows;
        at->kv_row += rows;
        at->kv_len = kv + rows;
        at->token_index = token + rows;
    }
}
