/* SPDX-License-Identifier: Apache-2.0 */
/* The test kernels, compiled. */
#ifndef FLASHATTN_TEST_VARIANTS_H
#define FLASHATTN_TEST_VARIANTS_H

#include "gpu/variants.h"

extern const fa_variant *const test_add, *const test_tile;

#endif
