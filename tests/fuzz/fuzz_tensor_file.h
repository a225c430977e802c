/* SPDX-License-Identifier: Apache-2.0 */
/* The entry point that libFuzzer calls, and that replay_corpus.c and the tests of hostile files call too. */
#ifndef FLASHATTN_FUZZ_TENSOR_FILE_H
#define FLASHATTN_FUZZ_TENSOR_FILE_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#endif
