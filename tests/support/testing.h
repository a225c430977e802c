/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with the headers it needs, and the main function that test programs have in common. */
#ifndef FLASHATTN_TEST_TESTING_H
#define FLASHATTN_TEST_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "random.h"

/* RUN_TESTS(cmocka_unit_test(a), cmocka_unit_test(b)): those alone whose names FLASHATTN_TEST_FILTER matches, with ? and
 * * for any character and any text, if it is set. */
#define RUN_TESTS(...)                                           \
    int main(void) {                                             \
        const struct CMUnitTest tests[] = {__VA_ARGS__};         \
        cmocka_set_test_filter(getenv("FLASHATTN_TEST_FILTER")); \
        return cmocka_run_group_tests(tests, print_seed, NULL);  \
    }

#endif
