/* SPDX-License-Identifier: Apache-2.0 */
/* A C program that uses the installed library. Two equal keys: the output is the mean of the two values. */
#include <flashattn.h>

#include <stdio.h>

int main(void) {
    float q_data[2] = {1.0f, 2.0f}, k_data[4] = {3.0f, 4.0f, 3.0f, 4.0f}, v_data[4] = {1.0f, 10.0f, 3.0f, 30.0f};
    float out_data[2] = {0.0f, 0.0f};
    int64_t q_shape[4] = {1, 1, 1, 2}, k_shape[4] = {1, 2, 1, 2};
    fa_tensor q = {.data = q_data, .device = {FA_DEVICE_CPU, 0}, .ndim = 4, .dtype = FA_FLOAT32, .shape = q_shape};
    fa_tensor k = {.data = k_data, .device = {FA_DEVICE_CPU, 0}, .ndim = 4, .dtype = FA_FLOAT32, .shape = k_shape};
    fa_tensor v = k, out = q;
    v.data = v_data;
    out.data = out_data;

    if (fa_version() != FA_VERSION) {
        fprintf(stderr, "header %d, library %d\n", FA_VERSION, fa_version());
        return 1;
    }
    if (fa_forward(&q, &k, &v, NULL, &out, NULL) != FA_OK) {
        fprintf(stderr, "%s\n", fa_last_error());
        return 1;
    }
    printf("flashattn %s from C: %g %g\n", fa_version_text(), (double)out_data[0], (double)out_data[1]);
    return out_data[0] == 2.0f && out_data[1] == 20.0f ? 0 : 1;
}
