/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as the command handles them: views with their own shape and strides, and owned memory. */
#ifndef FLASHATTN_TOOLS_TENSORS_H
#define FLASHATTN_TOOLS_TENSORS_H

#include "element.h"
#include "flashattn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TENSOR_MAX_NDIM 4

/* t.shape and t.strides point into the struct, so it is passed by pointer and never copied. */
typedef struct tensor {
    fa_tensor t;
    int64_t shape[TENSOR_MAX_NDIM];
    int64_t strides[TENSOR_MAX_NDIM];
    void *memory; /* NULL: a view of somebody else's */
} tensor;

/* The element types of --dtype, in the order of fa_element: "float32", ...; NULL behind the last. */
const char *dtype_choice(int index);
fa_dtype dtype_of_element(fa_element element);
/* False for types that are no fa_element. */
bool element_of_dtype(fa_dtype dtype, fa_element *element);
/* "float32", "int64", "bool", ... */
void dtype_text(fa_dtype dtype, char *text, size_t size);

/* A view of other: same data, type, shape and strides; ndim at most TENSOR_MAX_NDIM. */
void tensor_view(tensor *view, const fa_tensor *other);
/* A view without dimension dim, at index. */
void tensor_select(tensor *t, int32_t dim, int64_t index);
/* Keeps [begin, begin + count) of a dimension. */
void tensor_narrow(tensor *t, int32_t dim, int64_t begin, int64_t count);
/* Puts a dimension of size 1 before dimension dim. */
void tensor_insert(tensor *t, int32_t dim);
void tensor_swap(tensor *t, int32_t a, int32_t b);

/* Compact and row-major, 64-byte aligned, every byte 0xff: NaN in every float type, so that what a kernel
 * forgets to write shows. False if there is no memory. */
bool tensor_allocate(tensor *t, fa_dtype dtype, int32_t ndim, const int64_t *shape);
/* Fills all bytes with 0xff again. */
void tensor_poison(tensor *t);
void tensor_free(tensor *t);

/* "[2, 512, 8, 64]" */
void shape_text(const fa_tensor *t, char *text, size_t size);
int64_t tensor_elements(const fa_tensor *t);
/* Address of the element at index[ndim]. */
char *tensor_address(const fa_tensor *t, const int64_t *index);

/* Independent standard normal numbers, rounded to the tensor's type; the same for the same seed. The tensor
 * is compact. */
void tensor_fill_normal(tensor *t, uint64_t seed);

#endif
