/* SPDX-License-Identifier: Apache-2.0 */
/* Cases drawn at random, over everything that can be combined. */
#ifndef FLASHATTN_TEST_SWEEP_H
#define FLASHATTN_TEST_SWEEP_H

#include "attention_case.h"

/* Case number `index` of this run's seed: a few thousand to a few hundred thousand pairs of query and key. */
attention_case random_case(const char *name, uint64_t index);
/* The same for backward: not paged, and no inputs near the largest numbers, whose gradients are none. */
attention_case random_backward_case(const char *name, uint64_t index);

/* A number from the environment. */
int64_t test_setting(const char *name, int64_t otherwise);

/* Judges cases by their index, from FLASHATTN_TEST_FIRST on: FLASHATTN_TEST_CASES of them, or fewer if FLASHATTN_TEST_SECONDS are
 * over before. The arguments are the defaults. */
void sweep(int64_t cases, int64_t seconds, void (*judge)(uint64_t index));

#endif
