/* SPDX-License-Identifier: Apache-2.0 */
/* flashattn bench: how fast is the cpu kernel here, and how much of the machine is that? */
#include "bench_case.h"
#include "bench_ceilings.h"
#include "bench_gpu.h"
#include "bench_report.h"
#include "canvas.h"
#include "clock.h"
#include "command.h"
#include "machine.h"
#include "message.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench_settings {
    option_integer_list batch, heads, heads_kv, seqlen, seqlen_q, seqlen_k, head_dim;
    uint32_t dtypes; /* bits of fa_element */
    uint32_t isas;   /* bits of fa_isa */
    bool backward;
    int device;       /* index of device_choice */
    uint32_t kernels; /* bits of fa_kernel */
    option_integer threads;
    option_number time_budget;
    bool ceilings;
    const char *json;
    const char *plot;
} bench_settings;

#define BENCH(member) offsetof(bench_settings, member)
#define SIZES_OPTION(option_name, member, text)                                                                     \
    {                                                                                                               \
        .name = option_name, .kind = OPTION_INTEGER_LIST, .offset = BENCH(member), .placeholder = "LIST", .min = 1, \
        .max = INT64_C(1) << 30, .help = text                                                                       \
    }

static const char *bench_dtype_choice(int index) {
    return index <= (int)FA_ELEMENT_BFLOAT16 ? dtype_choice(index) : NULL;
}

static const char *device_choice(int index) {
    static const char *const names[] = {"cpu", "cuda"};
    return index < 2 ? names[index] : NULL;
}

static const option shape_options[] = {
    SIZES_OPTION("batch", batch, "default 1"),
    SIZES_OPTION("heads", heads, "default 8"),
    SIZES_OPTION("heads-kv", heads_kv, "default as --heads"),
    SIZES_OPTION("seqlen", seqlen, "queries and keys alike; default 512,1024,2048"),
    SIZES_OPTION("seqlen-q", seqlen_q, "queries, with --seqlen-k: every one with every number of keys"),
    SIZES_OPTION("seqlen-k", seqlen_k, "keys"),
    SIZES_OPTION("head-dim", head_dim, "default 128"),
    {.name = "dtype",
     .kind = OPTION_CHOICE_LIST,
     .offset = BENCH(dtypes),
     .placeholder = "LIST",
     .choices = bench_dtype_choice,
     .help = "some of float32,float16,bfloat16, or all; default float32"},
};

static const option bench_options[] = {
    {.name = "backward",
     .kind = OPTION_FLAG,
     .offset = BENCH(backward),
     .help = "measure the gradients of q, k and v in place of the output"},
    {.name = "device",
     .kind = OPTION_CHOICE,
     .offset = BENCH(device),
     .placeholder = "NAME",
     .choices = device_choice,
     .help =
         "cpu (the default), or cuda: the kernels of the first GPU, with 16384 tokens and 2048 columns unless sizes "
         "are given"},
    {.name = "kernel",
     .kind = OPTION_CHOICE_LIST,
     .offset = BENCH(kernels),
     .placeholder = "LIST",
     .choices = kernel_choice,
     .help = "with --device cuda: some of standard,v1,v2,v3,v4; default: all that can run the shapes there"},
    {.name = "isa",
     .kind = OPTION_CHOICE_LIST,
     .offset = BENCH(isas),
     .placeholder = "LIST",
     .choices = isa_choice,
     .help =
         "some of auto,portable,neon,avx2,avx512,avx512_bf16,amx,neon_bf16, or all (that can run here); default auto"},
    {.name = "threads",
     .kind = OPTION_INTEGER,
     .offset = BENCH(threads),
     .placeholder = "N",
     .min = 0,
     .max = 4096,
     .help = "number of threads; 0: automatic (the default)"},
    {.name = "time-budget",
     .kind = OPTION_NUMBER,
     .offset = BENCH(time_budget),
     .placeholder = "SECONDS",
     .help = "for all measurements together; default 20. Each shape runs at least once"},
    {.name = "ceilings",
     .kind = OPTION_FLAG,
     .offset = BENCH(ceilings),
     .help = "no kernels: what the machine can do, in arithmetic of each instruction set and in memory traffic"},
    {.name = "json",
     .kind = OPTION_TEXT,
     .offset = BENCH(json),
     .placeholder = "FILE",
     .help = "write the results as JSON; -: to standard output, instead of the table"},
    {.name = "plot",
     .kind = OPTION_TEXT,
     .offset = BENCH(plot),
     .placeholder = "FILE",
     .help = "draw GFLOP/s over the sequence length; .png, .svg or .pdf"},
};

/* ---- Cases ---- */

static bool add_case(bench_list *list, bench_case c) {
    bench_case *cases = realloc(list->cases, (list->count + 1) * sizeof *cases);
    if (cases == NULL) return false;
    list->cases = cases;
    cases[list->count++] = c;
    return true;
}

/* What runs if no size is given: prefill at two head dimensions, and one decoding step with GQA. */
static bool add_default_shapes(bench_list *list, bench_case c) {
    static const struct {
        int64_t heads, heads_kv, seqlen_q, seqlen_k, head_dim;
    } shapes[] = {
        {8, 8, 512, 512, 64},    {8, 8, 1024, 1024, 64},  {8, 8, 2048, 2048, 64}, {8, 8, 512, 512, 128},
        {8, 8, 1024, 1024, 128}, {8, 8, 2048, 2048, 128}, {32, 8, 1, 8192, 128},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        c.batch = 1;
        c.heads = shapes[i].heads;
        c.heads_kv = shapes[i].heads_kv;
        c.seqlen_q = shapes[i].seqlen_q;
        c.seqlen_k = shapes[i].seqlen_k;
        c.head_dim = shapes[i].head_dim;
        if (!add_case(list, c)) return false;
    }
    return true;
}

static void set_default(option_integer_list *list, int64_t value) {
    if (list->count == 0) *list = (option_integer_list){.values = {value}, .count = 1};
}

/* Every combination; seqlen varies fastest, so that the lines of a plot lie together. */
static bool add_given_shapes(bench_list *list, const bench_settings *settings, bench_case c) {
    bench_settings s = *settings;
    bool square = s.seqlen_q.count == 0;
    if (square && s.seqlen.count == 0) s.seqlen = (option_integer_list){.values = {512, 1024, 2048}, .count = 3};
    if (square) s.seqlen_k = s.seqlen;
    set_default(&s.seqlen_q, 0); /* square: as seqlen_k */
    set_default(&s.batch, 1);
    set_default(&s.heads, 8);
    set_default(&s.heads_kv, 0); /* as heads */
    set_default(&s.head_dim, 128);
    const option_integer_list *const lists[] = {&s.head_dim, &s.batch, &s.heads, &s.heads_kv, &s.seqlen_q, &s.seqlen_k};
    enum { LISTS = sizeof lists / sizeof lists[0] };
    size_t at[LISTS] = {0};
    for (;;) {
        int64_t value[LISTS];
        for (size_t i = 0; i < LISTS; i++) value[i] = lists[i]->values[at[i]];
        c.head_dim = value[0];
        c.batch = value[1];
        c.heads = value[2];
        c.heads_kv = value[3] == 0 ? c.heads : value[3];
        c.seqlen_k = value[5];
        c.seqlen_q = square ? c.seqlen_k : value[4];
        if (!add_case(list, c)) return false;
        size_t i = LISTS;
        while (i > 0 && ++at[i - 1] == lists[i - 1]->count) at[--i] = 0;
        if (i == 0) return true;
    }
}

static bool any_shape_given(const bench_settings *s) {
    const option_integer_list *const lists[] = {&s->batch,    &s->heads,    &s->heads_kv, &s->seqlen,
                                                &s->seqlen_q, &s->seqlen_k, &s->head_dim};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (lists[i]->count > 0) return true;
    return false;
}

static bool isa_chosen(const bench_settings *s, int dtype, int isa) {
    if (s->isas == 0) return isa == FA_ISA_AUTO;
    if (s->isas != OPTION_CHOICES_ALL) return (s->isas >> isa & 1) != 0;
    if (!isa_serves((fa_isa)isa, (fa_element)dtype)) return false; /* the same as avx512 */
    return isa != FA_ISA_AUTO && fa_isa_supported((fa_isa)isa) == FA_OK;
}

static int make_list(bench_list *list, const bench_settings *s, const score_settings *scores) {
    uint32_t dtypes = s->dtypes == 0 ? UINT32_C(1) << FA_ELEMENT_FLOAT32 : s->dtypes;
    for (int dtype = 0; bench_dtype_choice(dtype) != NULL; dtype++) {
        for (int isa = 0; isa_choice(isa) != NULL; isa++) {
            if ((dtypes >> dtype & 1) == 0 || !isa_chosen(s, dtype, isa)) continue;
            bench_case c = {.dtype = (fa_element)dtype, .isa = (fa_isa)isa, .backward = s->backward};
            if (!(any_shape_given(s) ? add_given_shapes(list, s, c) : add_default_shapes(list, c)))
                return fail_memory("the list of cases");
        }
    }
    attention a = {.file_ndim = 4};
    static const tensor_settings no_tensors = {.bias = NULL};
    int code = attention_set_options(&a, scores, &no_tensors, NULL);
    if (code != EXIT_CODE_OK) return code;
    char rules[sizeof list->rules - 16];
    attention_describe(&a, rules, sizeof rules);
    (void)snprintf(list->rules, sizeof list->rules, "%s%s", s->backward ? "backward, " : "", rules);
    for (size_t i = 0; i < list->count; i++) { /* all are planned before the first is measured */
        code = bench_case_plan(&list->cases[i], scores, list->threads);
        if (code != EXIT_CODE_OK) return code;
    }
    return EXIT_CODE_OK;
}

/* ---- The command ---- */

static void make_label(const bench_list *list, const bench_case *c, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < (int)BENCH_PROPERTIES && used < size; i++) {
        char value[32];
        if (bench_property_role(list, (bench_property)i) != BENCH_VARIES) continue;
        bench_property_text(c, (bench_property)i, value, sizeof value);
        used +=
            (size_t)snprintf(text + used, size - used, "%s %s  ", bench_property_title(list, (bench_property)i), value);
    }
}

/* The time that is left is shared evenly among the cases that are left. */
static int measure_all(bench_list *list, const score_settings *scores, double budget) {
    progress bar;
    double begin = now_seconds();
    int code = EXIT_CODE_OK;
    progress_begin(&bar, (double)list->count);
    for (size_t i = 0; i < list->count && code == EXIT_CODE_OK; i++) {
        char label[128];
        double left = budget - (now_seconds() - begin);
        make_label(list, &list->cases[i], label, sizeof label);
        bench_clock time = {
            .seconds = left / (double)(list->count - i), .bar = &bar, .done = (double)i, .label = label};
        if (!(time.seconds > 0.01)) time.seconds = 0.01;
        code = bench_case_measure(&list->cases[i], scores, &time);
    }
    progress_end(&bar);
    return code;
}

static int check_settings_agree(const bench_settings *s) {
    if (s->seqlen.count > 0 && (s->seqlen_q.count > 0 || s->seqlen_k.count > 0))
        return fail_usage("--seqlen is queries and keys alike, so it excludes --seqlen-q and --seqlen-k");
    if ((s->seqlen_q.count > 0) != (s->seqlen_k.count > 0))
        return fail_usage("--seqlen-q and --seqlen-k must be given together, or --seqlen for both");
    if (s->ceilings && (s->device == 1 || any_shape_given(s) || s->dtypes != 0 || s->isas != 0 || s->plot != NULL))
        return fail_usage(
            "--ceilings measures the CPU without a kernel: it goes only with --threads, --time-budget and --json");
    if (!(s->time_budget.value > 0) || s->time_budget.value > 1e6)
        return fail_usage("--time-budget = %g: must be above 0 and at most 1e6 seconds", s->time_budget.value);
    return s->plot != NULL ? canvas_check_path(s->plot) : EXIT_CODE_OK;
}

static int run_on_gpu(const bench_settings *s, const score_settings *scores) {
    if (s->plot != NULL)
        return fail_usage("--plot: draws measurements of the CPU alone; use --json with --device cuda");
    if (s->isas != 0) return fail_usage("--isa: is for the CPU, and --device is cuda");
    if (s->threads.value != 0) return fail_usage("--threads: is for the CPU, and --device is cuda");
    if (s->seqlen_q.count > 0) return fail_usage("--seqlen-q, --seqlen-k: with --device cuda give --seqlen");
    const bench_gpu_settings gpu = {.batch = s->batch,
                                    .heads = s->heads,
                                    .heads_kv = s->heads_kv,
                                    .seqlen = s->seqlen,
                                    .head_dim = s->head_dim,
                                    .dtypes = s->dtypes,
                                    .kernels = s->kernels,
                                    .backward = s->backward,
                                    .seconds = s->time_budget.value,
                                    .json = s->json};
    return bench_gpu(&gpu, scores);
}

int command_bench(int argc, char **argv) {
    bench_settings settings = {.time_budget = {.value = 20}};
    score_settings scores = {.causal = false};
    const option_group groups[] = {
        {"Shapes (lists: 512,1024; every combination runs)", shape_options,
         sizeof shape_options / sizeof shape_options[0], &settings},
        {"Masks and scores", score_options, score_option_count, &scores},
        {"Measurement", bench_options, sizeof bench_options / sizeof bench_options[0], &settings},
    };
    const command_line line = {
        .name = "bench",
        .usage = "[OPTION ...]",
        .description =
            "Measures the cpu kernel on random numbers. GFLOP/s counts 2 * (head_dim + head_dim_v) operations for each "
            "pair of a query and a key that it may see, and 2.5 times that with --backward. The FMA peak is measured "
            "in the same run with the same "
            "instruction set and threads: multiply-adds on registers alone, in turns with the kernel; a kernel that "
            "never waited would reach it, but with amx float32 a sixth and float16 a fifth, since they take so many "
            "bfloat16 products for one. \"of read\" is the share of the speed at which q, k and v can be read from "
            "where "
            "they are, measured in the same turns: the ceiling of decoding. Without sizes, a default set runs.",
        .examples = "  flashattn bench\n"
                    "  flashattn bench --seqlen 512,1024,2048,4096 --head-dim 64,128 --causal\n"
                    "  flashattn bench --backward --dtype float32,bfloat16 --seqlen 1024\n"
                    "  flashattn bench --isa all --dtype all --seqlen 1024 --plot speed.svg\n"
                    "  flashattn bench --seqlen-q 1 --seqlen-k 4096,16384 --heads 32 --heads-kv 8\n"
                    "  flashattn bench --device cuda --kernel v2,v3 --head-dim 128 --causal\n"
                    "  flashattn bench --device cuda --backward --head-dim 128\n"
                    "  flashattn bench --ceilings\n"
                    "  flashattn bench --time-budget 5 --json - | jq '.results[].gflops'\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof groups[0],
    };
    size_t count = 0;
    int code = EXIT_CODE_OK;
    if (!options_parse(&line, argc, argv, NULL, &count, &code)) return code;
    code = check_settings_agree(&settings);
    if (code != EXIT_CODE_OK) return code;
    if (settings.device == 1) return run_on_gpu(&settings, &scores);
    if (settings.kernels != 0)
        return fail_usage("--kernel: is for --device cuda; on the CPU the cpu kernel is measured");

    bench_list list = {.cases = NULL};
    list.threads = settings.threads.value > 0 ? (int)settings.threads.value : fa_default_num_threads();
    list.machine_busy = machine_is_busy(&list.load);
    if (settings.ceilings) return bench_ceilings(list.threads, settings.time_budget.value, settings.json);
    code = make_list(&list, &settings, &scores);
    if (code == EXIT_CODE_OK && settings.plot != NULL) code = bench_report_check_plot(&list);
    if (code == EXIT_CODE_OK) code = measure_all(&list, &scores, settings.time_budget.value);
    if (code == EXIT_CODE_OK) code = bench_report(&list, settings.json, settings.plot);
    free(list.cases);
    return code;
}
