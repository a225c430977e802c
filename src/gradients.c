/* SPDX-License-Identifier: Apache-2.0 */
/* The rules on what fa_backward takes besides the arguments of fa_forward: see gradients.h. */
#include "gradients.h"

#include "status.h"
#include "tensor.h"

/* dout has out's shape; dq, dk and dv have those of q, k and v. `reference`: float64 is taken for any input. */
static fa_status rows_like(fa_rows *rows, const char *name, const fa_tensor *t, const char *model_name,
                           const fa_tensor *model, const fa_tensor *q, bool reference, bool with_data) {
    FA_TRY(fa_rows_init(rows, name, t, q, model->ndim, model_name, with_data));
    for (int32_t i = 0; i < model->ndim; i++) FA_TRY(fa_tensor_check_extent(name, t, i, model->shape[i], model_name));
    fa_element q_type;
    (void)fa_tensor_element(q->dtype, &q_type); /* q has been checked */
    if (rows->type == q_type || rows->type == FA_ELEMENT_FLOAT32 || (reference && rows->type == FA_ELEMENT_FLOAT64))
        return FA_OK;
    return fa_fail(FA_UNSUPPORTED, "%s.dtype = %s: must be q's, %s, or float32", name, fa_dtype_text(t->dtype).s,
                   fa_dtype_text(q->dtype).s);
}

static fa_status output_like(fa_rows *rows, const char *name, const fa_tensor *t, const char *model_name,
                             const fa_tensor *model, const fa_tensor *q, bool reference, bool with_data) {
    if (t == NULL) return FA_OK;
    FA_TRY(rows_like(rows, name, t, model_name, model, q, reference, with_data));
    static _Alignas(8) char nothing[8];
    if (rows->data == NULL) rows->data = nothing; /* NULL means not wanted, so an empty tensor needs an address */
    return fa_tensor_check_output(name, t);
}

/* What the gradients of bias, sink and slopes have in common. */
static fa_status option_gradient(const char *name, const fa_tensor *t, const char *model_name, const fa_tensor *model,
                                 const fa_tensor *q, bool reference, fa_element *type, bool with_data) {
    if (model == NULL)
        return fa_fail(FA_INVALID_ARGUMENT, "%s is given, but %s is not: there is no such gradient", name, model_name);
    FA_TRY(fa_tensor_check(name, t, with_data));
    FA_TRY(fa_tensor_check_device(name, t, q));
    FA_TRY(fa_tensor_check_ndim(name, t, model->ndim, model_name));
    for (int32_t i = 0; i < model->ndim; i++) FA_TRY(fa_tensor_check_extent(name, t, i, model->shape[i], model_name));
    fa_element model_type;
    (void)fa_tensor_element(model->dtype, &model_type);
    if (!fa_tensor_element(t->dtype, type) ||
        !(*type == model_type || *type == FA_ELEMENT_FLOAT32 || (reference && *type == FA_ELEMENT_FLOAT64)))
        return fa_fail(FA_UNSUPPORTED, "%s.dtype = %s: must be %s's, %s, or float32", name, fa_dtype_text(t->dtype).s,
                       model_name, fa_dtype_text(model->dtype).s);
    return fa_tensor_check_output(name, t);
}

static char *output_data(const fa_tensor *t) {
    static _Alignas(8) char nothing[8];
    return t->data == NULL ? nothing : fa_tensor_data(t);
}

static fa_status dbias_init(fa_gradients *g, const fa_options *o, const fa_tensor *q, bool reference, bool with_data) {
    if (o->dbias == NULL) return FA_OK;
    const fa_tensor *t = o->dbias;
    FA_TRY(option_gradient("dbias", t, "bias", o->bias, q, reference, &g->dbias.type, with_data));
    int64_t element = fa_element_size(g->dbias.type), stride[4];
    for (int32_t i = 0; i < 4; i++) {
        g->dbias_shape[i] = t->shape[i];
        stride[i] = t->shape[i] == 1 ? 0 : element * fa_tensor_stride(t, i);
    }
    g->dbias.data = output_data(t);
    g->dbias.batch_stride = stride[0];
    g->dbias.head_stride = stride[1];
    g->dbias.row_stride = stride[2];
    g->dbias.key_stride = stride[3];
    return FA_OK;
}

static fa_status vectors_init(fa_gradients *g, const fa_options *o, const fa_tensor *q, bool reference,
                              bool with_data) {
    if (o->dsink != NULL) {
        FA_TRY(option_gradient("dsink", o->dsink, "sink", o->sink, q, reference, &g->dsink.type, with_data));
        g->dsink.data = output_data(o->dsink);
        g->dsink.stride[0] = fa_element_size(g->dsink.type) * fa_tensor_stride(o->dsink, 0);
    }
    if (o->dalibi_slopes != NULL) {
        const fa_tensor *t = o->dalibi_slopes;
        struct fa_gradient_vector *d = &g->dalibi_slopes;
        FA_TRY(option_gradient("dalibi_slopes", t, "alibi_slopes", o->alibi_slopes, q, reference, &d->type, with_data));
        d->data = output_data(t);
        g->dalibi_per_batch = t->ndim == 2;
        d->stride[0] = g->dalibi_per_batch ? fa_element_size(d->type) * fa_tensor_stride(t, 0) : 0;
        d->stride[1] = fa_element_size(d->type) * fa_tensor_stride(t, t->ndim - 1);
    }
    return FA_OK;
}

/* No output overlaps an input or another output. */
static fa_status check_apart(const fa_backward_arguments *a, const fa_options *o) {
    const fa_named_tensor outputs[] = {
        {"dq", a->dq},       {"dk", a->dk},       {"dv", a->dv},
        {"dbias", o->dbias}, {"dsink", o->dsink}, {"dalibi_slopes", o->dalibi_slopes},
    };
    fa_named_tensor inputs[6 + FA_OPTION_INPUTS] = {
        {"dout", a->dout}, {"q", a->q}, {"k", a->k}, {"v", a->v}, {"out", a->out}, {"lse", a->lse},
    };
    fa_option_inputs(o, inputs + 6);
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        if (outputs[i].tensor == NULL) continue;
        for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++)
            FA_TRY(fa_tensor_check_apart(outputs[i].name, outputs[i].tensor, inputs[j].name, inputs[j].tensor));
        for (size_t j = 0; j < i; j++)
            FA_TRY(fa_tensor_check_apart(outputs[i].name, outputs[i].tensor, outputs[j].name, outputs[j].tensor));
    }
    return FA_OK;
}

fa_status fa_gradients_init(fa_gradients *g, const fa_backward_arguments *a, bool with_data) {
    fa_options o;
    memset(g, 0, sizeof *g);
    FA_TRY(fa_options_read(&o, a->options));
    FA_TRY(fa_problem_init_backward(&g->problem, a->q, a->k, a->v, &o, a->out, a->lse, with_data));
    bool reference = o.kernel == FA_KERNEL_REFERENCE;
    FA_TRY(rows_like(&g->dout, "dout", a->dout, "as in out", a->out, a->q, reference, with_data));
    FA_TRY(output_like(&g->dq, "dq", a->dq, "as in q", a->q, a->q, reference, with_data));
    FA_TRY(output_like(&g->dk, "dk", a->dk, "as in k", a->k, a->q, reference, with_data));
    FA_TRY(output_like(&g->dv, "dv", a->dv, "as in v", a->v, a->q, reference, with_data));
    FA_TRY(dbias_init(g, &o, a->q, reference, with_data));
    FA_TRY(vectors_init(g, &o, a->q, reference, with_data));
    g->deterministic = o.deterministic != 0;
    return check_apart(a, &o);
}
