/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compiled kernels: what a row of kernels/variants.def becomes, and how to find one.
 */
#ifndef FA_GPU_VARIANTS_H
#define FA_GPU_VARIANTS_H

#include "element.h"
#include "emulator/emulator.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct fa_variant {
    const char *symbol;           /* "fa_v2_forward_bf16_d128" */
    const char *source;           /* "v2_forward" */
    int32_t arch;                 /* 80, 90: the first architecture that runs it */
    bool only_arch;               /* and the only one */
    fa_element type;              /* of q, k and v */
    int32_t head_dim, head_dim_v; /* the largest that it takes */
    bool general;
    int32_t block_m, block_n;
    int32_t threads;
    int32_t stages;
    const fa_emulator_kernel *emulated;
    const void *image; /* fatbin; NULL in a build without nvcc */
} fa_variant;

/* The narrowest one that is wide enough for both; NULL: there is none. */
const fa_variant *fa_variant_find(const char *source, fa_element type, int64_t head_dim, int64_t head_dim_v,
                                  bool general);

/* Its name without the library's prefix, as people see it: "v2_forward_bf16_d128". */
static inline const char *fa_variant_name(const fa_variant *variant) { return variant->symbol + 3; }

/*
 * A table of variants from a .def file, for this library and for tests with kernels of their own:
 *
 *     #define FA_KERNEL FA_VARIANT_DECLARE
 *     #include "kernels/variants.def"
 *     #undef FA_KERNEL
 *     #define FA_KERNEL FA_VARIANT_ROW
 *     static const fa_variant variants[] = {
 *     #include "kernels/variants.def"
 *     };
 *
 * FA_IMAGES is the directory of the fatbins that nvcc made, set by the build; each becomes read-only data of the same
 * name.
 */
#define FA_VARIANT_SYMBOL_0(source, dtype, widths) fa_##source##_##dtype##_d##widths
#define FA_VARIANT_SYMBOL_1(source, dtype, widths) fa_##source##_##dtype##_d##widths##_general
#define FA_VARIANT_WIDTHS_64 64, 64
#define FA_VARIANT_WIDTHS_96 96, 96
#define FA_VARIANT_WIDTHS_128 128, 128
#define FA_VARIANT_WIDTHS_192_128 192, 128
#define FA_VARIANT_WIDTHS_192 192, 192
#define FA_VARIANT_WIDTHS_256 256, 256
#define FA_VARIANT_TYPE_bf16 FA_ELEMENT_BFLOAT16
#define FA_VARIANT_TYPE_f16 FA_ELEMENT_FLOAT16
#define FA_VARIANT_TARGET_sm80 80, false
#define FA_VARIANT_TARGET_sm90a 90, true
#define FA_VARIANT_TEXT_OF(x) #x
#define FA_VARIANT_TEXT(x) FA_VARIANT_TEXT_OF(x)
#define FA_VARIANT_JOIN_OF(a, b) a##b
#define FA_VARIANT_JOIN(a, b) FA_VARIANT_JOIN_OF(a, b)
#define FA_VARIANT_SYMBOL(source, dtype, widths, general) FA_VARIANT_SYMBOL_##general(source, dtype, widths)

#ifdef FA_IMAGES
#    define FA_VARIANT_IMAGE(symbol) FA_VARIANT_JOIN(symbol, _image)
#    define FA_VARIANT_EMBED(symbol)                                                                             \
        __asm__(".pushsection .rodata.fa_images,\"a\"\n"                                                         \
                ".balign 16\n"                                                                                   \
                ".globl " FA_VARIANT_TEXT(symbol) "_image\n"                                                     \
                                                  ".hidden " FA_VARIANT_TEXT(symbol) "_image\n" FA_VARIANT_TEXT( \
                                                      symbol) "_image:\n"                                        \
                                                              ".incbin \"" FA_IMAGES                             \
                                                              "/" FA_VARIANT_TEXT(symbol) ".fatbin\"\n"          \
                                                                                          ".popsection\n");      \
        extern const unsigned char FA_VARIANT_IMAGE(symbol)[] __attribute__((visibility("hidden")));
#else
#    define FA_VARIANT_IMAGE(symbol) NULL
#    define FA_VARIANT_EMBED(symbol)
#endif

#define FA_VARIANT_DECLARE(source, target, dtype, widths, general, block_m, block_n, warps, stages, quality) \
    extern const fa_emulator_kernel FA_VARIANT_SYMBOL(source, dtype, widths, general);                       \
    FA_VARIANT_EMBED(FA_VARIANT_SYMBOL(source, dtype, widths, general))

#define FA_VARIANT_ROW(source, target, dtype, widths, general, block_m, block_n, warps, stages, quality) \
    {FA_VARIANT_TEXT(FA_VARIANT_SYMBOL(source, dtype, widths, general)),                                 \
     #source,                                                                                            \
     FA_VARIANT_TARGET_##target,                                                                         \
     FA_VARIANT_TYPE_##dtype,                                                                            \
     FA_VARIANT_WIDTHS_##widths,                                                                         \
     general,                                                                                            \
     block_m,                                                                                            \
     block_n,                                                                                            \
     (warps)*32,                                                                                         \
     stages,                                                                                             \
     &FA_VARIANT_SYMBOL(source, dtype, widths, general),                                                 \
     FA_VARIANT_IMAGE(FA_VARIANT_SYMBOL(source, dtype, widths, general))},

#endif
