/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flashattn check --backward: the gradients of each kernel against those of the float64 reference, for the same out,
 * lse and random dout. The budget is that of forward, for each gradient by itself.
 */
#include "check.h"
#include "command.h"
#include "json_output.h"
#include "message.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DQ, DK, DV, DBIAS, DSINK, DSLOPES, GRADIENTS };

static const char *const gradient_names[GRADIENTS] = {"dq", "dk", "dv", "dbias", "dsink", "dalibi_slopes"};

const char *const check_backward_heading[] = {"dtype",      "kernel", "gradient", "max error", "budget",
                                              "rel. error", "budget", "verdict",  ""};

/* What all kernels get. */
typedef struct backward_inputs {
    tensor dout, out, lse;
} backward_inputs;

typedef struct gradients {
    tensor of[GRADIENTS]; /* without memory: the call has none */
} gradients;

static const fa_tensor *gradient_source(const attention *a, int which) {
    const fa_tensor *const sources[GRADIENTS] = {&a->q.t,         &a->k.t,         &a->v.t,
                                                 a->options.bias, a->options.sink, a->options.alibi_slopes};
    return sources[which];
}

static void gradients_free(gradients *g) {
    for (int i = 0; i < GRADIENTS; i++) tensor_free(&g->of[i]);
}

/* Of the inputs' types, or all of float64. */
static int gradients_allocate(const attention *a, bool float64, gradients *g) {
    memset(g, 0, sizeof *g);
    for (int i = 0; i < GRADIENTS; i++) {
        const fa_tensor *source = gradient_source(a, i);
        if (source == NULL) continue;
        if (!tensor_allocate(&g->of[i], float64 ? dtype_of_element(FA_ELEMENT_FLOAT64) : source->dtype, source->ndim,
                             source->shape))
            return fail_memory("the gradients");
    }
    return EXIT_CODE_OK;
}

static const fa_tensor *wanted(const tensor *t) { return t->memory == NULL ? NULL : &t->t; }

static int compute(const attention *a, const check_settings *s, const backward_inputs *in, fa_kernel kernel, fa_isa isa,
                   gradients *g) {
    fa_options o = a->options;
    for (int i = 0; i < GRADIENTS; i++)
        if (g->of[i].memory != NULL) tensor_poison(&g->of[i]);
    o.kernel = kernel;
    o.isa = isa;
    o.num_threads = (int32_t)s->parallel.threads.value;
    o.num_splits = kernel == FA_KERNEL_CPU ? (int32_t)s->parallel.splits.value : 0;
    o.dbias = wanted(&g->of[DBIAS]);
    o.dsink = wanted(&g->of[DSINK]);
    o.dalibi_slopes = wanted(&g->of[DSLOPES]);
    if (fa_backward(&in->dout.t, &a->q.t, &a->k.t, &a->v.t, &in->out.t, &in->lse.t, &o, wanted(&g->of[DQ]),
                    wanted(&g->of[DK]), wanted(&g->of[DV])) != FA_OK)
        return fail_library();
    return EXIT_CODE_OK;
}

static void add_row(check_report *r, const char *dtype, const char *kernel, int which, const error_size *error,
                    const error_size *standard) {
    double budget = 2 * standard->max + BUDGET_FLOOR * standard->largest;
    double relative_budget = 2 * standard->frobenius + BUDGET_FLOOR;
    bool good = error->max <= budget && error->frobenius <= relative_budget;
    text_table_row *cells = text_table_add(&r->table);
    size_t c = 0;
    text_table_cell(cells, &c, "%s", dtype);
    text_table_cell(cells, &c, "%s", kernel);
    text_table_cell(cells, &c, "%s", gradient_names[which]);
    text_table_cell(cells, &c, "%.1e", error->max);
    text_table_cell(cells, &c, "%.1e", budget);
    text_table_cell(cells, &c, "%.1e", error->frobenius);
    text_table_cell(cells, &c, "%.1e", relative_budget);
    text_table_cell(cells, &c, "%s", good ? "ok" : "OVER");
    cells->style = good ? STYLE_GOOD : STYLE_BAD;
    if (!good) r->bad++;

    json_t *entry = json_object();
    (void)json_object_set_new(entry, "dtype", json_string(dtype));
    (void)json_object_set_new(entry, "what", json_string(kernel));
    (void)json_object_set_new(entry, "gradient", json_string(gradient_names[which]));
    (void)json_object_set_new(entry, "max_error", json_rounded(error->max));
    (void)json_object_set_new(entry, "max_error_budget", json_rounded(budget));
    (void)json_object_set_new(entry, "relative_error", json_rounded(error->frobenius));
    (void)json_object_set_new(entry, "relative_error_budget", json_rounded(relative_budget));
    (void)json_object_set_new(entry, "within_budget", json_boolean(good));
    (void)json_array_append_new(r->rows, entry);
}

static int check_kernels(const attention *a, const check_settings *s, const char *dtype, const backward_inputs *in,
                         const gradients *reference, const error_size *standard, gradients *g, check_report *r) {
    for (int index = 0; index < CHECKED_KERNELS; index++) {
        fa_kernel kernel = checked_kernels[index];
        if (!check_kernel_chosen(s, index)) continue;
        for (int isa = 0; isa_choice(isa) != NULL; isa++) {
            char name[32], label[64];
            if (kernel == FA_KERNEL_CPU ? !check_isa_chosen(s, a, isa) : isa != FA_ISA_AUTO) continue;
            check_name(kernel, (fa_isa)isa, name, sizeof name);
            (void)snprintf(label, sizeof label, "%s %s", dtype, name);
            check_step(r, label);
            int code = compute(a, s, in, kernel, (fa_isa)isa, g);
            if (code != EXIT_CODE_OK) return code;
            for (int i = 0; i < GRADIENTS; i++) {
                if (g->of[i].memory == NULL) continue;
                error_size error = error_between(&g->of[i], &reference->of[i]);
                add_row(r, dtype, name, i, &error, &standard[i]);
            }
        }
    }
    return EXIT_CODE_OK;
}

/* Reference and standard attention, then the kernels. */
static int check_all(const attention *a, const check_settings *s, const char *dtype, const backward_inputs *in,
                     gradients *reference, gradients *g, check_report *r) {
    error_size standard[GRADIENTS] = {{0, 0, 0}};
    char label[64];
    (void)snprintf(label, sizeof label, "%s reference", dtype);
    check_step(r, label);
    int code = compute(a, s, in, FA_KERNEL_REFERENCE, FA_ISA_AUTO, reference);
    if (code != EXIT_CODE_OK) return code;
    (void)snprintf(label, sizeof label, "%s standard", dtype);
    check_step(r, label);
    code = compute(a, s, in, FA_KERNEL_STANDARD, FA_ISA_AUTO, g);
    if (code != EXIT_CODE_OK) return code;
    for (int i = 0; i < GRADIENTS; i++)
        if (g->of[i].memory != NULL) standard[i] = error_between(&g->of[i], &reference->of[i]);
    return check_kernels(a, s, dtype, in, reference, standard, g, r);
}

static int make_inputs(attention *a, const check_settings *s, backward_inputs *in) {
    const fa_dtype float32 = FA_FLOAT32;
    int code = attention_allocate(a, a->q.t.dtype, float32, &in->out, &in->lse);
    if (code != EXIT_CODE_OK) return code;
    if (!tensor_allocate(&in->dout, a->q.t.dtype, in->out.t.ndim, in->out.shape))
        return fail_memory("the gradient of the output");
    tensor_fill_normal(&in->dout, (uint64_t)s->seed.value + 3);
    a->options.kernel = FA_KERNEL_CPU;
    a->options.isa = FA_ISA_AUTO;
    if (fa_forward(&a->q.t, &a->k.t, &a->v.t, &a->options, &in->out.t, &in->lse.t) != FA_OK) return fail_library();
    return EXIT_CODE_OK;
}

int check_backward(attention *a, const check_settings *s, const char *dtype, check_report *r) {
    backward_inputs in = {.dout = {.memory = NULL}};
    gradients reference, g;
    int code = gradients_allocate(a, true, &reference);
    int code_g = gradients_allocate(a, false, &g);
    if (code == EXIT_CODE_OK) code = code_g;
    if (code == EXIT_CODE_OK) code = make_inputs(a, s, &in);
    if (code == EXIT_CODE_OK) code = check_all(a, s, dtype, &in, &reference, &g, r);
    gradients_free(&reference);
    gradients_free(&g);
    tensor_free(&in.dout);
    tensor_free(&in.out);
    tensor_free(&in.lse);
    return code;
}
