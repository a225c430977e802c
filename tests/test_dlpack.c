/* SPDX-License-Identifier: Apache-2.0 */
/* fa_tensor is DLPack's DLTensor under another name: sizes, offsets and codes, against DLPack's own header. */
#include "flashattn.h"
#include "support/testing.h"

#include <dlpack/dlpack.h>
#include <string.h>

#define SAME_MEMBER(ours, our_member, theirs, their_member)                                    \
    _Static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) &&             \
                       sizeof(((ours *)0)->our_member) == sizeof(((theirs *)0)->their_member), \
                   #our_member " lies where DLPack has it")

_Static_assert(sizeof(fa_tensor) == sizeof(DLTensor), "fa_tensor has the size of DLTensor");
_Static_assert(_Alignof(fa_tensor) == _Alignof(DLTensor), "and its alignment");
SAME_MEMBER(fa_tensor, data, DLTensor, data);
SAME_MEMBER(fa_tensor, device, DLTensor, device);
SAME_MEMBER(fa_tensor, ndim, DLTensor, ndim);
SAME_MEMBER(fa_tensor, dtype, DLTensor, dtype);
SAME_MEMBER(fa_tensor, shape, DLTensor, shape);
SAME_MEMBER(fa_tensor, strides, DLTensor, strides);
SAME_MEMBER(fa_tensor, byte_offset, DLTensor, byte_offset);

_Static_assert(sizeof(fa_device) == sizeof(DLDevice), "fa_device has the size of DLDevice");
SAME_MEMBER(fa_device, device_type, DLDevice, device_type);
SAME_MEMBER(fa_device, device_id, DLDevice, device_id);

_Static_assert(sizeof(fa_dtype) == sizeof(DLDataType), "fa_dtype has the size of DLDataType");
SAME_MEMBER(fa_dtype, code, DLDataType, code);
SAME_MEMBER(fa_dtype, bits, DLDataType, bits);
SAME_MEMBER(fa_dtype, lanes, DLDataType, lanes);

_Static_assert(FA_DEVICE_CPU == (int)kDLCPU && FA_DEVICE_CUDA == (int)kDLCUDA, "device types");
_Static_assert(FA_DTYPE_INT == (int)kDLInt && FA_DTYPE_UINT == (int)kDLUInt && FA_DTYPE_FLOAT == (int)kDLFloat &&
                   FA_DTYPE_BFLOAT == (int)kDLBfloat,
               "dtype codes");
/* kDLBool came with DLPack 0.8; its number is part of that ABI. */
_Static_assert(FA_DTYPE_BOOL == 6, "kDLBool");

/* A DLTensor made by others, passed as it is. */
static void a_DLTensor_is_taken_where_a_fa_tensor_is_asked_for(void **state) {
    (void)state;
    float q[2] = {1, 0}, k[2] = {0, 0}, v[4] = {1, 2, 3, 4}, out[2] = {-1, -1};
    int64_t q_shape[4] = {1, 1, 1, 2}, k_shape[4] = {1, 1, 1, 2}, v_shape[4] = {1, 1, 1, 2};
    int64_t strides[4] = {2, 2, 2, 1};
    DLTensor tensor[4] = {{.data = q, .shape = q_shape},
                          {.data = k, .shape = k_shape, .strides = strides},
                          {.data = v, .shape = v_shape, .byte_offset = 2 * sizeof(float)},
                          {.data = out, .shape = v_shape}};
    fa_tensor ours[4];
    for (int i = 0; i < 4; i++) {
        tensor[i].device.device_type = kDLCPU;
        tensor[i].ndim = 4;
        tensor[i].dtype.code = kDLFloat;
        tensor[i].dtype.bits = 32;
        tensor[i].dtype.lanes = 1;
        memcpy(&ours[i], &tensor[i], sizeof ours[i]); /* as a pointer cast does, which C's aliasing rules forbid here */
    }
    assert_int_equal(fa_forward(&ours[0], &ours[1], &ours[2], NULL, &ours[3], NULL), FA_OK);
    assert_true(out[0] == 3.0f && out[1] == 4.0f);
}

/* NumPy exports an array without elements with strides of 0. */
static void strides_of_a_tensor_without_elements_mean_nothing(void **state) {
    (void)state;
    float q[4] = {1, 2, 3, 4}, out[4] = {-1, -1, -1, -1};
    int64_t q_shape[4] = {1, 2, 1, 2}, k_shape[4] = {1, 0, 1, 2}, strides[4] = {0, 0, 0, 0};
    fa_tensor tq = {.data = q, .device = {FA_DEVICE_CPU, 0}, .ndim = 4, .dtype = FA_FLOAT32, .shape = q_shape};
    fa_tensor tk = tq, to = tq;
    tk.shape = k_shape;
    tk.strides = strides;
    to.data = out;
    assert_int_equal(fa_forward(&tq, &tk, &tk, NULL, &to, NULL), FA_OK);
    assert_true(out[0] == 0.0f && out[1] == 0.0f && out[2] == 0.0f && out[3] == 0.0f);
    to.shape = tq.shape = k_shape; /* and of one that would be written */
    to.strides = tq.strides = strides;
    assert_int_equal(fa_forward(&tq, &tk, &tk, NULL, &to, NULL), FA_OK);
    q_shape[1] = 1; /* with elements the last stride counts again */
    tk.shape = q_shape;
    assert_int_equal(fa_forward(&tq, &tk, &tk, NULL, &to, NULL), FA_INVALID_ARGUMENT);
}

RUN_TESTS(cmocka_unit_test(a_DLTensor_is_taken_where_a_fa_tensor_is_asked_for),
          cmocka_unit_test(strides_of_a_tensor_without_elements_mean_nothing))
