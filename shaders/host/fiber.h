// Fibers for x86-64 (System V): a stack and the registers that a call keeps.
#pragma once
#include <stddef.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#error "the switch of fibers is written for x86-64"
#endif
#if defined(PIANOLA_ASAN)
#include <sanitizer/asan_interface.h>
#endif

extern "C" void pianola_switch(void **from, void *to);
asm(R"(
.text
.p2align 4
.hidden pianola_switch
.globl pianola_switch
.type pianola_switch, @function
pianola_switch:
	endbr64
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	retq
.size pianola_switch, .-pianola_switch
)");

namespace pianola {
#if defined(PIANOLA_ASAN)
constexpr size_t stack_size = 256 << 10; // red zones make frames larger
#else
constexpr size_t stack_size = 64 << 10;
#endif

// Fiber is a flow of control. One that was never started is the thread's own.
struct Fiber {
    void *sp = nullptr;
    char *stack = nullptr; // lowest address

    // start makes the next switch to the fiber enter at entry, which must not
    // return. skew moves the top, so that fibers do not share cache sets.
    void start(void (*entry)(), size_t skew) {
        void **top = (void **)(stack + stack_size - 64 - skew * 64);
        *--top = nullptr; // the entry's return address
        *--top = (void *)entry;
        for (int i = 0; i < 6; i++) *--top = nullptr;
        sp = top;
    }
};

// change goes from the running fiber to another, until one comes back. The
// address sanitizer is not told: it would keep the bounds of the stack, which
// only exceptions and fake stacks need, at a third of the time.
inline void change(Fiber *from, Fiber *to) { pianola_switch(&from->sp, to->sp); }

// stacks maps n stacks, which the system fills in as they are touched.
inline char *stacks(size_t n) {
    void *p = mmap(nullptr, n * stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : (char *)p;
}

// forget makes the stacks as new, where frames on them were left.
inline void forget([[maybe_unused]] char *lowest, [[maybe_unused]] size_t n) {
#if defined(PIANOLA_ASAN)
    __asan_unpoison_memory_region(lowest, n * stack_size);
#endif
}
} // namespace pianola
