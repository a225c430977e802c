/* SPDX-License-Identifier: Apache-2.0 */
/* fa_combine: merges partial results of the same queries by the rule of merge.h. */
#include "merge.h"
#include "problem.h"
#include "status.h"
#include "tensor.h"

static int64_t offset_of(const fa_tensor *t, int32_t first, const int64_t *index, int32_t count) {
    int64_t offset = 0;
    for (int32_t i = 0; i < count; i++) offset += index[i] * fa_tensor_stride(t, first + i);
    return offset;
}

static fa_status check(const fa_tensor *out_partial, const fa_tensor *lse_partial, const fa_tensor *out,
                       const fa_tensor *lse) {
    FA_TRY(fa_tensor_check("out_partial", out_partial, true));
    FA_TRY(fa_tensor_check("lse_partial", lse_partial, true));
    FA_TRY(fa_tensor_check("out", out, true));
    if (out_partial->ndim != 4)
        FA_TRY(
            fa_tensor_check_ndim("out_partial", out_partial, 5, "[splits, batch, seqlen_q, heads, head_dim_v], or 4"));
    int32_t ndim = out_partial->ndim;
    FA_TRY(fa_tensor_check_ndim("lse_partial", lse_partial, ndim - 1, "one less than out_partial"));
    FA_TRY(fa_tensor_check_ndim("out", out, ndim - 1, "one less than out_partial"));
    FA_TRY(fa_tensor_check_last_stride("out_partial", out_partial));
    FA_TRY(fa_tensor_check_last_stride("out", out));
    const fa_tensor *tensors[] = {out_partial, lse_partial, out, lse};
    static const char *const names[] = {"out_partial", "lse_partial", "out", "lse"};
    for (int i = 0; i < 4; i++) {
        fa_element type;
        if (tensors[i] == NULL) continue;
        if (tensors[i]->device.device_type != FA_DEVICE_CPU)
            return fa_fail(FA_UNSUPPORTED, "%s.device.device_type = %d: must be %d (CPU)", names[i],
                           tensors[i]->device.device_type, FA_DEVICE_CPU);
        if (!fa_tensor_element(tensors[i]->dtype, &type) || type == FA_ELEMENT_FLOAT64 ||
            (i != 2 && type != FA_ELEMENT_FLOAT32))
            return fa_fail(FA_UNSUPPORTED, "%s.dtype = %s: must be float32%s", names[i],
                           fa_dtype_text(tensors[i]->dtype).s, i == 2 ? ", float16 or bfloat16" : "");
    }
    /* out: [batch.., queries, heads, dv] without the splits; lse: heads before queries. */
    for (int32_t i = 0; i < ndim - 1; i++)
        FA_TRY(fa_tensor_check_extent("out", out, i, out_partial->shape[i + 1], "as in out_partial"));
    for (int32_t i = 0; i < ndim - 3; i++)
        FA_TRY(fa_tensor_check_extent("lse_partial", lse_partial, i, out_partial->shape[i], "as in out_partial"));
    FA_TRY(fa_tensor_check_extent("lse_partial", lse_partial, ndim - 3, out_partial->shape[ndim - 2],
                                  "heads of out_partial"));
    FA_TRY(fa_tensor_check_extent("lse_partial", lse_partial, ndim - 2, out_partial->shape[ndim - 3],
                                  "queries of out_partial"));
    FA_TRY(fa_tensor_check_output("out", out));
    FA_TRY(fa_tensor_check_apart("out", out, "out_partial", out_partial));
    FA_TRY(fa_tensor_check_apart("out", out, "lse_partial", lse_partial));
    if (lse == NULL) return FA_OK;
    FA_TRY(fa_tensor_check("lse", lse, true));
    FA_TRY(fa_tensor_check_ndim("lse", lse, ndim - 2, "two less than out_partial"));
    for (int32_t i = 0; i < ndim - 2; i++)
        FA_TRY(fa_tensor_check_extent("lse", lse, i, lse_partial->shape[i + 1], "as in lse_partial"));
    FA_TRY(fa_tensor_check_output("lse", lse));
    FA_TRY(fa_tensor_check_apart("lse", lse, "out_partial", out_partial));
    FA_TRY(fa_tensor_check_apart("lse", lse, "lse_partial", lse_partial));
    return fa_tensor_check_apart("lse", lse, "out", out);
}

static void combine_row(const fa_tensor *out_partial, const fa_tensor *lse_partial, const fa_tensor *out,
                        const fa_tensor *lse, const int64_t *index, int32_t ndim) {
    /* index: [batch.., query, head]; lse has the last two the other way round. */
    int64_t lse_index[3];
    for (int32_t i = 0; i < ndim; i++) lse_index[i] = index[i];
    lse_index[ndim - 2] = index[ndim - 1];
    lse_index[ndim - 1] = index[ndim - 2];
    int64_t splits = out_partial->shape[0], width = out->shape[out->ndim - 1];
    const char *part_lse = fa_tensor_data(lse_partial) + 4 * offset_of(lse_partial, 1, lse_index, ndim);
    const char *part_out = fa_tensor_data(out_partial) + 4 * offset_of(out_partial, 1, index, ndim);
    int64_t lse_step = 4 * fa_tensor_stride(lse_partial, 0), out_step = 4 * fa_tensor_stride(out_partial, 0);

    fa_merged whole = fa_merge_begin();
    for (int64_t s = 0; s < splits; s++) {
        float m = (float)fa_element_load(part_lse + s * lse_step, FA_ELEMENT_FLOAT32);
        whole = fa_merge_add(whole, m, m == -INFINITY ? 0.0f : 1.0f);
    }
    fa_element type = FA_ELEMENT_FLOAT32;
    (void)fa_tensor_element(out->dtype, &type);
    char *row = fa_tensor_data(out) + fa_element_size(type) * offset_of(out, 0, index, ndim);
    for (int64_t i = 0; i < width; i++) {
        float x = 0;
        for (int64_t s = 0; s < splits; s++) {
            float m = (float)fa_element_load(part_lse + s * lse_step, FA_ELEMENT_FLOAT32);
            if (m == -INFINITY) continue;
            x +=
                fa_merge_weight(whole, m) * (float)fa_element_load(part_out + s * out_step + 4 * i, FA_ELEMENT_FLOAT32);
        }
        fa_element_store(row + i * fa_element_size(type), (double)x, type);
    }
    if (lse == NULL) return;
    fa_element_store(fa_tensor_data(lse) + 4 * offset_of(lse, 0, lse_index, ndim), (double)fa_merge_lse(whole),
                     FA_ELEMENT_FLOAT32);
}

fa_status fa_combine(const fa_tensor *out_partial, const fa_tensor *lse_partial, const fa_tensor *out,
                     const fa_tensor *lse) {
    FA_TRY(check(out_partial, lse_partial, out, lse));
    int32_t ndim = out->ndim - 1; /* batch.., query, head */
    int64_t rows = 1;
    for (int32_t i = 0; i < ndim; i++) rows *= out->shape[i];
    for (int64_t r = 0; r < rows; r++) {
        int64_t index[3], rest = r;
        for (int32_t i = ndim - 1; i >= 0; i--) {
            index[i] = rest % out->shape[i];
            rest /= out->shape[i];
        }
        combine_row(out_partial, lse_partial, out, lse, index, ndim);
    }
    return FA_OK;
}
