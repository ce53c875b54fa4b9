// Target NVIDIA: a warp is a SIMD group.
#pragma once
#pragma clang system_header

#include <metal/precise.h>

namespace metal {
namespace shim {
PIANOLA_INLINE uint lane() { return __nvvm_read_ptx_sreg_laneid(); }
PIANOLA_INLINE int shuffle(int v, uint from) { return __nvvm_shfl_sync_idx_i32(-1, v, (int)from, 31); }
PIANOLA_INLINE int shuffle_xor(int v, uint mask) { return __nvvm_shfl_sync_bfly_i32(-1, v, (int)mask, 31); }
PIANOLA_INLINE uint ballot(bool p) { return (uint)__nvvm_vote_ballot_sync(-1u, p); }
PIANOLA_INLINE void threadgroup_wait() { __syncthreads(); }
// part_wait is a barrier of some of the threadgroup's SIMD groups, with a number other than 0 and the
// number of their threads.
PIANOLA_INLINE void part_wait(uint barrier, uint threads) { __nvvm_barrier_sync_cnt(barrier, threads); }
PIANOLA_INLINE void simdgroup_wait() { __nvvm_bar_warp_sync(-1u); }

// inputs_ready inserts a line that package replay/cuda searches for.
PIANOLA_INLINE void inputs_ready() { asm volatile("// pianola: inputs ready" ::: "memory"); }

PIANOLA_INLINE void issued() { asm volatile("" ::: "memory"); }

PIANOLA_INLINE uint opaque(uint v) {
    asm volatile("" : "+r"(v));
    return v;
}

// LLVM 19 has no intrinsic for this instruction.
PIANOLA_INLINE int dot4(int a, int b, int acc) {
    int r;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(acc));
    return r;
}

// permute selects four bytes of a and b.
PIANOLA_INLINE uint permute(uint a, uint b, uint s) { return (uint)__nvvm_prmt((int)a, (int)b, (int)s); }

// and_or returns a & mask | bits in one instruction, for which one of two constants must be in a register.
PIANOLA_INLINE uint and_or(uint a, uint mask, uint bits) {
    uint r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
    return r;
}

// round_bytes adds 1.5 * 2^23, whose last bit is worth 1, and takes the low bytes. Conversion
// instructions have a quarter of the throughput. The explicit additions keep a preceding
// product from being fused.
PIANOLA_INLINE int round_bytes(float4 v) {
    const float x = __nvvm_add_rn_f(v.x, 12582912.0f), y = __nvvm_add_rn_f(v.y, 12582912.0f);
    const float z = __nvvm_add_rn_f(v.z, 12582912.0f), w = __nvvm_add_rn_f(v.w, 12582912.0f);
    const uint xy = permute(__builtin_bit_cast(uint, x), __builtin_bit_cast(uint, y), 0x0040);
    const uint zw = permute(__builtin_bit_cast(uint, z), __builtin_bit_cast(uint, w), 0x0040);
    return (int)permute(xy, zw, 0x5410);
}

#if PIANOLA_SM >= 80
// Asynchronous copies. The copies since the last commit form a group. wait_copies waits until
// all groups except the last N are complete.
PIANOLA_INLINE uint shared_address(threadgroup const void *p) { return (uint)(ulong)p; }
PIANOLA_INLINE void copy16(threadgroup void *to, device const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// copy_or_zero16 copies 16 bytes if n is 16, and writes zeros if n is 0.
PIANOLA_INLINE void copy_or_zero16(threadgroup void *to, device const void *from, uint n) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(n) : "memory");
}
PIANOLA_INLINE void copy8(threadgroup void *to, device const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
PIANOLA_INLINE void copy4(threadgroup void *to, device const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
PIANOLA_INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <uint N> PIANOLA_INLINE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Matrix products by a warp; shaders/multiply.h and shaders/mma.h describe the layouts.
PIANOLA_INLINE int4 multiply_bytes(uint2 a, uint b, int4 c) {
    int c0 = c.x, c1 = c.y, c2 = c.z, c3 = c.w;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(c0), "+r"(c1), "+r"(c2), "+r"(c3)
                 : "r"(a.x), "r"(a.y), "r"(b));
    return int4{c0, c1, c2, c3};
}
PIANOLA_INLINE int4 multiply_bytes2(uint4 a, uint2 b) {
    int c0, c1, c2, c3;
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                 : "=r"(c0), "=r"(c1), "=r"(c2), "=r"(c3)
                 : "r"(a.x), "r"(a.z), "r"(a.y), "r"(a.w), "r"(b.x), "r"(b.y), "r"(0));
    return int4{c0, c1, c2, c3};
}
PIANOLA_INLINE float4 multiply_halves(uint4 a, uint2 b, float4 c) {
    float c0 = c.x, c1 = c.y, c2 = c.z, c3 = c.w;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                 : "r"(a.x), "r"(a.z), "r"(a.y), "r"(a.w), "r"(b.x), "r"(b.y));
    return float4{c0, c1, c2, c3};
}
#if PIANOLA_SM >= 90
// cluster_wait is a barrier of the threads of a cluster that have not ended: what they wrote before is visible after
// it. cluster_load loads from an address in the shared memory of the threadgroup with the given rank in the cluster.
PIANOLA_INLINE void cluster_wait() { asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory"); }
PIANOLA_INLINE float4 cluster_load(uint at, uint rank) {
    float x, y, z, w;
    asm volatile("{ .reg .u32 a; mapa.shared::cluster.u32 a, %4, %5; ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [a]; }" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(at), "r"(rank) : "memory");
    return float4{x, y, z, w};
}
#endif
#ifdef PIANOLA_WARPGROUPS
// Matrix products by a warpgroup of 4 warps: 64 rows of A by 16 columns, times 8*N rows of B.
// Both matrices are in shared memory in rows of 128 bytes with a 128-byte swizzle: piece p (16
// bytes) of row r is at p xor (r mod 8). A group of 8 rows begins at a multiple of 1024 bytes.
PIANOLA_INLINE threadgroup uchar *aligned_matrix(threadgroup uchar *p) { return p + (0u - shared_address(p)) % 1024; }
// matrix_at returns the descriptor of a matrix: its address and the distance of 1024 bytes
// between groups of 8 rows.
PIANOLA_INLINE ulong matrix_at(threadgroup const uchar *p) { return (ulong)(shared_address(p) / 16) | 1ul << 16 | 64ul << 32 | 1ul << 62; }
// threads_wait is a barrier of N threads of the threadgroup, whole warps.
template <uint N> PIANOLA_INLINE void threads_wait() { asm volatile("bar.sync 1, %0;" ::"n"(N) : "memory"); }
// Barriers in shared memory at 8-byte addresses. A barrier's phase ends when as many threads as
// barrier_begin says have arrived and the bytes that they expect are copied. barrier_wait waits for
// the end of a phase with the given parity.
PIANOLA_INLINE void barrier_begin(uint barrier, uint threads) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(threads) : "memory"); }
PIANOLA_INLINE void barriers_begun() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
PIANOLA_INLINE void barrier_arrive(uint barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory"); }
PIANOLA_INLINE void barrier_expect(uint barrier, uint bytes) { asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory"); }
PIANOLA_INLINE void barrier_wait(uint barrier, uint parity) {
    uint done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (done == 0);
}
// fewer_registers and more_registers change the number of registers of each thread of the warpgroup,
// so that one warpgroup leaves registers to the others.
template <uint N> PIANOLA_INLINE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <uint N> PIANOLA_INLINE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
// copy_box starts to copy the box at a column and a row of the matrix that a descriptor describes.
// The barrier receives its bytes. use_map must be called before a thread's first use of a descriptor.
PIANOLA_INLINE void use_map(device const uchar *map) { asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory"); }
PIANOLA_INLINE void copy_box(uint to, device const uchar *map, uint column, uint row, uint barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
// copy_bytes starts to copy a run of bytes, a multiple of 16. The barrier receives them.
PIANOLA_INLINE void copy_bytes(uint to, device const uchar *from, uint bytes, uint barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
// prefetch_bytes starts to copy a run of bytes, a multiple of 16, to the L2 cache.
PIANOLA_INLINE void prefetch_bytes(device const uchar *from, uint bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// publish makes the thread's writes to shared memory visible to warpgroup products after the
// next barrier.
PIANOLA_INLINE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
PIANOLA_INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PIANOLA_INLINE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// wait_products waits for all groups of products except the last N.
template <uint N> PIANOLA_INLINE void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// multiply_shared starts to add products to the lane's 4*N sums in d: four for each 8 rows of
// B, in the layout of shaders/mma.h. end_products waits for them.
template <uint N> PIANOLA_INLINE void multiply_shared(float *d, ulong a, ulong b) {
    static_assert(N == 8 || N == 16 || N == 32, "blocks of rows of B: 8, 16 or 32");
    if constexpr (N == 32) {
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                     "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                     "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                     "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                     "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                     "%128, %129, p, 1, 1, 0, 0; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                   "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                   "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                   "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
                   "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
                   "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
                   "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
                   "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
                 : "l"(a), "l"(b)
                 : "memory");
    } else if constexpr (N == 16) {
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                     "%64, %65, p, 1, 1, 0, 0; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b)
                 : "memory");
    } else {
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                     "%32, %33, p, 1, 1, 0, 0; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b)
                 : "memory");
    }
}
template <uint N> PIANOLA_INLINE void end_products(float *d) {
    wait_products<0>();
#pragma unroll
    for (uint i = 0; i < 4 * N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// The matrix A of multiply_rows is in registers, each warp's 16 rows in the layout of
// shaders/mma.h. It starts to add products to the lane's 4*N sums; if Fresh, it starts to set them.
// If Across, B is transposed: rows of 128 bytes hold 64 rows of B, and the 16 columns of B are 16
// such rows. A must not change until the products are complete.
template <uint N, bool Fresh, bool Across> PIANOLA_INLINE void multiply_rows(float *d, uint4 a, ulong b) {
    static_assert(N == 8 || N == 4 || N == 2, "blocks of rows of B: 2, 4 or 8");
    if constexpr (N == 8 && Fresh) {
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 1; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                     "{%32, %33, %34, %35}, %36, p, 1, 1, %37; }"
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
                       "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
                       "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
                       "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "n"(Across ? 1 : 0)
                     : "memory");
    } else if constexpr (N == 8) {
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                     "{%32, %33, %34, %35}, %36, p, 1, 1, %37; }"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                       "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                       "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "n"(Across ? 1 : 0)
                     : "memory");
    } else if constexpr (N == 4) {
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "{%16, %17, %18, %19}, %20, p, 1, 1, %21; }"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                       "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "n"(Across ? 1 : 0)
                     : "memory");
    } else {
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7}, "
                     "{%8, %9, %10, %11}, %12, p, 1, 1, %13; }"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "n"(Across ? 1 : 0)
                     : "memory");
    }
}

// begin_shared is multiply_shared<8> that sets the sums.
PIANOLA_INLINE void begin_shared(float *d, ulong a, ulong b) {
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 1; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0; }"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
                   "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
                   "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
                   "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
                 : "l"(a), "l"(b)
                 : "memory");
}

// settle keeps the compiler from moving computations of registers across the call.
template <uint N> PIANOLA_INLINE void settle(float *d) {
#pragma unroll
    for (uint i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <uint N> PIANOLA_INLINE void settle_words(uint4 *d) {
#pragma unroll
    for (uint i = 0; i < N; i++) {
        uint x = d[i].x, y = d[i].y, z = d[i].z, w = d[i].w;
        asm volatile("" : "+r"(x), "+r"(y), "+r"(z), "+r"(w)::"memory");
        d[i] = uint4(x, y, z, w);
    }
}
#endif
#endif
} // namespace shim

namespace fast {
PIANOLA_INLINE float exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
PIANOLA_INLINE float exp(float x) { return __nvvm_ex2_approx_ftz_f(x * M_LOG2E_F); }
PIANOLA_INLINE float log2(float x) { return __nvvm_lg2_approx_ftz_f(x); }
PIANOLA_INLINE float log(float x) { return __nvvm_lg2_approx_ftz_f(x) * M_LN2_F; }
PIANOLA_INLINE float sin(float x) { return __nvvm_sin_approx_ftz_f(x); }
PIANOLA_INLINE float cos(float x) { return __nvvm_cos_approx_ftz_f(x); }
PIANOLA_INLINE float rsqrt(float x) { return __nvvm_rsqrt_approx_ftz_f(x); }
PIANOLA_INLINE float sqrt(float x) { return __nvvm_sqrt_approx_ftz_f(x); }
PIANOLA_INLINE float divide(float x, float y) { return __nvvm_div_approx_ftz_f(x, y); }
PIANOLA_INLINE float tanh(float x) { return 1.0f - 2.0f * __nvvm_rcp_approx_ftz_f(1.0f + exp(2.0f * x)); }
} // namespace fast

namespace precise {
PIANOLA_INLINE float exp2(float x) { return __nvvm_ex2_approx_f(x); }
PIANOLA_INLINE float log2(float x) { return __nvvm_lg2_approx_f(x); }
PIANOLA_INLINE float log(float x) { return __nvvm_lg2_approx_f(x) * M_LN2_F; }
PIANOLA_INLINE float sqrt(float x) { return __nvvm_sqrt_rn_f(x); }
PIANOLA_INLINE float divide(float x, float y) { return __nvvm_div_rn_f(x, y); }
PIANOLA_INLINE float rsqrt(float x) { return divide(1.0f, sqrt(x)); }
} // namespace precise
} // namespace metal
