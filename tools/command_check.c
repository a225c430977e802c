/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flashattn check: is this build right on this machine? Each instruction set of the cpu kernel is compared with
 * the float64 reference. Its error may be twice that of plain attention in the same type (the standard kernel),
 * plus a few float32 roundings, for the case that plain attention happens to be exact.
 */
#include "attention.h"
#include "check.h"
#include "command.h"
#include "json_output.h"
#include "message.h"
#include "terminal.h"
#include "text_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CHECK(member) offsetof(check_settings, member)
#define SIZE_OPTION(option_name, member, text)                                                              \
    {                                                                                                       \
        .name = option_name, .kind = OPTION_INTEGER, .offset = CHECK(member), .placeholder = "N", .min = 1, \
        .max = INT64_C(1) << 30, .help = text                                                               \
    }

static const char *checked_kernel_choice(int index) {
    return index < CHECKED_KERNELS ? fa_kernel_name(checked_kernels[index]) : NULL;
}

static const char *check_dtype_choice(int index) {
    return index <= (int)FA_ELEMENT_BFLOAT16 ? dtype_choice(index) : NULL;
}

static const option random_options[] = {
    SIZE_OPTION("batch", batch, "default 1"),
    SIZE_OPTION("heads", heads, "default 4"),
    SIZE_OPTION("heads-kv", heads_kv, "default as --heads; a divisor of it"),
    SIZE_OPTION("seqlen", seqlen, "queries and keys; default 256"),
    SIZE_OPTION("seqlen-q", seqlen_q, "queries; default as --seqlen"),
    SIZE_OPTION("seqlen-k", seqlen_k, "keys; default as --seqlen"),
    SIZE_OPTION("head-dim", head_dim, "default 64"),
    SIZE_OPTION("head-dim-v", head_dim_v, "default as --head-dim"),
    {.name = "dtype",
     .kind = OPTION_CHOICE_LIST,
     .offset = CHECK(dtypes),
     .placeholder = "LIST",
     .choices = check_dtype_choice,
     .help = "some of float32,float16,bfloat16, or all (the default)"},
    {.name = "seed",
     .kind = OPTION_INTEGER,
     .offset = CHECK(seed),
     .placeholder = "N",
     .min = 0,
     .max = INT64_MAX,
     .help = "seed of the standard normal q, k and v; default from the clock, and always printed"},
};

static const option check_options[] = {
    {.name = "backward",
     .kind = OPTION_FLAG,
     .offset = CHECK(backward),
     .help = "check the gradients, for a random gradient of the output"},
    {.name = "kernel",
     .kind = OPTION_CHOICE_LIST,
     .offset = CHECK(kernels),
     .placeholder = "LIST",
     .choices = checked_kernel_choice,
     .help = "kernels to check, some of cpu,v1,v2,v3,v4, or all (that can run here); default cpu"},
    {.name = "isa",
     .kind = OPTION_CHOICE_LIST,
     .offset = CHECK(isas),
     .placeholder = "LIST",
     .choices = isa_choice,
     .help = "instruction sets of the cpu kernel to check, some of auto,portable,neon,avx2,avx512,avx512_bf16,amx,"
             "neon_bf16; default all that can run here"},
    {.name = "expected",
     .kind = OPTION_TEXT,
     .offset = CHECK(expected),
     .placeholder = "TENSOR",
     .help = "with files: an output computed elsewhere, FILE, FILE:NAME or :NAME, which is judged in the same way"},
    {.name = "expected-lse",
     .kind = OPTION_TEXT,
     .offset = CHECK(expected_lse),
     .placeholder = "TENSOR",
     .help = "with --expected: the log-sum-exp computed elsewhere"},
    {.name = "json",
     .kind = OPTION_TEXT,
     .offset = CHECK(json),
     .placeholder = "FILE",
     .help = "write the results as JSON; -: to standard output, instead of the table"},
};

/* ---- One row of the table ---- */

typedef struct check_row {
    const char *dtype;
    const char *name;
    error_size out, lse;
    double out_budget, frobenius_budget, lse_budget; /* lse_budget < 0: there is no lse to judge */
    bool good;
} check_row;

static void judge(check_row *row, const error_size *standard_out, const error_size *standard_lse) {
    row->out_budget = 2 * standard_out->max + BUDGET_FLOOR * standard_out->largest;
    row->frobenius_budget = 2 * standard_out->frobenius + BUDGET_FLOOR;
    row->lse_budget = standard_lse == NULL ? -1 : 2 * standard_lse->max + BUDGET_FLOOR * fmax(1, standard_lse->largest);
    row->good = row->out.max <= row->out_budget && row->out.frobenius <= row->frobenius_budget;
    if (standard_lse != NULL && !(row->lse.max <= row->lse_budget)) row->good = false;
}

static void add_row(check_report *r, const check_row *row) {
    text_table_row *cells = text_table_add(&r->table);
    size_t c = 0;
    text_table_cell(cells, &c, "%s", row->dtype);
    text_table_cell(cells, &c, "%s", row->name);
    text_table_cell(cells, &c, "%.1e", row->out.max);
    text_table_cell(cells, &c, "%.1e", row->out_budget);
    text_table_cell(cells, &c, "%.1e", row->out.frobenius);
    text_table_cell(cells, &c, "%.1e", row->frobenius_budget);
    if (row->lse_budget < 0) {
        c += 2;
    } else {
        text_table_cell(cells, &c, "%.1e", row->lse.max);
        text_table_cell(cells, &c, "%.1e", row->lse_budget);
    }
    text_table_cell(cells, &c, "%s", row->good ? "ok" : "OVER");
    cells->style = row->good ? STYLE_GOOD : STYLE_BAD;
    if (!row->good) r->bad++;

    json_t *entry = json_object();
    (void)json_object_set_new(entry, "dtype", json_string(row->dtype));
    (void)json_object_set_new(entry, "what", json_string(row->name));
    (void)json_object_set_new(entry, "max_error", json_rounded(row->out.max));
    (void)json_object_set_new(entry, "max_error_budget", json_rounded(row->out_budget));
    (void)json_object_set_new(entry, "relative_error", json_rounded(row->out.frobenius));
    (void)json_object_set_new(entry, "relative_error_budget", json_rounded(row->frobenius_budget));
    if (row->lse_budget >= 0) {
        (void)json_object_set_new(entry, "lse_error", json_rounded(row->lse.max));
        (void)json_object_set_new(entry, "lse_error_budget", json_rounded(row->lse_budget));
    }
    (void)json_object_set_new(entry, "within_budget", json_boolean(row->good));
    (void)json_array_append_new(r->rows, entry);
}

static void report_begin(check_report *r, bool backward, double steps) {
    static const char *const forward_heading[] = {"dtype",  "kernel",    "max error", "budget",  "rel. error",
                                                  "budget", "lse error", "budget",    "verdict", ""};
    const char *const *heading = backward ? check_backward_heading : forward_heading;
    memset(r, 0, sizeof *r);
    r->rows = json_array();
    text_table_begin(&r->table, backward ? "lllrrrrl" : "llrrrrrrl");
    text_table_row *cells = text_table_add(&r->table);
    for (size_t c = 0; heading[c][0] != '\0';) text_table_cell(cells, &c, "%s", heading[c]);
    progress_begin(&r->bar, steps);
}

/* ---- Checking one set of q, k and v ---- */

typedef struct result {
    tensor out, lse;
} result;

static void result_free(result *r) {
    tensor_free(&r->out);
    tensor_free(&r->lse);
}

static int compute(attention *a, const check_settings *s, fa_kernel kernel, fa_isa isa, result *r) {
    tensor_poison(&r->out);
    tensor_poison(&r->lse);
    a->options.kernel = kernel;
    a->options.isa = isa;
    a->options.num_threads = (int32_t)s->parallel.threads.value;
    a->options.num_splits = kernel == FA_KERNEL_CPU ? (int32_t)s->parallel.splits.value : 0;
    if (fa_forward(&a->q.t, &a->k.t, &a->v.t, &a->options, &r->out.t, &r->lse.t) != FA_OK) return fail_library();
    return EXIT_CODE_OK;
}

/* What the kernels are judged by. */
typedef struct yardstick {
    const char *dtype;
    const result *reference;
    error_size standard_out, standard_lse;
} yardstick;

static int check_one(attention *a, const check_settings *s, const yardstick *y, fa_kernel kernel, fa_isa isa, result *r,
                     check_report *report) {
    char name[32], label[64];
    check_name(kernel, isa, name, sizeof name);
    (void)snprintf(label, sizeof label, "%s %s", y->dtype, name);
    check_step(report, label);
    int code = compute(a, s, kernel, isa, r);
    if (code != EXIT_CODE_OK) return code;
    check_row row = {.dtype = y->dtype,
                     .name = name,
                     .out = error_between(&r->out, &y->reference->out),
                     .lse = error_between(&r->lse, &y->reference->lse)};
    judge(&row, &y->standard_out, &y->standard_lse);
    add_row(report, &row);
    return EXIT_CODE_OK;
}

static int check_kernels(attention *a, const check_settings *s, const yardstick *y, result *r, check_report *report) {
    for (int index = 0; index < CHECKED_KERNELS; index++) {
        fa_kernel kernel = checked_kernels[index];
        if (!check_kernel_chosen(s, index)) continue;
        for (int isa = 0; isa_choice(isa) != NULL; isa++) {
            if (kernel == FA_KERNEL_CPU ? !check_isa_chosen(s, a, isa) : isa != FA_ISA_AUTO) continue;
            int code = check_one(a, s, y, kernel, (fa_isa)isa, r, report);
            if (code != EXIT_CODE_OK) return code;
        }
    }
    return EXIT_CODE_OK;
}

/* Finds a result that was computed elsewhere; it must have the shape of ours. */
static int find_expected(attention *a, const char *role, const char *reference, const tensor *ours, tensor *t) {
    char shape[128], wanted[128];
    int code = inputs_find(&a->files, role, reference, t);
    if (code != EXIT_CODE_OK) return code;
    shape_text(&t->t, shape, sizeof shape);
    shape_text(&ours->t, wanted, sizeof wanted);
    if (strcmp(shape, wanted) != 0)
        return fail_file("%s = %s: has shape %s; it must be %s", role, reference, shape, wanted);
    fa_element element;
    if (!element_of_dtype(t->t.dtype, &element))
        return fail_file("%s = %s: must be float64, float32, float16 or bfloat16", role, reference);
    return EXIT_CODE_OK;
}

static int check_expected(attention *a, const check_settings *s, const yardstick *y, check_report *report) {
    tensor expected, expected_lse, out, lse;
    attention_file_view(a, &y->reference->out, &y->reference->lse, &out, &lse);
    int code = find_expected(a, "--expected", s->expected, &out, &expected);
    if (code == EXIT_CODE_OK && s->expected_lse != NULL)
        code = find_expected(a, "--expected-lse", s->expected_lse, &lse, &expected_lse);
    if (code != EXIT_CODE_OK) return code;
    check_row row = {.dtype = y->dtype, .name = "expected", .out = error_between(&expected, &out)};
    if (s->expected_lse != NULL) row.lse = error_between(&expected_lse, &lse);
    judge(&row, &y->standard_out, s->expected_lse != NULL ? &y->standard_lse : NULL);
    add_row(report, &row);
    return EXIT_CODE_OK;
}

/* Reference and standard attention, then the kernels; r is room for a result. */
static int check_all(attention *a, const check_settings *s, const char *dtype, result *reference, result *r,
                     check_report *report) {
    yardstick y = {.dtype = dtype, .reference = reference};
    char label[64];
    (void)snprintf(label, sizeof label, "%s reference", dtype);
    check_step(report, label);
    int code = compute(a, s, FA_KERNEL_REFERENCE, FA_ISA_AUTO, reference);
    if (code != EXIT_CODE_OK) return code;
    (void)snprintf(label, sizeof label, "%s standard", dtype);
    check_step(report, label);
    code = compute(a, s, FA_KERNEL_STANDARD, FA_ISA_AUTO, r);
    if (code != EXIT_CODE_OK) return code;
    y.standard_out = error_between(&r->out, &reference->out);
    y.standard_lse = error_between(&r->lse, &reference->lse);
    code = check_kernels(a, s, &y, r, report);
    if (code != EXIT_CODE_OK || s->expected == NULL) return code;
    return check_expected(a, s, &y, report);
}

static int check_inputs(attention *a, const check_settings *s, check_report *r) {
    const fa_dtype float64 = FA_FLOAT64, float32 = FA_FLOAT32;
    result reference, kernel;
    char dtype[16];
    dtype_text(a->q.t.dtype, dtype, sizeof dtype);
    if (s->backward) return check_backward(a, s, dtype, r);
    int code = attention_allocate(a, float64, float64, &reference.out, &reference.lse);
    if (code != EXIT_CODE_OK) return code;
    code = attention_allocate(a, a->q.t.dtype, float32, &kernel.out, &kernel.lse);
    if (code == EXIT_CODE_OK) {
        code = check_all(a, s, dtype, &reference, &kernel, r);
        result_free(&kernel);
    }
    result_free(&reference);
    return code;
}

/* ---- Random inputs ---- */

static int64_t value_or(option_integer o, int64_t otherwise) { return o.given ? o.value : otherwise; }

static int make_random(attention *a, const check_settings *s, fa_dtype dtype) {
    int64_t seqlen = value_or(s->seqlen, 256), heads = value_or(s->heads, 4), dim = value_or(s->head_dim, 64);
    int64_t q[4] = {value_or(s->batch, 1), value_or(s->seqlen_q, seqlen), heads, dim};
    int64_t k[4] = {q[0], value_or(s->seqlen_k, seqlen), value_or(s->heads_kv, heads), dim};
    int64_t v[4] = {k[0], k[1], k[2], value_or(s->head_dim_v, dim)};
    tensor_free(&a->q);
    tensor_free(&a->k);
    tensor_free(&a->v);
    if (!tensor_allocate(&a->q, dtype, 4, q) || !tensor_allocate(&a->k, dtype, 4, k) ||
        !tensor_allocate(&a->v, dtype, 4, v))
        return fail_memory("q, k and v");
    uint64_t seed = (uint64_t)s->seed.value;
    tensor_fill_normal(&a->q, seed);
    tensor_fill_normal(&a->k, seed + 1);
    tensor_fill_normal(&a->v, seed + 2);
    a->file_ndim = 4;
    return EXIT_CODE_OK;
}

static int check_random(attention *a, const check_settings *s, check_report *r) {
    for (int i = 0; check_dtype_choice(i) != NULL; i++) {
        if (s->dtypes != 0 && (s->dtypes >> i & 1) == 0) continue;
        int code = make_random(a, s, dtype_of_element((fa_element)i));
        if (code == EXIT_CODE_OK) code = check_inputs(a, s, r);
        if (code != EXIT_CODE_OK) return code;
    }
    return EXIT_CODE_OK;
}

/* ---- The command ---- */

static int finish(const check_settings *s, const attention *a, bool random, check_report *r) {
    char rules[256], shape_q[128], shape_k[128];
    attention_describe(a, rules, sizeof rules);
    shape_text(&a->q.t, shape_q, sizeof shape_q);
    shape_text(&a->k.t, shape_k, sizeof shape_k);
    bool text = !json_on_stdout(s->json);
    if (text) {
        (void)printf("q %s, k %s, %s", shape_q, shape_k, rules);
        if (random) (void)printf(", seed %" PRId64, s->seed.value);
        (void)printf("\nerrors against the float64 reference; budget = twice plain attention's error + a few float32 "
                     "roundings\n\n");
        text_table_print(&r->table, stdout);
        (void)printf("\n%s%zu of %zu within budget%s\n", style(stdout, r->bad == 0 ? STYLE_GOOD : STYLE_BAD),
                     r->table.count - 1 - r->bad, r->table.count - 1, style(stdout, STYLE_NONE));
    }
    int code = r->bad == 0 ? EXIT_CODE_OK : EXIT_CODE_CHECK_FAILED;
    if (s->json == NULL) return code;
    json_t *root = json_object();
    (void)json_object_set_new(root, "version", json_string(fa_version_text()));
    (void)json_object_set_new(root, "q", json_string(shape_q));
    (void)json_object_set_new(root, "k", json_string(shape_k));
    (void)json_object_set_new(root, "rules", json_string(rules));
    if (random) (void)json_object_set_new(root, "seed", json_integer(s->seed.value));
    (void)json_object_set(root, "results", r->rows);
    int written = json_write(s->json, root);
    return written == EXIT_CODE_OK ? code : written;
}

/* An option that the chosen kind of input would ignore, or NULL. */
static const char *misplaced_option(const check_settings *s, bool random) {
    if (s->backward && (s->expected != NULL || s->expected_lse != NULL))
        return "--expected and --expected-lse are outputs, but --backward checks gradients";
    if (s->expected == NULL && s->expected_lse != NULL) return "--expected-lse needs --expected";
    if (random) return s->expected != NULL ? "--expected needs input files" : NULL;
    const option_integer sizes[] = {s->batch,    s->heads,    s->heads_kv,   s->seqlen, s->seqlen_q,
                                    s->seqlen_k, s->head_dim, s->head_dim_v, s->seed};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].given) return "sizes and --seed belong to random inputs, but input files are given";
    return s->dtypes != 0 ? "--dtype belongs to random inputs, but input files are given" : NULL;
}

int command_check(int argc, char **argv) {
    check_settings settings = {.isas = 0};
    score_settings scores = {.causal = false};
    tensor_settings tensors = {.bias = NULL};
    layout_settings layout = {.layout = 0};
    const option_group groups[] = {
        {"Random inputs", random_options, sizeof random_options / sizeof random_options[0], &settings},
        {"Inputs from files", layout_options, layout_option_count, &layout},
        {"Masks and scores", score_options, score_option_count, &scores},
        {"Tensors (FILE, FILE:NAME, or :NAME in the input file)", tensor_options, tensor_option_count, &tensors},
        {"Check", check_options, sizeof check_options / sizeof check_options[0], &settings},
        {"Threads", parallel_options, parallel_option_count, &settings.parallel},
    };
    const command_line line = {
        .name = "check",
        .usage = "[OPTION ...]\nQ K V [OPTION ...]\nFILE.safetensors [OPTION ...]",
        .description =
            "Compares the cpu kernel, with every instruction set, or other kernels with a float64 reference, on random "
            "standard normal "
            "numbers or on the files that `flashattn run` takes. Budget: twice the error of plain attention computed "
            "in the same type, plus a few roundings of float32. NaN is over every budget. Exit code 1 if any error "
            "is over its budget. The reference is slow: about 0.2 s for 4 heads of 256 x 256.",
        .examples = "  flashattn check\n"
                    "  flashattn check --head-dim 128 --seqlen-q 100 --seqlen-k 300 --heads-kv 1 --causal\n"
                    "  flashattn check --backward --causal --heads-kv 2\n"
                    "  flashattn check --isa avx2 --dtype bfloat16 --seed 7\n"
                    "  flashattn check layer.safetensors --expected :out --expected-lse :lse\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof groups[0],
        .max_arguments = 3,
    };
    const char *arguments[3];
    size_t count = 0;
    int code = EXIT_CODE_OK;
    if (!options_parse(&line, argc, argv, arguments, &count, &code)) return code;
    bool random = count == 0;
    if (misplaced_option(&settings, random) != NULL) return fail_usage("%s", misplaced_option(&settings, random));
    if (!settings.seed.given) settings.seed.value = (int64_t)(time(NULL) & INT32_MAX);

    attention a = {.file_ndim = 0};
    check_report r;
    report_begin(&r, settings.backward, 5.0 * (random ? 3 : 1));
    code = attention_set_options(&a, &scores, &tensors, count == 1 ? arguments[0] : NULL);
    if (code == EXIT_CODE_OK) {
        if (random) {
            code = check_random(&a, &settings, &r);
        } else {
            code = attention_open(&a, arguments, count, &layout);
            if (code == EXIT_CODE_OK) code = check_inputs(&a, &settings, &r);
        }
    }
    progress_end(&r.bar);
    if (code == EXIT_CODE_OK) code = finish(&settings, &a, random, &r);
    text_table_end(&r.table);
    json_decref(r.rows);
    attention_close(&a);
    return code;
}
