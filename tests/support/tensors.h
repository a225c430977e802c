/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors as callers have them: any order in memory, gaps between rows, negative strides, odd addresses, a
 * byte_offset, broadcast dimensions. Each lies in pages of its own, against an inaccessible page before or
 * behind it, so that a read or write outside faults. All bytes around and between the elements are 0xff, which
 * is NaN in every format: canaries that show a stray write, and poison that shows a stray read.
 */
#ifndef FLASHATTN_TEST_TENSORS_H
#define FLASHATTN_TEST_TENSORS_H

#include "element.h"
#include "flashattn.h"
#include "random.h"

#include <stdbool.h>

enum { TENSOR_DIMS = 5 };

typedef enum layout {
    LAYOUT_COMPACT,   /* strides NULL, end flush with an inaccessible page */
    LAYOUT_PADDED,    /* a slice of a larger tensor: gaps behind each dimension */
    LAYOUT_PERMUTED,  /* the outer dimensions in any order in memory: [b, h, s, d], [s, b, h, d], ... */
    LAYOUT_REVERSED,  /* negative strides in the outer dimensions */
    LAYOUT_UNALIGNED, /* odd byte address, made up of data and byte_offset */
    LAYOUT_BROADCAST, /* inputs: stride 0 in one outer dimension */
    LAYOUT_ANY,       /* all of these at once, at random, broadcasting apart */
    LAYOUT_ALIGNED,   /* as TMA wants them: all rows at multiples of 16 bytes, outer dimensions in any order, gaps */
    LAYOUTS
} layout;

const char *layout_name(layout kind);

typedef struct tensor {
    fa_tensor fa; /* pass &t->fa */
    int64_t shape[TENSOR_DIMS];
    int64_t stride[TENSOR_DIMS]; /* in elements, also where fa.strides is NULL */
    int64_t element_bytes;
    bool broadcast;        /* some dimension has stride 0: elements share storage */
    unsigned char *origin; /* address of element 0, 0, ... */
    unsigned char *pages;  /* what can be read and written: canaries and elements */
    size_t page_bytes;
    bool owner; /* false: a view of another tensor's pages */
} tensor;

fa_dtype dtype_of_element(fa_element type);
const char *element_name(fa_element type);
/* The number format; float32 for dtypes that are none. */
fa_element element_of_dtype(fa_dtype dtype);

/* inner_contiguous: the last dimension has stride 1, as q, k, v and out need. Poisoned throughout. */
tensor *tensor_new(fa_dtype dtype, int ndim, const int64_t *shape, layout kind, bool inner_contiguous, rng *r);
/* The same numbers, rounded to another dtype, in compact rows. */
tensor *tensor_rounded(const tensor *t, fa_element type, rng *r);
/* The first `width` elements of the last dimension; keeps no pages of its own. */
tensor *tensor_view(const tensor *whole, int64_t width);
void tensor_free(tensor *t); /* NULL: nothing */

int64_t tensor_count(const tensor *t);
/* Elements by number, in row-major order of the shape. */
unsigned char *tensor_address(const tensor *t, int64_t number);
double tensor_get(const tensor *t, int64_t number);
void tensor_put(tensor *t, int64_t number, double x);
int64_t tensor_get_int(const tensor *t, int64_t number); /* int32, bool, uint8 */
void tensor_put_int(tensor *t, int64_t number, int64_t x);
/* 50 times one channel of the last dimension; once only where elements share storage. */
void tensor_enlarge_channel(tensor *t, int64_t channel);

/* All bytes 0xff: elements are NaN. */
void tensor_poison(tensor *t);
/* The first element that still holds the poison; -1: none. */
int64_t tensor_first_poisoned(const tensor *t);
/* Whether every byte that belongs to no element is still 0xff. */
bool tensor_canaries_intact(const tensor *t);
/* Of all bytes, canaries included. */
uint64_t tensor_checksum(const tensor *t);
/* The first element whose bits differ; -1: none. Same dtype and shape. */
int64_t tensor_first_difference(const tensor *a, const tensor *b);

#endif
