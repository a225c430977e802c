/* SPDX-License-Identifier: Apache-2.0 */
/* Working memory of a call. */
#ifndef FA_CPU_MEMORY_H
#define FA_CPU_MEMORY_H

#include <stdint.h>

/* 64-byte aligned, to be freed by free(); NULL: there is not so much. */
void *fa_cpu_allocate(int64_t bytes);

#endif
