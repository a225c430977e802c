/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor map as kernels and launch code see it: 128 opaque bytes, filled by the machine
 * (cuTensorMapEncodeTiled on CUDA, fa_emulator_encode_tensor_map in the emulator). It may stand in a kernel's
 * parameter struct, where its 128 byte alignment serves both. */
#ifndef FA_KERNELS_TENSOR_MAP_H
#define FA_KERNELS_TENSOR_MAP_H

#include <stdint.h>

typedef struct fa_tensor_map {
    uint64_t opaque[16];
} __attribute__((aligned(128))) fa_tensor_map;

#endif
