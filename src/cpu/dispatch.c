/* SPDX-License-Identifier: Apache-2.0 */
/* Which table of micro-kernels runs: what the build has, what the machine can, what the caller or the
 * environment asks for. */
#include "../status.h"
#include "kernels.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(__x86_64__)
#    include <cpuid.h>
#    include <unistd.h>
#    ifdef __linux__
#        include <sys/syscall.h>
#    endif
#    define ARCHITECTURE "x86-64"
#elif defined(__aarch64__)
#    ifdef __linux__
#        include <sys/auxv.h>
#    endif
#    define ARCHITECTURE "aarch64"
#else
#    define ARCHITECTURE "neither x86-64 nor aarch64"
#endif

const char *fa_isa_name(fa_isa isa) {
    switch (isa) {
    case FA_ISA_AUTO: return "auto";
    case FA_ISA_PORTABLE: return "portable";
    case FA_ISA_NEON: return "neon";
    case FA_ISA_AVX2: return "avx2";
    case FA_ISA_AVX512: return "avx512";
    case FA_ISA_AVX512_BF16: return "avx512_bf16";
    case FA_ISA_AMX: return "amx";
    case FA_ISA_NEON_BF16: return "neon_bf16";
    }
    return "unknown";
}

/* NULL: it has no kernels for inputs of that type. Where it has any, it has some for bfloat16. */
static const fa_cpu_kernels *table(fa_isa isa, fa_element type) {
    switch (isa) {
    case FA_ISA_AUTO: return NULL;
    case FA_ISA_PORTABLE: return fa_cpu_kernels_portable();
    case FA_ISA_NEON: return fa_cpu_kernels_neon();
    case FA_ISA_AVX2: return fa_cpu_kernels_avx2();
    case FA_ISA_AVX512: return fa_cpu_kernels_avx512();
    case FA_ISA_AVX512_BF16: return type == FA_ELEMENT_BFLOAT16 ? fa_cpu_kernels_avx512_bf16() : NULL;
    case FA_ISA_AMX:
        return type == FA_ELEMENT_BFLOAT16  ? fa_cpu_kernels_amx()
               : type == FA_ELEMENT_FLOAT16 ? fa_cpu_kernels_amx_float16()
                                            : fa_cpu_kernels_amx_float32();
    case FA_ISA_NEON_BF16: return type == FA_ELEMENT_BFLOAT16 ? fa_cpu_kernels_neon_bf16() : NULL;
    }
    return NULL;
}

/* ---- The machine ---- */

#if defined(__x86_64__)

enum {
    CPU_ASKED = 1 << 0,
    CPU_SAVES_AVX = 1 << 1, /* the operating system saves these registers (XCR0) */
    CPU_SAVES_AVX512 = 1 << 2,
    CPU_FMA = 1 << 3,
    CPU_F16C = 1 << 4,
    CPU_AVX2 = 1 << 5,
    CPU_AVX512F = 1 << 6,
    CPU_AVX512DQ = 1 << 7,
    CPU_AVX512BW = 1 << 8,
    CPU_AVX512VL = 1 << 9,
    CPU_AVX512_BF16 = 1 << 10,
    CPU_AMX_TILE = 1 << 11,
    CPU_AMX_BF16 = 1 << 12,
    CPU_SAVES_TILES = 1 << 13,
    CPU_FAST_BF16 =
        1 << 14 /* its bfloat16 dot product does twice the work of a float32 multiply-add in the same time */
};

/* Linux saves tile data for a process only after it was asked to; the rule for all its threads, once and for good (Linux
 * Documentation/arch/x86/xstate.rst). */
static int tiles_permitted(void) {
#    if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#    else
    return 0;
#    endif
}

static unsigned ask_cpu(void) {
    unsigned a, b, c, d, found = CPU_ASKED;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    if (c & bit_FMA) found |= CPU_FMA;
    if (c & bit_F16C) found |= CPU_F16C;
    if (c & bit_OSXSAVE) {
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        if ((low & 0x06) == 0x06) found |= CPU_SAVES_AVX;         /* xmm, ymm */
        if ((low & 0xe6) == 0xe6) found |= CPU_SAVES_AVX512;      /* and masks, upper halves, zmm16 and above */
        if ((low & 0x60000) == 0x60000) found |= CPU_SAVES_TILES; /* tile configuration and data */
    }
    /* AMD's do from the first on (Zen 4). On Intel's it has half the rate of multiply-adds (Emerald Rapids). */
    unsigned vendor[3];
    if (__get_cpuid(0, &a, &vendor[0], &vendor[2], &vendor[1]) && memcmp(vendor, "AuthenticAMD", 12) == 0)
        found |= CPU_FAST_BF16;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    if (b & bit_AVX2) found |= CPU_AVX2;
    if (b & bit_AVX512F) found |= CPU_AVX512F;
    if (b & bit_AVX512DQ) found |= CPU_AVX512DQ;
    if (b & bit_AVX512BW) found |= CPU_AVX512BW;
    if (b & bit_AVX512VL) found |= CPU_AVX512VL;
    if (d & 1u << 22) found |= CPU_AMX_BF16;
    if (d & 1u << 24) found |= CPU_AMX_TILE;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5)) found |= CPU_AVX512_BF16;
    if ((found & CPU_AMX_TILE) && (found & CPU_SAVES_TILES) && !tiles_permitted()) found &= ~(unsigned)CPU_SAVES_TILES;
    return found;
}

/* CPUID leaves the virtual machine, so it is asked once; threads that ask at the same time find the same. */
static unsigned cpu(void) {
    static atomic_uint known;
    unsigned found = atomic_load_explicit(&known, memory_order_relaxed);
    if (found == 0) {
        found = ask_cpu();
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    return found;
}

/* What the machine lacks for an instruction set that the build has; NULL: nothing. */
static const char *lacking(fa_isa isa) {
    static const struct {
        fa_isa since; /* this one and those after it need */
        unsigned feature;
        const char *name;
    } needs[] = {
        {FA_ISA_AVX2, CPU_AVX2, "AVX2"},
        {FA_ISA_AVX2, CPU_FMA, "FMA"},
        {FA_ISA_AVX2, CPU_F16C, "F16C"},
        {FA_ISA_AVX2, CPU_SAVES_AVX, "an operating system that saves AVX registers"},
        {FA_ISA_AVX512, CPU_AVX512F, "AVX-512 F"},
        {FA_ISA_AVX512, CPU_AVX512DQ, "AVX-512 DQ"},
        {FA_ISA_AVX512, CPU_AVX512BW, "AVX-512 BW"},
        {FA_ISA_AVX512, CPU_AVX512VL, "AVX-512 VL"},
        {FA_ISA_AVX512, CPU_SAVES_AVX512, "an operating system that saves AVX-512 registers"},
        {FA_ISA_AVX512_BF16, CPU_AVX512_BF16, "AVX-512 BF16"},
        {FA_ISA_AMX, CPU_AMX_TILE, "AMX"},
        {FA_ISA_AMX, CPU_AMX_BF16, "AMX BF16"},
        {FA_ISA_AMX, CPU_SAVES_TILES, "an operating system that saves AMX tiles"},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (isa >= needs[i].since && !(cpu() & needs[i].feature)) return needs[i].name;
    return NULL;
}

static bool worth_choosing(fa_isa isa, fa_element type) {
    if (isa == FA_ISA_AMX) return type == FA_ELEMENT_BFLOAT16; /* others: fa_cpu_kernels_in_parts() */
    return isa != FA_ISA_AVX512_BF16 || (cpu() & CPU_FAST_BF16);
}

#else

/* NEON is part of aarch64, BF16 of Armv8.6 and an option before. */
static const char *lacking(fa_isa isa) {
    if (isa != FA_ISA_NEON_BF16) return NULL;
#    if defined(__aarch64__) && defined(__linux__)
    enum { BF16 = 1 << 14 }; /* HWCAP2_BF16 of Linux arch/arm64/include/uapi/asm/hwcap.h */
    return getauxval(AT_HWCAP2) & BF16 ? NULL : "BF16";
#    else
    return "a Linux kernel, which would tell whether it has BF16";
#    endif
}

static bool worth_choosing(fa_isa isa, fa_element type) {
    (void)isa, (void)type;
    return true;
}

#endif

/* ---- The choice ---- */

/* `argument` is what asked for the instruction set. */
static fa_status check(fa_isa isa, const char *argument) {
    if ((unsigned)isa > FA_ISA_NEON_BF16)
        return fa_fail(FA_INVALID_ARGUMENT, "%s = %d: must be 0 (auto) to %d (neon_bf16)", argument, (int)isa,
                       (int)FA_ISA_NEON_BF16);
    if (table(isa, FA_ELEMENT_BFLOAT16) == NULL)
        return fa_fail(FA_UNSUPPORTED, "%s = %s: not in this build, which is for %s", argument, fa_isa_name(isa),
                       ARCHITECTURE);
    const char *what = lacking(isa);
    if (what != NULL)
        return fa_fail(FA_UNSUPPORTED, "%s = %s: this machine lacks %s", argument, fa_isa_name(isa), what);
    return FA_OK;
}

/* What FA_ISA_AUTO is to be, by the environment; NULL: nothing is said. */
static const char *wished(void) {
    const char *wish = getenv("FLASHATTN_ISA");
    return wish != NULL && wish[0] != '\0' ? wish : NULL;
}

/* The instruction set that FA_ISA_AUTO means now for inputs of a type. */
static fa_status automatic(fa_element type, fa_isa *isa) {
    const char *wish = wished();
    if (wish != NULL) {
        for (*isa = FA_ISA_PORTABLE; *isa <= FA_ISA_NEON_BF16; ++*isa)
            if (strcmp(wish, fa_isa_name(*isa)) == 0) return check(*isa, "FLASHATTN_ISA");
        return fa_fail(FA_INVALID_ARGUMENT,
                       "FLASHATTN_ISA = \"%s\": must be portable, neon, avx2, avx512, avx512_bf16, amx or neon_bf16",
                       wish);
    }
    *isa = FA_ISA_NEON_BF16;
    while (table(*isa, FA_ELEMENT_BFLOAT16) == NULL || lacking(*isa) != NULL || !worth_choosing(*isa, type)) --*isa;
    return FA_OK;
}

fa_isa fa_cpu_isa_select(fa_isa isa, fa_element type, fa_status *status) {
    *status = isa == FA_ISA_AUTO ? automatic(type, &isa) : check(isa, "isa");
    return *status == FA_OK ? isa : FA_ISA_AUTO;
}

const fa_cpu_kernels *fa_cpu_kernels_select(fa_isa isa, fa_element type, fa_status *status) {
    isa = fa_cpu_isa_select(isa, type, status);
    if (*status != FA_OK) return NULL;
    while (table(isa, type) == NULL) --isa;
    return table(isa, type);
}

const fa_cpu_kernels *fa_cpu_kernels_in_parts(fa_isa isa, fa_element type) {
    bool may = isa == FA_ISA_AUTO && wished() == NULL && type != FA_ELEMENT_BFLOAT16;
    return may && lacking(FA_ISA_AMX) == NULL ? table(FA_ISA_AMX, type) : NULL;
}

const fa_cpu_kernels *fa_cpu_kernels_float32(fa_isa isa) {
    while (table(isa, FA_ELEMENT_FLOAT32) == NULL || table(isa, FA_ELEMENT_FLOAT32)->dot_rows == NULL) --isa;
    return table(isa, FA_ELEMENT_FLOAT32);
}

fa_status fa_isa_supported(fa_isa isa) {
    fa_status status;
    fa_cpu_kernels_select(isa, FA_ELEMENT_FLOAT32, &status);
    return status;
}
