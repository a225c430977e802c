/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with the headers it needs, and the main function that test programs have in common. */
#ifndef FLASHATTN_TEST_TESTING_H
#define FLASHATTN_TEST_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "random.h"

/* RUN_TESTS(cmocka_unit_test(a), cmocka_unit_test(b)) */
#define RUN_TESTS(...)                                          \
    int main(void) {                                            \
        const struct CMUnitTest tests[] = {__VA_ARGS__};        \
        return cmocka_run_group_tests(tests, print_seed, NULL); \
    }

#endif
