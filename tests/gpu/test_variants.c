/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels/test_kernels.def. */
#include "test_variants.h"

#define FA_KERNEL FA_VARIANT_DECLARE
#include "kernels/test_kernels.def"
#undef FA_KERNEL

static const fa_variant variants[] = {
#define FA_KERNEL FA_VARIANT_ROW
#include "kernels/test_kernels.def"
#undef FA_KERNEL
};

const fa_variant *const test_add = &variants[0], *const test_tile = &variants[1];
