/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the emulator share: launching a kernel with many seeds, and expecting either success or a certain
 * report. Each test_*.c of this directory is a program of its own; by hand, from the root of the project:
 *
 *   for t in tests/emulator/test_*.c; do
 *       gcc -std=gnu11 -O2 -ffp-contract=off -I src -I src/kernels -o /tmp/$(basename $t .c) $t src/emulator/[a-z]*.c \
 *           -lcmocka -lpthread -lm && /tmp/$(basename $t .c)
 *   done
 *
 * Warnings that must stay silent: -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wstrict-prototypes
 * -Wmissing-prototypes -Wundef -Wdouble-promotion -Wvla. The programs also run under -fsanitize=address,undefined.
 */
#ifndef FA_TEST_EMULATOR_H
#define FA_TEST_EMULATOR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "emulator/emulator.h"

typedef struct {
    const fa_emulator_kernel *kernel;
    const void *params;
    uint32_t blocks, threads, cluster, shared_bytes;
} test_launch;

static inline int create_device(void **state) {
    *state = fa_emulator_create(FA_EMULATOR_H100);
    return *state ? 0 : -1;
}

static inline int destroy_device(void **state) {
    fa_emulator_destroy(*state);
    return 0;
}

static inline fa_emulator_report run_kernel(fa_emulator *device, const test_launch *test, uint64_t seed) {
    fa_emulator_report report;
    const fa_emulator_launch launch = {.grid = {test->blocks ? test->blocks : 1, 1, 1},
                                       .threads = test->threads,
                                       .cluster = test->cluster,
                                       .shared_bytes = test->shared_bytes,
                                       .seed = seed};
    fa_emulator_run(device, test->kernel, test->params, &launch, &report);
    return report;
}

static inline fa_emulator_counters expect_success(fa_emulator *device, const test_launch *test, uint64_t seed) {
    fa_emulator_report report = run_kernel(device, test, seed);
    if (report.status != FA_EMULATOR_OK)
        fail_msg("seed %llu: status %d: %s", (unsigned long long)seed, (int)report.status, report.text);
    return report.counters;
}

/* The launch must fail with this status and a text that contains `text` (and, if given, `more`), for every seed. */
static inline void expect_report(fa_emulator *device, const test_launch *test, fa_emulator_status status,
                                 const char *text, const char *more) {
    for (uint64_t seed = 1; seed <= 8; seed++) {
        fa_emulator_report report = run_kernel(device, test, seed);
        if (report.status != status || !strstr(report.text, text) || (more && !strstr(report.text, more)))
            fail_msg("seed %llu: expected status %d and \"%s\"%s%s, got status %d: %s", (unsigned long long)seed,
                     (int)status, text, more ? " and " : "", more ? more : "", (int)report.status, report.text);
        if (!strstr(report.text, test->kernel->name)) fail_msg("the report does not name the kernel: %s", report.text);
    }
}

/* A repeatable stream of numbers for inputs. */
static inline uint32_t next_random(uint64_t *stream) {
    *stream = *stream * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*stream >> 33);
}

/* -2 .. 2 in steps of 1/16: exact in every 16-bit format. */
static inline float next_small(uint64_t *stream) { return (float)((int)(next_random(stream) % 65) - 32) / 16.0f; }

static inline uint16_t to_bf16(float exact) {
    uint32_t bits;
    memcpy(&bits, &exact, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static inline float from_bf16(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
