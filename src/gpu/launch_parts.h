/* SPDX-License-Identifier: Apache-2.0 */
/* What forward and backward launches share; all of it is in launch_forward.c. */
#ifndef FA_GPU_LAUNCH_PARTS_H
#define FA_GPU_LAUNCH_PARTS_H

#include "gpu/machine.h"
#include "kernels/forward_params.h"
#include "problem.h"

#define FA_GPU_MAX_BLOCKS INT32_MAX /* of gridDim.x */
#define FA_GPU_MAX_GRID_YZ 65535    /* of gridDim.y and gridDim.z */

/* The machine for the problem's tensors; if they lie in CPU memory, the emulated one. kernel: for the refusal. */
fa_status fa_gpu_open(const fa_problem *problem, fa_kernel kernel, const fa_machine **machine);

/* Refuse what no GPU kernel takes. */
fa_status fa_gpu_check_options(const fa_problem *problem, fa_kernel kernel);
fa_status fa_gpu_check_sizes(const fa_problem *problem);
/* A GPU reads and writes elements only at multiples of their size. */
fa_status fa_gpu_check_address(const char *name, const void *data, int64_t element_size);
fa_status fa_gpu_check_addresses(const fa_problem *problem);

/* Every row of the tensor begins at a multiple of 16 bytes; strides of dimensions with one element do not count. */
bool fa_gpu_rows_begin_aligned(const fa_rows *t, int64_t batch, int64_t rows, int64_t heads);

/* Tiles of block_rows rows, per head and (dense) batch entry, and over all; `what`: "query" or "key". Refuses more than a grid
 * can hold, which keeps the sizes computed from it far from 2^63. */
fa_status fa_gpu_count_tiles(const char *what, bool varlen, int64_t batch, int64_t rows, int64_t heads,
                             int64_t block_rows, int64_t *per_head, int64_t *tiles);

fa_device_rows fa_gpu_device_rows(const fa_rows *t);
/* row_blocks, rows_aligned: as in fa_forward_params. */
fa_forward_params fa_gpu_forward_params(const fa_problem *problem, int64_t row_blocks, bool rows_aligned);

#endif
