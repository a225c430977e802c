/* SPDX-License-Identifier: Apache-2.0 */
/* Cases drawn at random with a fresh seed in each run, over all features, dtypes and layouts at once. */
#include "support/judge.h"
#include "support/sweep.h"
#include "support/testing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int64_t setting(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoll(text, NULL, 0);
}

/* FLASHATTN_TEST_CASES cases from number FLASHATTN_TEST_FIRST on; ends early after FLASHATTN_TEST_SECONDS. */
static void random_cases_keep_the_error_budget(void **state) {
    (void)state;
    int64_t first = setting("FLASHATTN_TEST_FIRST", 0), cases = setting("FLASHATTN_TEST_CASES", 600);
    double end = seconds() + (double)setting("FLASHATTN_TEST_SECONDS", 20);
    int64_t done = 0;
    for (; done < cases && seconds() < end; done++) {
        attention_case c = random_case("sweep", (uint64_t)(first + done));
        judge_case(&c);
    }
    printf("%" PRId64 " cases; the largest error was %.2f of what is allowed\n", done, judge_worst_share());
    assert_true(done > 0);
}

RUN_TESTS(cmocka_unit_test(random_cases_keep_the_error_budget))
