// Declarations of the target's functions for the strict check, which compiles no code.
#pragma once
#pragma clang system_header

namespace metal {
namespace shim {
uint lane();
int shuffle(int v, uint from);
int shuffle_xor(int v, uint mask);
uint ballot(bool p);
void threadgroup_wait();
void simdgroup_wait();
int dot4(int a, int b, int acc);
} // namespace shim
namespace fast {
float exp(float), exp2(float), log(float), log2(float), sin(float), cos(float), tanh(float), rsqrt(float), sqrt(float), divide(float, float);
} // namespace fast
namespace precise {
float exp(float), exp2(float), log(float), log2(float), sin(float), cos(float), tanh(float), rsqrt(float), sqrt(float), divide(float, float);
} // namespace precise
} // namespace metal
