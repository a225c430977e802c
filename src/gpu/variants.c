/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels/variants.def. */
#include "gpu/variants.h"

#include <string.h>

#ifndef FA_KERNEL_TABLE /* a part of it: cmake/gpu_kernels.cmake */
#    define FA_KERNEL_TABLE "kernels/variants.def"
#endif

#define FA_KERNEL FA_VARIANT_DECLARE
#include FA_KERNEL_TABLE
#undef FA_KERNEL

static const fa_variant variants[] = {
#define FA_KERNEL FA_VARIANT_ROW
#include FA_KERNEL_TABLE
#undef FA_KERNEL
};

const fa_variant *fa_variant_find(const char *source, fa_element type, int64_t head_dim, int64_t head_dim_v,
                                  bool general) {
    const fa_variant *best = NULL;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        const fa_variant *v = &variants[i];
        if (v->head_dim < head_dim || v->head_dim_v < head_dim_v || v->type != type || v->general != general ||
            strcmp(v->source, source) != 0)
            continue;
        if (best == NULL || v->head_dim + v->head_dim_v < best->head_dim + best->head_dim_v) best = v;
    }
    return best;
}
