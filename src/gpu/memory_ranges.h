/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the tensors of a problem lie in, for machines that refuse every other address. */
#ifndef FA_GPU_MEMORY_RANGES_H
#define FA_GPU_MEMORY_RANGES_H

#include "gpu/machine.h"
#include "gradients.h"

#define FA_MEMORY_RANGES_MAX 14
#define FA_GRADIENT_MEMORY_RANGES_MAX (FA_MEMORY_RANGES_MAX + 7)

/* From the lowest to the highest byte of each tensor that was given and is not empty; returns how many. */
size_t fa_memory_ranges(const fa_problem *problem, fa_memory_range ranges[FA_MEMORY_RANGES_MAX]);
/* For a backward call, whose outputs are gradients alone. */
size_t fa_gradient_memory_ranges(const fa_gradients *gradients, fa_memory_range ranges[FA_GRADIENT_MEMORY_RANGES_MAX]);

#endif
