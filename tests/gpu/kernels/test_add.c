/* SPDX-License-Identifier: Apache-2.0 */
/* The simplest kernel: see test_params.h. */
#include "instructions/instructions.h"
#include "test_params.h"

KERNEL(KERNEL_NAME, 128, 1, test_add_params, p) {
    int64_t i = (int64_t)block_index_x() * block_threads() + thread_index();
    if (i < p->count) global_store_f32(p->sum + i, global_load_f32(p->a + i) + global_load_f32(p->b + i));
}
