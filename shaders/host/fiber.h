// Fibers for x86-64 (System V). A fiber is a stack and the callee-saved registers.
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
constexpr size_t stack_size = 256 << 10; // the sanitizer's red zones make frames larger
#else
constexpr size_t stack_size = 64 << 10;
#endif

// Fiber is a flow of control. A fiber that was never started represents the thread itself.
struct Fiber {
    void *sp = nullptr;
    char *stack = nullptr; // lowest address

    // start sets the function that the next switch to the fiber enters; it must not return.
    // skew moves the top of the stack, so that the stacks of fibers do not share cache sets.
    void start(void (*entry)(), size_t skew) {
        void **top = (void **)(stack + stack_size - 64 - skew * 64);
        *--top = nullptr; // the entry's return address
        *--top = (void *)entry;
        for (int i = 0; i < 6; i++) *--top = nullptr;
        sp = top;
    }
};

// change switches from the running fiber to another and returns when a fiber switches back. It
// does not notify the address sanitizer, which would track the bounds of the stack at a third
// of the run time. Only exceptions and fake stacks need these bounds.
inline void change(Fiber *from, Fiber *to) { pianola_switch(&from->sp, to->sp); }

// stacks maps memory for n stacks. The system allocates pages when they are first used. Large pages let the
// processor keep the addresses of all stacks while it switches between them.
inline char *stacks(size_t n) {
    void *p = mmap(nullptr, n * stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    madvise(p, n * stack_size, MADV_HUGEPAGE);
    return (char *)p;
}

// forget clears the sanitizer's marks of abandoned frames on n stacks.
inline void forget([[maybe_unused]] char *lowest, [[maybe_unused]] size_t n) {
#if defined(PIANOLA_ASAN)
    __asan_unpoison_memory_region(lowest, n * stack_size);
#endif
}
} // namespace pianola
