/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers that can be had again. A test program draws one seed, prints it, and derives from it the
 * seed of every case; the environment variable FLASHATTN_TEST_SEED sets it, to repeat a failure.
 */
#ifndef FLASHATTN_TEST_RANDOM_H
#define FLASHATTN_TEST_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng;

/* The seed of this run: FLASHATTN_TEST_SEED, else the clock and the process number. */
uint64_t test_seed(void);
/* Group set-up of every test program: prints the seed. */
int print_seed(void **state);

/* A stream of its own for each name and index. */
rng rng_named(const char *name, uint64_t index);
rng rng_seeded(uint64_t seed);

uint64_t rng_next(rng *r);
/* low .. high, both included */
int64_t rng_range(rng *r, int64_t low, int64_t high);
/* [0, 1) */
double rng_uniform(rng *r);
double rng_normal(rng *r);
bool rng_chance(rng *r, double probability);

#endif
