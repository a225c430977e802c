/* SPDX-License-Identifier: Apache-2.0 */
/* flashattn run: attention on tensors in files. */
#include "attention.h"
#include "clock.h"
#include "command.h"
#include "message.h"
#include "picture.h"
#include "terminal.h"
#include "work.h"

#include <stdio.h>
#include <string.h>

typedef struct run_settings {
    const char *out;
    const char *lse;
    int out_dtype; /* 0: as q; else 1 + fa_element */
    int kernel;
    int isa;
    parallel_settings parallel;
    option_integer repeat;
    bool count;
    bool quiet;
} run_settings;

#define RUN(member) offsetof(run_settings, member)

static const char *out_dtype_choice(int index) { return index == 0 ? "same" : dtype_choice(index - 1); }

static const option output_options[] = {
    {.name = "output",
     .letter = 'o',
     .kind = OPTION_TEXT,
     .offset = RUN(out),
     .placeholder = "FILE",
     .help = "where the result goes: .npy (the output), or .safetensors (tensors out and lse); an existing file is "
             "replaced only when the new one is complete"},
    {.name = "lse",
     .kind = OPTION_TEXT,
     .offset = RUN(lse),
     .placeholder = "FILE",
     .help = "also write the log-sum-exp of each row, float32 [batch, heads, seqlen_q]"},
    {.name = "out-dtype",
     .kind = OPTION_CHOICE,
     .offset = RUN(out_dtype),
     .placeholder = "TYPE",
     .choices = out_dtype_choice,
     .help = "type of the output: same (as q, the default), float32, or float64 with --kernel reference"},
    {.name = "quiet", .kind = OPTION_FLAG, .offset = RUN(quiet), .help = "print nothing but errors"},
};

static const option execution_options[] = {
    {.name = "kernel",
     .kind = OPTION_CHOICE,
     .offset = RUN(kernel),
     .placeholder = "NAME",
     .choices = kernel_choice,
     .help = "auto (the default), cpu, reference (float64, slow), standard (plain attention), or v1 .. v4 (GPU)"},
    {.name = "isa",
     .kind = OPTION_CHOICE,
     .offset = RUN(isa),
     .placeholder = "NAME",
     .choices = isa_choice,
     .help = "instruction set of the cpu kernel: auto (the default), portable, neon, avx2, avx512, avx512_bf16, amx or "
             "neon_bf16"},
    {.name = "repeat",
     .kind = OPTION_INTEGER,
     .offset = RUN(repeat),
     .placeholder = "N",
     .min = 1,
     .max = 1000000,
     .help = "compute N times and report the fastest; default 1"},
    {.name = "count",
     .kind = OPTION_FLAG,
     .offset = RUN(count),
     .help =
         "print what the kernel moved and computed; needs an emulated GPU, FLASHATTN_MACHINE=emulated-h100 for one"},
};

/* ---- Summary ---- */

static void print_tensor(const char *name, const tensor *t, const char *arrow, const char *file) {
    char shape[128], type[16];
    shape_text(&t->t, shape, sizeof shape);
    dtype_text(t->t.dtype, type, sizeof type);
    (void)printf("  %-7s  %s %s%s%s\n", name, type, shape, arrow, file);
}

static void print_size(double bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
    (void)printf("%.*f %s", unit == 0 || bytes >= 100 ? 0 : 1, bytes, units[unit]);
}

static void print_inputs(const attention *a, const fa_plan_info *plan) {
    char rules[256];
    attention_describe(a, rules, sizeof rules);
    (void)printf("%sflashattn %s%s\n", style(stdout, STYLE_BOLD), fa_version_text(), style(stdout, STYLE_NONE));
    print_tensor("q", &a->q, "", "");
    print_tensor("k", &a->k, "", "");
    print_tensor("v", &a->v, "", "");
    (void)printf("  rules    %s\n", rules);
    (void)printf("  plan     %s, %d thread%s, ", plan->name, plan->num_threads, plan->num_threads == 1 ? "" : "s");
    if (plan->num_splits > 1) (void)printf("%d key splits, ", plan->num_splits);
    print_size((double)plan->workspace_bytes);
    (void)printf(" of working memory\n");
    if (plan->note[0] != '\0') (void)printf("           (%s)\n", plan->note);
}

static void print_time(const attention *a, double seconds, int64_t repeat) {
    double flops = attention_flops(a);
    const char *unit = seconds < 1e-3 ? "us" : seconds < 1 ? "ms" : "s";
    double shown = seconds < 1e-3 ? seconds * 1e6 : seconds < 1 ? seconds * 1e3 : seconds;
    (void)printf("  time     %.3g %s, %.4g GFLOP/s%s\n", shown, unit, seconds > 0 ? flops / seconds * 1e-9 : 0,
                 repeat > 1 ? " (the fastest)" : "");
}

static void print_work(const fa_machine_work *work) {
    for (int i = 0; work_name(i) != NULL; i++) {
        char text[64];
        work_text(work, i, text, sizeof text);
        (void)printf("  %-7s  %-28s %s\n", i == 0 ? "counted" : "", work_name(i), text);
    }
}

/* ---- Work ---- */

static int compute(const attention *a, const tensor *out, const tensor *lse, int64_t repeat, double *seconds) {
    *seconds = -1;
    for (int64_t i = 0; i < repeat; i++) {
        double begin = now_seconds();
        if (fa_forward(&a->q.t, &a->k.t, &a->v.t, &a->options, &out->t, &lse->t) != FA_OK) return fail_library();
        double elapsed = now_seconds() - begin;
        if (*seconds < 0 || elapsed < *seconds) *seconds = elapsed;
    }
    return EXIT_CODE_OK;
}

/* The same with counters read before and after. */
static int compute_and_count(const run_settings *s, const attention *a, const tensor *out, const tensor *lse,
                             double *seconds, fa_machine_work *work) {
    fa_machine_work before;
    int code = work_read(&before);
    if (code == EXIT_CODE_OK) code = compute(a, out, lse, s->repeat.value, seconds);
    if (code == EXIT_CODE_OK) code = work_read(work);
    if (code == EXIT_CODE_OK) work_subtract(work, &before, s->repeat.value);
    return code;
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* lse goes first: if it cannot be written, nothing is. */
static int write_outputs(const run_settings *s, const attention *a, const tensor *out, const tensor *lse,
                         const fa_plan_info *plan) {
    tensor out_view, lse_view;
    fa_file_error error;
    attention_file_view(a, out, lse, &out_view, &lse_view);
    const fa_named_tensor tensors[2] = {{"out", &out_view.t}, {"lse", &lse_view.t}};
    const fa_file_metadata metadata[2] = {{"flashattn", fa_version_text()}, {"plan", plan->name}};
    if (s->lse != NULL) {
        if (fa_tensor_file_write(s->lse, &tensors[1], 1, NULL, 0, &error) != FA_FILE_OK)
            return fail_file("--lse: %s", error.text);
        if (!s->quiet) print_tensor("lse", &lse_view, " -> ", s->lse);
    }
    if (s->out != NULL) {
        bool both = ends_with(s->out, ".safetensors");
        if (fa_tensor_file_write(s->out, tensors, both ? 2 : 1, metadata, both ? 2 : 0, &error) != FA_FILE_OK)
            return fail_file("--output: %s", error.text);
        if (!s->quiet) print_tensor("out", &out_view, " -> ", s->out);
        if (!s->quiet && both) print_tensor("lse", &lse_view, " -> ", s->out);
    }
    return EXIT_CODE_OK;
}

static int run_attention(const run_settings *s, attention *a, const picture_settings *picture, const char *source) {
    const fa_dtype float32 = FA_FLOAT32;
    fa_dtype out_dtype = s->out_dtype == 0 ? a->q.t.dtype : dtype_of_element((fa_element)(s->out_dtype - 1));
    tensor out, lse;
    fa_plan_info plan = {.size = sizeof plan};
    fa_machine_work work;
    double seconds = 0;
    a->options.kernel = (fa_kernel)s->kernel;
    a->options.isa = (fa_isa)s->isa;
    a->options.num_threads = (int32_t)s->parallel.threads.value;
    a->options.num_splits = (int32_t)s->parallel.splits.value;
    int code = attention_allocate(a, out_dtype, float32, &out, &lse);
    if (code != EXIT_CODE_OK) return code;
    if (fa_plan(&a->q.t, &a->k.t, &a->v.t, &a->options, &out.t, &lse.t, &plan) != FA_OK) code = fail_library();
    if (code == EXIT_CODE_OK && !s->quiet) print_inputs(a, &plan);
    if (code == EXIT_CODE_OK)
        code = s->count ? compute_and_count(s, a, &out, &lse, &seconds, &work)
                        : compute(a, &out, &lse, s->repeat.value, &seconds);
    if (code == EXIT_CODE_OK && !s->quiet) print_time(a, seconds, s->repeat.value);
    if (code == EXIT_CODE_OK && s->count) print_work(&work);
    if (code == EXIT_CODE_OK) code = write_outputs(s, a, &out, &lse, &plan);
    if (code == EXIT_CODE_OK && picture->picture != NULL) code = picture_draw(picture, a, source, s->quiet);
    tensor_free(&out);
    tensor_free(&lse);
    return code;
}

int command_run(int argc, char **argv) {
    run_settings settings = {.repeat = {.value = 1}};
    score_settings scores = {0};
    tensor_settings tensors = {0};
    layout_settings layout = {0};
    picture_settings picture = {0};
    const option_group groups[] = {
        {"Output", output_options, sizeof output_options / sizeof output_options[0], &settings},
        {"Input", layout_options, layout_option_count, &layout},
        {"Masks and scores", score_options, score_option_count, &scores},
        {"Tensors (FILE, FILE:NAME, or :NAME in the input file)", tensor_options, tensor_option_count, &tensors},
        {"Execution", execution_options, sizeof execution_options / sizeof execution_options[0], &settings},
        {"Threads", parallel_options, parallel_option_count, &settings.parallel},
        {"Picture", picture_options, picture_option_count, &picture},
    };
    const command_line line = {
        .name = "run",
        .usage = "Q K V -o OUT [OPTION ...]\nFILE.safetensors -o OUT [OPTION ...]",
        .description =
            "Computes attention on tensors in .npy or .safetensors files: float32, float16 or bfloat16, all the "
            "same, [batch, seqlen, heads, head_dim]. Three dimensions are one batch entry, [seqlen, heads, head_dim], "
            "or with --cu-seqlens-q / -k packed sequences, [total, heads, head_dim]; two dimensions are one head, "
            "[seqlen, head_dim]. k and v may have fewer heads than q (GQA). The output has q's number of dimensions. "
            "Inputs are mapped, not read.",
        .examples = "  flashattn run q.npy k.npy v.npy -o out.npy --causal\n"
                    "  flashattn run q.npy k.npy v.npy -o out.npy --lse lse.npy --window-left 1023 --causal\n"
                    "  flashattn run layer.safetensors -o out.safetensors --q h0.q --k h0.k --v h0.v\n"
                    "  flashattn run layer.safetensors -o out.npy --bias :bias --alibi-slopes slopes.npy\n"
                    "  flashattn run kv.safetensors -o out.npy --block-table :table --seqused-k :lengths\n"
                    "  flashattn run layer.safetensors --picture head.png --head 3 --labels tokens.txt\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof groups[0],
        .max_arguments = 3,
    };
    const char *arguments[3];
    size_t count = 0;
    int code = EXIT_CODE_OK;
    if (!options_parse(&line, argc, argv, arguments, &count, &code)) return code;
    if (count == 0) return fail_usage("no input file is given");
    if (settings.out == NULL && settings.lse == NULL && picture.picture == NULL)
        return fail_usage("none of --output, --lse and --picture is given, so there would be no result");
    code = picture_check(&picture);
    if (code != EXIT_CODE_OK) return code;

    attention a = {.file_ndim = 0};
    code = attention_set_options(&a, &scores, &tensors, count == 1 ? arguments[0] : NULL);
    if (code == EXIT_CODE_OK) code = attention_open(&a, arguments, count, &layout);
    if (code == EXIT_CODE_OK) code = run_attention(&settings, &a, &picture, arguments[0]);
    attention_close(&a);
    return code;
}
