/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that can be emulated, with the numbers of their data sheets. */
#include "emulator.h"

#define KIB 1024u
#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)

const fa_emulator_properties *fa_emulator_part_properties(fa_emulator_part part) {
    static const fa_emulator_properties parts[FA_EMULATOR_PARTS] = {
        [FA_EMULATOR_A100] = {"emulated-a100", 80, 108, 163 * KIB, 164 * KIB, 65536, 1024, 2048, 1, 80 * GIB, 40 * MIB},
        [FA_EMULATOR_RTX3090] = {"emulated-rtx3090", 86, 82, 99 * KIB, 100 * KIB, 65536, 1024, 1536, 1, 24 * GIB,
                                 6 * MIB},
        [FA_EMULATOR_H100] = {"emulated-h100", 90, 132, 227 * KIB, 228 * KIB, 65536, 1024, 2048, 16, 80 * GIB,
                              50 * MIB},
        [FA_EMULATOR_H200] = {"emulated-h200", 90, 132, 227 * KIB, 228 * KIB, 65536, 1024, 2048, 16, 141 * GIB,
                              50 * MIB},
        [FA_EMULATOR_B200] = {"emulated-b200", 100, 148, 227 * KIB, 228 * KIB, 65536, 1024, 2048, 16, 180 * GIB,
                              126 * MIB},
    };
    return (unsigned)part < FA_EMULATOR_PARTS ? &parts[part] : NULL;
}
