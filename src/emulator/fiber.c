/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers for x86-64 and aarch64 (System V and AAPCS64 calling conventions), and by ucontext elsewhere. Floating-point
 * control registers are not switched: kernels do not change them. */
#define _GNU_SOURCE
#include "fiber.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if FA_FIBER_ASAN
#    include <sanitizer/asan_interface.h>
#    include <sanitizer/common_interface_defs.h>
#endif

/* Kernels keep their register arrays on the stack: a few KiB. Unoptimised and sanitized builds need several times that.
 */
#if FA_FIBER_ASAN || !defined(__OPTIMIZE__)
#    define STACK_BYTES ((size_t)256 * 1024)
#else
#    define STACK_BYTES ((size_t)64 * 1024)
#endif

bool fa_fiber_stacks_create(fa_fiber_stacks *stacks, uint32_t count) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    stacks->count = count;
    stacks->stack_bytes = STACK_BYTES;
    stacks->stride = STACK_BYTES + page;
    stacks->mapping_bytes = stacks->stride * count;
    stacks->mapping =
        mmap(NULL, stacks->mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks->mapping == MAP_FAILED) {
        stacks->mapping = NULL;
        return false;
    }
    for (uint32_t i = 0; i < count; i++)
        if (mprotect((char *)stacks->mapping + i * stacks->stride, page, PROT_NONE) != 0) {
            fa_fiber_stacks_destroy(stacks);
            return false;
        }
    return true;
}

void fa_fiber_stacks_destroy(fa_fiber_stacks *stacks) {
    if (stacks->mapping) munmap(stacks->mapping, stacks->mapping_bytes);
    stacks->mapping = NULL;
}

#if FA_FIBER_UCONTEXT

static _Thread_local fa_fiber *starting;

static void start(void) { starting->entry(starting->argument); }

static void set_entry(fa_fiber *fiber, char *top, void (*entry)(void *), void *argument) {
    (void)top;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = (void *)(uintptr_t)fiber->stack;
    fiber->context.uc_stack.ss_size = fiber->stack_bytes;
    fiber->context.uc_link = NULL;
    fiber->entry = entry;
    fiber->argument = argument;
    makecontext(&fiber->context, start, 0);
}

static void switch_stack(fa_fiber *from, fa_fiber *to) {
    starting = to;
    swapcontext(&from->context, &to->context);
}

#else

/* fa_fiber_switch_stack(save, load): pushes the callee-saved registers, stores the stack pointer in *save, and pops
 * those of the stack `load`. A fresh stack holds a frame whose return address is fa_fiber_start, which calls
 * entry(argument) from two of the restored registers. */
void fa_fiber_switch_stack(void **save, void *load);
void fa_fiber_start(void);

#    if defined(__APPLE__)
#        define LABEL(name) ".globl _" name "\n.private_extern _" name "\n_" name ":\n"
#    else
#        define LABEL(name) ".globl " name "\n.hidden " name "\n" name ":\n"
#    endif

#    if defined(__x86_64__)

__asm__(".text\n"
        ".p2align 4\n" LABEL("fa_fiber_switch_stack") "    pushq %rbp\n"
                                                      "    pushq %rbx\n"
                                                      "    pushq %r12\n"
                                                      "    pushq %r13\n"
                                                      "    pushq %r14\n"
                                                      "    pushq %r15\n"
                                                      "    movq %rsp, (%rdi)\n"
                                                      "    movq %rsi, %rsp\n"
                                                      "    popq %r15\n"
                                                      "    popq %r14\n"
                                                      "    popq %r13\n"
                                                      "    popq %r12\n"
                                                      "    popq %rbx\n"
                                                      "    popq %rbp\n"
                                                      "    ret\n"
                                                      ".p2align 4\n" LABEL("fa_fiber_start") "    movq %r12, %rdi\n"
                                                                                             "    callq *%r13\n"
                                                                                             "    ud2\n");

/* Nine words: fa_fiber_start must find the stack 16 byte aligned. */
enum { FRAME_WORDS = 9, FRAME_ENTRY = 2, FRAME_ARGUMENT = 3, FRAME_RETURN = 6 };

#    else

__asm__(".text\n"
        ".p2align 4\n" LABEL("fa_fiber_switch_stack") "    sub sp, sp, #160\n"
                                                      "    stp x19, x20, [sp, #0]\n"
                                                      "    stp x21, x22, [sp, #16]\n"
                                                      "    stp x23, x24, [sp, #32]\n"
                                                      "    stp x25, x26, [sp, #48]\n"
                                                      "    stp x27, x28, [sp, #64]\n"
                                                      "    stp x29, x30, [sp, #80]\n"
                                                      "    stp d8, d9, [sp, #96]\n"
                                                      "    stp d10, d11, [sp, #112]\n"
                                                      "    stp d12, d13, [sp, #128]\n"
                                                      "    stp d14, d15, [sp, #144]\n"
                                                      "    mov x9, sp\n"
                                                      "    str x9, [x0]\n"
                                                      "    mov sp, x1\n"
                                                      "    ldp x19, x20, [sp, #0]\n"
                                                      "    ldp x21, x22, [sp, #16]\n"
                                                      "    ldp x23, x24, [sp, #32]\n"
                                                      "    ldp x25, x26, [sp, #48]\n"
                                                      "    ldp x27, x28, [sp, #64]\n"
                                                      "    ldp x29, x30, [sp, #80]\n"
                                                      "    ldp d8, d9, [sp, #96]\n"
                                                      "    ldp d10, d11, [sp, #112]\n"
                                                      "    ldp d12, d13, [sp, #128]\n"
                                                      "    ldp d14, d15, [sp, #144]\n"
                                                      "    add sp, sp, #160\n"
                                                      "    ret\n"
                                                      ".p2align 4\n" LABEL("fa_fiber_start") "    mov x0, x19\n"
                                                                                             "    blr x20\n"
                                                                                             "    brk #0\n");

enum { FRAME_WORDS = 20, FRAME_ARGUMENT = 0, FRAME_ENTRY = 1, FRAME_RETURN = 11 };

#    endif

static void set_entry(fa_fiber *fiber, char *top, void (*entry)(void *), void *argument) {
    uintptr_t *frame = (uintptr_t *)(void *)top - FRAME_WORDS;
    memset(frame, 0, FRAME_WORDS * sizeof *frame);
    frame[FRAME_ENTRY] = (uintptr_t)entry;
    frame[FRAME_ARGUMENT] = (uintptr_t)argument;
    frame[FRAME_RETURN] = (uintptr_t)&fa_fiber_start;
    fiber->stack_pointer = frame;
}

static void switch_stack(fa_fiber *from, fa_fiber *to) {
    fa_fiber_switch_stack(&from->stack_pointer, to->stack_pointer);
}

#endif

void fa_fiber_prepare(fa_fiber *fiber, const fa_fiber_stacks *stacks, uint32_t index, void (*entry)(void *),
                      void *argument) {
    size_t page = stacks->stride - stacks->stack_bytes;
    char *low = (char *)stacks->mapping + index * stacks->stride + page;
    fiber->stack = low;
    fiber->stack_bytes = stacks->stack_bytes;
    fiber->fake_stack = NULL;
#if FA_FIBER_ASAN
    /* An earlier fiber may have been abandoned in the middle of its frames. */
    __asan_unpoison_memory_region(low, stacks->stack_bytes);
#endif
    /* Equal offsets in all stacks would make the hot frames compete for the same cache sets. */
    char *top = low + stacks->stack_bytes - (index % 61) * 256;
    set_entry(fiber, top, entry, argument);
}

void fa_fiber_switch(fa_fiber *from, fa_fiber *to) {
#if FA_FIBER_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    switch_stack(from, to);
#if FA_FIBER_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, NULL, NULL);
#endif
}

void fa_fiber_begin(fa_fiber *from) {
#if FA_FIBER_ASAN
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &stack, &bytes);
    if (!from->stack) {
        from->stack = stack;
        from->stack_bytes = bytes;
    }
#else
    (void)from;
#endif
}
