/* SPDX-License-Identifier: Apache-2.0 */
/* Number formats that a kernel learns at run time (bias), numbered as fa_element in src/element.h. */
#ifndef FA_KERNELS_ELEMENT_TYPE_H
#define FA_KERNELS_ELEMENT_TYPE_H

#include "instructions/instructions.h"

#define DEVICE_FLOAT32 0
#define DEVICE_FLOAT16 1
#define DEVICE_BFLOAT16 2

DEVICE float load_element(const char *address, int type) {
    if (type == DEVICE_FLOAT32) return global_load_f32(address);
    uint32_t bits = global_load_u16(address);
    return type == DEVICE_FLOAT16 ? unpack_f16x2(bits).x : unpack_bf16x2(bits).x;
}

#endif
