/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes are either refused with a sentence or give tensors that lie within them. Every element of every
 * tensor is read by its strides, so that AddressSanitizer sees one that does not.
 */
#include "fuzz_tensor_file.h"

#include "io/tensor_file.h"

#include <string.h>

static void require(bool condition) {
    if (!condition) __builtin_trap();
}

/* A sink that the compiler must assume is used. */
static volatile uint8_t sum;

static void touch(const uint8_t *bytes, uint64_t count) {
    uint8_t total = 0;
    for (uint64_t i = 0; i < count; i++) total = (uint8_t)(total + bytes[i]);
    sum = total;
}

static uint64_t touch_elements(const fa_tensor *tensor) {
    int64_t index[FA_FILE_MAX_NDIM] = {0};
    uint64_t item_bytes = tensor->dtype.bits / 8, elements = 0;
    for (int32_t i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] == 0) return 0;
    for (;;) {
        int64_t position = 0;
        for (int32_t i = 0; i < tensor->ndim; i++) position += index[i] * tensor->strides[i];
        touch((const uint8_t *)tensor->data + position * (int64_t)item_bytes, item_bytes);
        elements++;
        int32_t i = tensor->ndim - 1;
        while (i >= 0 && ++index[i] == tensor->shape[i]) index[i--] = 0;
        if (i < 0) return elements;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fa_file_error error = {""};
    fa_tensor_file *file;
    fa_file_status status = fa_tensor_file_parse(bytes, size, "input", &file, &error);
    if (status != FA_FILE_OK) {
        require(file == NULL && strncmp(error.text, "input: ", 7) == 0 && strlen(error.text) > 10);
        return 0;
    }
    for (size_t i = 0; i < fa_tensor_file_count(file); i++) {
        const fa_file_tensor *listed = fa_tensor_file_at(file, i);
        require(listed->offset <= size && listed->bytes <= size - listed->offset);
        touch(bytes + listed->offset, listed->bytes);
        fa_tensor tensor;
        status = fa_tensor_file_find(file, listed->name, &tensor, &error);
        require(status == (listed->readable ? FA_FILE_OK : FA_FILE_UNSUPPORTED));
        if (status == FA_FILE_OK) require(touch_elements(&tensor) * (tensor.dtype.bits / 8) == listed->bytes);
    }
    fa_tensor_file_close(file);
    return 0;
}
