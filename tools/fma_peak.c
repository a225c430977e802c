/* SPDX-License-Identifier: Apache-2.0 */
/* Times the loops on several threads: see fma_peak.h. */
#include "fma_peak.h"

#include "clock.h"

typedef double (*peak_loop)(int64_t iterations, float *sink);

static peak_loop loop_of_isa(fa_isa isa) {
    switch (isa) {
    case FA_ISA_NEON: return fma_peak_neon;
    case FA_ISA_AVX2: return fma_peak_avx2;
    case FA_ISA_AVX512: return fma_peak_avx512;
    case FA_ISA_AVX512_BF16: return fma_peak_avx512_bf16;
    case FA_ISA_AMX: return fma_peak_amx;
    case FA_ISA_NEON_BF16: return fma_peak_neon_bf16;
    case FA_ISA_AUTO:
    case FA_ISA_PORTABLE: break;
    }
    return fma_peak_portable;
}

/* From the moment all threads are there to the moment the last one is done. */
static double run_threads(peak_loop loop, int threads, int64_t iterations, double *seconds) {
    double operations = 0, begin = 0, end = 0;
    (void)threads; /* a build without OpenMP has one */
#pragma omp parallel num_threads(threads) reduction(+ : operations)
    {
        float sink = 0;
#pragma omp barrier
#pragma omp master
        begin = now_seconds();
        operations += loop(iterations, &sink);
        volatile float kept = sink;
        (void)kept;
#pragma omp barrier
#pragma omp master
        end = now_seconds();
    }
    *seconds = end - begin;
    return operations;
}

double fma_peak_measure(fa_isa isa, int threads, double seconds) {
    /* Short runs slip between the interruptions of a busy machine, but starting and joining threads, some
     * microseconds, must not count. */
    enum { FEWEST_RUNS = 8 };
    const double run = 0.3e-3;
    peak_loop loop = loop_of_isa(isa);
    double begin = now_seconds(), best = 0;
    int64_t iterations = 20000;
    for (int i = 0; i < FEWEST_RUNS || now_seconds() - begin < seconds; i++) {
        double elapsed = 0, operations = run_threads(loop, threads, iterations, &elapsed);
        if (!(operations > 0)) return 0;
        if (elapsed > 0 && operations / elapsed > best) best = operations / elapsed;
        if (elapsed < run) iterations *= 2;
    }
    return best;
}
