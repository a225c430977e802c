/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: threads of control that switch by hand. A switch saves and loads the callee-saved registers and costs a few
 * nanoseconds, where swapcontext makes a system call. */
#ifndef FA_EMULATOR_FIBER_H
#define FA_EMULATOR_FIBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#    define FA_FIBER_ASAN 1
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer)
#        define FA_FIBER_ASAN 1
#    endif
#endif
#ifndef FA_FIBER_ASAN
#    define FA_FIBER_ASAN 0
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#    define FA_FIBER_UCONTEXT 1
#    include <ucontext.h>
#else
#    define FA_FIBER_UCONTEXT 0
#endif

typedef struct {
#if FA_FIBER_UCONTEXT
    ucontext_t context;
    void (*entry)(void *argument);
    void *argument;
#else
    void *stack_pointer;
#endif
    const void *stack; /* lowest usable address and size; of the first fiber they are learned at the first switch */
    size_t stack_bytes;
    void *fake_stack; /* AddressSanitizer's */
} fa_fiber;

/* One mapping with room for `count` stacks, each followed (downwards) by a page that faults when touched. */
typedef struct {
    void *mapping;
    size_t mapping_bytes;
    size_t stack_bytes, stride;
    uint32_t count;
} fa_fiber_stacks;

bool fa_fiber_stacks_create(fa_fiber_stacks *stacks, uint32_t count);
void fa_fiber_stacks_destroy(fa_fiber_stacks *stacks);

/* Makes `fiber` begin with entry(argument) on stack `index` at the next switch to it. entry must not return. */
void fa_fiber_prepare(fa_fiber *fiber, const fa_fiber_stacks *stacks, uint32_t index, void (*entry)(void *),
                      void *argument);

/* Continues `to`; returns when somebody switches back to `from`. */
void fa_fiber_switch(fa_fiber *from, fa_fiber *to);

/* First call of every entry function: `from` is the fiber that made the first switch of this host thread. */
void fa_fiber_begin(fa_fiber *from);

#endif
