/* SPDX-License-Identifier: Apache-2.0 */
/* Cases drawn at random with a fresh seed in each run, over all features, dtypes and layouts at once. */
#include "support/judge.h"
#include "support/sweep.h"
#include "support/testing.h"

#include <stdio.h>

static void judge_index(uint64_t index) {
    attention_case c = random_case("sweep", index);
    judge_case(&c);
}

static void random_cases_keep_the_error_budget(void **state) {
    (void)state;
    sweep(600, 20, judge_index);
    printf("the largest error was %.2f of what is allowed\n", judge_worst_share());
}

RUN_TESTS(cmocka_unit_test(random_cases_keep_the_error_budget))
