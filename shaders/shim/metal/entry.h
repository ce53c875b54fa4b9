// Declarations for the generated PTX entry points.
#pragma once
#pragma clang system_header

// The parameters and the specialisation values of a command are passed by value.
struct alignas(16) pianola_param_bytes { uint words[16]; };
struct alignas(16) pianola_spec_values { uint values[8]; };

// Dynamic threadgroup memory; the launch sets its size.
extern threadgroup uchar pianola_tg[] __attribute__((aligned(16)));

namespace metal {
namespace shim {
inline uint3 group() { return uint3(__nvvm_read_ptx_sreg_ctaid_x(), __nvvm_read_ptx_sreg_ctaid_y(), __nvvm_read_ptx_sreg_ctaid_z()); }
inline uint3 groups() { return uint3(__nvvm_read_ptx_sreg_nctaid_x(), __nvvm_read_ptx_sreg_nctaid_y(), __nvvm_read_ptx_sreg_nctaid_z()); }
// Threadgroups have one dimension.
inline uint thread_index() { return __nvvm_read_ptx_sreg_tid_x(); }
inline uint threads() { return __nvvm_read_ptx_sreg_ntid_x(); }
} // namespace shim
} // namespace metal
