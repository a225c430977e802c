/* SPDX-License-Identifier: Apache-2.0 */
/* Times passes over memory: see memory_speed.h. */
#include "memory_speed.h"

#include "clock.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Sums in several lanes, so that compilers use vectors and additions do not wait for one another. */
static uint64_t sum_words(const uint64_t *words, size_t count) {
    enum { LANES = 32 };
    uint64_t lane[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int n = 0; n < LANES; n++) lane[n] += words[i + (size_t)n];
    for (; i < count; i++) lane[0] += words[i];
    for (int n = 1; n < LANES; n++) lane[0] += lane[n];
    return lane[0];
}

double memory_read_once(const void *data, size_t bytes, int threads) {
    size_t words = bytes / sizeof(uint64_t), part = words / (size_t)threads + 1;
    uint64_t sum = 0;
    double begin = now_seconds();
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
    for (int i = 0; i < threads; i++) {
        size_t first = (size_t)i * part < words ? (size_t)i * part : words;
        size_t end = first + part < words ? first + part : words;
        sum += sum_words((const uint64_t *)data + first, end - first);
    }
    double seconds = now_seconds() - begin;
    volatile uint64_t kept = sum; /* or nothing would have to be read */
    (void)kept;
    return seconds > 0 ? (double)bytes / seconds : 0;
}

/* a[i] = b[i] + x * c[i], and the bytes per second. */
static double triad_once(double *a, const double *b, const double *c, size_t count, int threads) {
    double begin = now_seconds();
    (void)threads; /* a build without OpenMP has one */
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t i = 0; i < count; i++) a[i] = b[i] + 3.0 * c[i];
    double seconds = now_seconds() - begin;
    return seconds > 0 ? 3 * (double)count * sizeof *a / seconds : 0;
}

/* Short caches are read many times in one timing, which would otherwise measure the clock and the start of threads. */
static double best_of(void *memory, size_t bytes, int threads, double seconds, bool triad) {
    double begin = now_seconds(), best = 0;
    size_t third = bytes / 3 / sizeof(double);
    double *a = memory;
    for (int runs = 0; runs < 3 || now_seconds() - begin < seconds; runs++) {
        double speed =
            triad ? triad_once(a, a + third, a + 2 * third, third, threads) : memory_read_once(memory, bytes, threads);
        if (speed > best) best = speed;
    }
    return best;
}

static double measure(size_t bytes, int threads, double seconds, bool triad) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL) return 0;
    memset(memory, 1, (bytes + 63) / 64 * 64); /* pages of its own: untouched ones would all be the same zeros */
    double best = best_of(memory, bytes, threads, seconds, triad);
    free(memory);
    return best;
}

double memory_read_measure(size_t bytes, int threads, double seconds) {
    return measure(bytes, threads, seconds, false);
}
double memory_triad_measure(size_t bytes, int threads, double seconds) {
    return measure(bytes, threads, seconds, true);
}
