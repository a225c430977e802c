/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that can be had again: see random.h. */
#include "random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of x reaches every bit of the result. */
static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t test_seed(void) {
    static uint64_t seed; /* 0: not drawn yet. Test programs draw it before they start threads. */
    if (seed != 0) return seed;
    const char *text = getenv("FLASHATTN_TEST_SEED");
    if (text != NULL) seed = strtoull(text, NULL, 0);
    if (seed == 0) seed = mixed((uint64_t)time(NULL) * 1000003u + (uint64_t)getpid()) >> 16;
    if (seed == 0) seed = 1;
    return seed;
}

int print_seed(void **state) {
    (void)state;
    printf("seed %llu; the same again: FLASHATTN_TEST_SEED=%llu\n", (unsigned long long)test_seed(),
           (unsigned long long)test_seed());
    return fflush(stdout);
}

rng rng_named(const char *name, uint64_t index) {
    uint64_t x = test_seed();
    for (; *name != '\0'; name++) x = mixed(x + (unsigned char)*name);
    return (rng){mixed(x + index)};
}

rng rng_seeded(uint64_t seed) { return (rng){mixed(seed)}; }

uint64_t rng_next(rng *r) {
    r->state += 0x9e3779b97f4a7c15u;
    return mixed(r->state);
}

/* The remainder's bias is below 2^-40 for the small ranges of tests. */
int64_t rng_range(rng *r, int64_t low, int64_t high) {
    return low + (int64_t)(rng_next(r) % (uint64_t)(high - low + 1));
}

double rng_uniform(rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }

double rng_normal(rng *r) {
    double radius = sqrt(-2 * log(1 - rng_uniform(r))); /* 1 - u is never 0 */
    return radius * cos(6.283185307179586 * rng_uniform(r));
}

bool rng_chance(rng *r, double probability) { return rng_uniform(r) < probability; }
