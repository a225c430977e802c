/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of src/io share: a scratch directory, whole files, fixtures, and refusals. */
#ifndef FLASHATTN_IO_TEST_H
#define FLASHATTN_IO_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/tensor_file.h"

/* Group set-up and tear-down: a fresh directory, removed with all that it holds. */
int make_scratch(void **state);
int remove_scratch(void **state);

/* "scratch/name", good until the next but seven calls. */
const char *scratch(const char *name);
const char *fixture(const char *name);

/* The content, in an allocation of its exact size; fails the test if it cannot be had. */
uint8_t *read_whole(const char *path, size_t *size);
void write_whole(const char *path, const void *bytes, size_t size);

/* How many names the scratch directory holds. */
size_t scratch_entries(void);

/* Parses a copy of exactly that size and expects this status and this part of the sentence. */
void expect_refusal(const void *bytes, size_t size, fa_file_status status, const char *sentence);

/* Fails the test with the sentence unless the status is FA_FILE_OK. */
void expect_ok(fa_file_status status, const fa_file_error *error);

/* All element types, with the values of fixtures/make_fixtures.py as bytes. */
typedef struct type_case {
    const char *name; /* of the fixture, and of the tensor in all_types.safetensors */
    fa_dtype dtype;
    const char *npy; /* NULL: not in .npy */
    const char *safetensors;
    const void *values; /* 6 elements */
} type_case;

extern const type_case type_cases[];
enum { TYPE_CASES = 11 };

#endif
