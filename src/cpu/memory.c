/* SPDX-License-Identifier: Apache-2.0 */
/* Working memory of a call: see memory.h. */
#define _GNU_SOURCE
#include "cpu/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Of x86-64, and of aarch64 with pages of 4 KiB. */
#define HUGE_PAGE (2 << 20)

/* From some megabytes on, memory is new from the system for each call. Backward's partial dQ may take 100 MiB: in pages of 4 KiB
 * their faults, and the misses of the TLB afterwards, took up to a fifth of its time. */
void *fa_cpu_allocate(int64_t bytes) {
    const int64_t large = 2 * HUGE_PAGE;
    int64_t alignment = bytes < large ? 64 : HUGE_PAGE;
    if (bytes > INT64_MAX - alignment) return NULL;
    int64_t whole = (bytes + alignment - 1) / alignment * alignment;
    void *memory = aligned_alloc((size_t)alignment, (size_t)whole);
#ifdef MADV_HUGEPAGE
    if (memory != NULL && bytes >= large) (void)madvise(memory, (size_t)whole, MADV_HUGEPAGE); /* where it is allowed */
#endif
    return memory;
}
