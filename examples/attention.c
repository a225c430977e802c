/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention of 8 query heads that share 2 key/value heads, judged by the float64 reference. */
#include <flashattn.h>

#include <math.h>
#include <stdio.h>

enum { BATCH = 2, SEQLEN = 200, HEADS = 8, HEADS_KV = 2, HEAD_DIM = 64 };

static float q_data[BATCH][SEQLEN][HEADS][HEAD_DIM], out_data[BATCH][SEQLEN][HEADS][HEAD_DIM],
    expected_data[BATCH][SEQLEN][HEADS][HEAD_DIM];
static float k_data[BATCH][SEQLEN][HEADS_KV][HEAD_DIM], v_data[BATCH][SEQLEN][HEADS_KV][HEAD_DIM];

static int64_t q_shape[4] = {BATCH, SEQLEN, HEADS, HEAD_DIM}, kv_shape[4] = {BATCH, SEQLEN, HEADS_KV, HEAD_DIM};

static fa_tensor tensor(void *data, int64_t *shape) {
    return (fa_tensor){.data = data, .device = {FA_DEVICE_CPU, 0}, .ndim = 4, .dtype = FA_FLOAT32, .shape = shape};
}

static void fill(float *x, size_t count) {
    for (size_t i = 0; i < count; i++) x[i] = (float)sin((double)i * (double)i);
}

int main(void) {
    fa_tensor q = tensor(q_data, q_shape), k = tensor(k_data, kv_shape), v = tensor(v_data, kv_shape);
    fa_tensor out = tensor(out_data, q_shape), expected = tensor(expected_data, q_shape);
    fill(q.data, sizeof q_data / sizeof(float));
    fill(k.data, sizeof k_data / sizeof(float));
    fill(v.data, sizeof v_data / sizeof(float));

    fa_options options = {.size = sizeof options, .causal = FA_CAUSAL_BOTTOM_RIGHT};
    fa_plan_info plan = {.size = sizeof plan};
    fa_status status = fa_plan(&q, &k, &v, &options, &out, NULL, &plan); /* what would run? */
    if (status == FA_OK) status = fa_forward(&q, &k, &v, &options, &out, NULL);

    options.kernel = FA_KERNEL_REFERENCE;
    if (status == FA_OK) status = fa_forward(&q, &k, &v, &options, &expected, NULL);
    if (status != FA_OK) {
        fprintf(stderr, "%s: %s\n", fa_status_text(status), fa_last_error());
        return 1;
    }

    double worst = 0.0;
    for (size_t i = 0; i < sizeof out_data / sizeof(float); i++) {
        double difference = fabs((double)((float *)out.data)[i] - (double)((float *)expected.data)[i]);
        if (difference > worst || isnan(difference)) worst = difference;
    }
    printf("%s with %lld bytes of working memory\n", plan.name, (long long)plan.workspace_bytes);
    printf("largest difference from the reference: %.1e\n", worst);
    return worst < 1e-5 ? 0 : 1;
}
