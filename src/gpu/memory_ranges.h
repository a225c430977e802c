/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the tensors of a problem lie in, for machines that refuse every other address. */
#ifndef FA_GPU_MEMORY_RANGES_H
#define FA_GPU_MEMORY_RANGES_H

#include "gpu/machine.h"
#include "problem.h"

#define FA_MEMORY_RANGES_MAX 14

/* From the lowest to the highest byte of each tensor that was given and is not empty; returns how many. */
size_t fa_memory_ranges(const fa_problem *problem, fa_memory_range ranges[FA_MEMORY_RANGES_MAX]);

#endif
