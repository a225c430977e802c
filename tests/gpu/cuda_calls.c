/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fa_forward and fa_backward for tests whose tensors lie on the CPU: with gpu_calls_on_cuda they run on copies of them on
 * GPU 0. The linker's --wrap puts them between the test and the library, so that the tests of the CPU kernels judge the GPU
 * kernels unchanged.
 *
 * Each tensor's copy lies between guard bytes; those, and the gaps between its elements, come back to the test with
 * the rest or are looked at here, so that a stray write shows.
 */
#include "device.h"
#include "flashattn.h"
#include "gpu_cases.h"
#include "support/testing.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD = 4096, OPTION_INPUTS = 9, OPTION_TENSORS = OPTION_INPUTS + 3, TENSORS = 9 + OPTION_TENSORS };

fa_status __wrap_fa_forward(const fa_tensor *q, const fa_tensor *k, const fa_tensor *v, const fa_options *options,
                            const fa_tensor *out, const fa_tensor *lse);
fa_status __real_fa_forward(const fa_tensor *q, const fa_tensor *k, const fa_tensor *v, const fa_options *options,
                            const fa_tensor *out, const fa_tensor *lse);
fa_status __wrap_fa_backward(const fa_tensor *dout, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                             const fa_tensor *out, const fa_tensor *lse, const fa_options *options, const fa_tensor *dq,
                             const fa_tensor *dk, const fa_tensor *dv);
fa_status __real_fa_backward(const fa_tensor *dout, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                             const fa_tensor *out, const fa_tensor *lse, const fa_options *options, const fa_tensor *dq,
                             const fa_tensor *dk, const fa_tensor *dv);

/* A tensor and its copy. */
typedef struct copied_tensor {
    fa_tensor fa;
    unsigned char *host;   /* its lowest byte */
    unsigned char *memory; /* on the GPU, guards included */
    size_t bytes;
    bool output;
} copied_tensor;

static void find_bytes(copied_tensor *c) {
    int64_t low = 0, high = 0, compact = 1;
    bool empty = c->fa.data == NULL;
    for (int32_t i = c->fa.ndim - 1; i >= 0; i--) {
        int64_t stride = c->fa.strides != NULL ? c->fa.strides[i] : compact;
        int64_t reach = (c->fa.shape[i] - 1) * stride;
        compact *= c->fa.shape[i];
        if (c->fa.shape[i] == 0) empty = true;
        if (reach < 0) low += reach;
        if (reach > 0) high += reach;
    }
    int64_t element = c->fa.dtype.bits / 8;
    c->host = empty ? NULL : (unsigned char *)c->fa.data + c->fa.byte_offset + low * element;
    c->bytes = empty ? 0 : (size_t)((high - low + 1) * element);
}

/* The same address modulo 256 as on the host, so that the kernels see the same alignment. */
static void to_gpu(copied_tensor *c, const fa_tensor *original, bool output) {
    c->fa = *original;
    c->output = output;
    find_bytes(c);
    size_t shift = (uintptr_t)c->host % 256, all = c->bytes + shift + 2 * GUARD;
    c->memory = device_allocate(all);
    device_fill(c->memory, 0xff, all);
    unsigned char *first = c->memory + GUARD + shift;
    if (c->bytes > 0) device_write(first, c->host, c->bytes);
    if (c->fa.data != NULL && c->host != NULL) c->fa.data = first + ((unsigned char *)c->fa.data - c->host);
    c->fa.device = (fa_device){FA_DEVICE_CUDA, 0};
}

static void check_guard(const copied_tensor *c, const unsigned char *copy, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++)
        if (copy[i] != 0xff)
            fail_msg("a kernel wrote %zd bytes from the first byte of a tensor of %zu bytes",
                     (ptrdiff_t)(i - GUARD - (uintptr_t)c->host % 256), c->bytes);
}

static void from_gpu(copied_tensor *c) {
    size_t first = GUARD + (uintptr_t)c->host % 256, all = c->bytes + first + GUARD;
    unsigned char *copy = malloc(all);
    assert_non_null(copy);
    device_read(copy, c->memory, all);
    device_free(c->memory);
    check_guard(c, copy, 0, first);
    check_guard(c, copy, first + c->bytes, all);
    if (c->output && c->bytes > 0) memcpy(c->host, copy + first, c->bytes);
    /* memcmp: cmocka's comparison takes most of the time of a test with large tensors. */
    if (!c->output && c->bytes > 0 && memcmp(c->host, copy + first, c->bytes) != 0)
        fail_msg("a kernel wrote into a tensor of %zu bytes that is an input", c->bytes);
    free(copy);
}

/* The tensors of a call, and their copies: arguments first, then those among the options. */
typedef struct copied_call {
    int arguments;
    const fa_tensor *given[TENSORS];
    copied_tensor copies[TENSORS];
    fa_options options;
} copied_call;

/* outputs: a bit for each argument that is one. */
static void call_to_gpu(copied_call *c, int arguments, unsigned outputs, const fa_options *options) {
    c->arguments = arguments;
    c->options = *options;
    fa_options *o = &c->options;
    const fa_tensor **const in_options[OPTION_TENSORS] = {
        &o->alibi_slopes, &o->sink,      &o->bias,      &o->mask,  &o->cu_seqlens_q, &o->cu_seqlens_k,
        &o->seqused_q,    &o->seqused_k, &o->leftpad_k, &o->dbias, &o->dsink,        &o->dalibi_slopes};
    for (int i = 0; i < OPTION_TENSORS; i++) c->given[arguments + i] = *in_options[i];
    for (int i = 0; i < arguments + OPTION_TENSORS; i++)
        if (c->given[i] != NULL)
            to_gpu(&c->copies[i], c->given[i],
                   i < arguments ? (outputs >> i & 1u) != 0 : i >= arguments + OPTION_INPUTS);
    for (int i = 0; i < OPTION_TENSORS; i++)
        if (*in_options[i] != NULL) *in_options[i] = &c->copies[arguments + i].fa;
}

static void call_from_gpu(copied_call *c) {
    device_synchronize();
    for (int i = 0; i < c->arguments + OPTION_TENSORS; i++)
        if (c->given[i] != NULL) from_gpu(&c->copies[i]);
}

static const fa_tensor *copy_of(const copied_call *c, int i) { return c->given[i] == NULL ? NULL : &c->copies[i].fa; }

fa_status __wrap_fa_forward(const fa_tensor *q, const fa_tensor *k, const fa_tensor *v, const fa_options *options,
                            const fa_tensor *out, const fa_tensor *lse) {
    if (!gpu_calls_on_cuda) return __real_fa_forward(q, k, v, options, out, lse);
    copied_call c = {.given = {q, k, v, out, lse}};
    call_to_gpu(&c, 5, 1u << 3 | 1u << 4, options);
    fa_status status =
        __real_fa_forward(copy_of(&c, 0), copy_of(&c, 1), copy_of(&c, 2), &c.options, copy_of(&c, 3), copy_of(&c, 4));
    call_from_gpu(&c);
    return status;
}

fa_status __wrap_fa_backward(const fa_tensor *dout, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                             const fa_tensor *out, const fa_tensor *lse, const fa_options *options, const fa_tensor *dq,
                             const fa_tensor *dk, const fa_tensor *dv) {
    if (!gpu_calls_on_cuda) return __real_fa_backward(dout, q, k, v, out, lse, options, dq, dk, dv);
    copied_call c = {.given = {dout, q, k, v, out, lse, dq, dk, dv}};
    call_to_gpu(&c, 9, 1u << 6 | 1u << 7 | 1u << 8, options);
    fa_status status =
        __real_fa_backward(copy_of(&c, 0), copy_of(&c, 1), copy_of(&c, 2), copy_of(&c, 3), copy_of(&c, 4),
                           copy_of(&c, 5), &c.options, copy_of(&c, 6), copy_of(&c, 7), copy_of(&c, 8));
    call_from_gpu(&c);
    return status;
}
