/* SPDX-License-Identifier: Apache-2.0 */
/* flashattn count: what GPU kernels move and compute, counted by the emulator that runs them. */
#include "attention.h"
#include "clock.h"
#include "command.h"
#include "json_output.h"
#include "message.h"
#include "terminal.h"
#include "text_table.h"
#include "work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct count_settings {
    uint32_t kernels; /* bits of fa_kernel */
    option_integer batch, heads, heads_kv;
    option_integer_list seqlen, head_dim;
    int dtype; /* 0: bfloat16, 1: float16 */
    bool markdown;
    const char *json;
} count_settings;

/* One kernel on one shape. */
typedef struct count_case {
    fa_kernel kernel;
    int64_t seqlen, head_dim;
    fa_machine_work work;
} count_case;

typedef struct count_list {
    const count_settings *settings;
    const score_settings *scores;
    count_case *cases;
    size_t count;
} count_list;

#define COUNT(member) offsetof(count_settings, member)

static const char *count_dtype_choice(int index) {
    static const char *const names[] = {"bfloat16", "float16"};
    return index < 2 ? names[index] : NULL;
}

static const option shape_options[] = {
    {.name = "seqlen",
     .kind = OPTION_INTEGER_LIST,
     .offset = COUNT(seqlen),
     .placeholder = "LIST",
     .min = 1,
     .max = 1 << 20,
     .help = "queries and keys alike; default 512,1024"},
    {.name = "head-dim",
     .kind = OPTION_INTEGER_LIST,
     .offset = COUNT(head_dim),
     .placeholder = "LIST",
     .min = 1,
     .max = 256,
     .help = "default 64,128"},
    {.name = "batch",
     .kind = OPTION_INTEGER,
     .offset = COUNT(batch),
     .placeholder = "N",
     .min = 1,
     .max = 4096,
     .help = "default 1"},
    {.name = "heads",
     .kind = OPTION_INTEGER,
     .offset = COUNT(heads),
     .placeholder = "N",
     .min = 1,
     .max = 4096,
     .help = "default 1"},
    {.name = "heads-kv",
     .kind = OPTION_INTEGER,
     .offset = COUNT(heads_kv),
     .placeholder = "N",
     .min = 1,
     .max = 4096,
     .help = "default as --heads"},
    {.name = "dtype",
     .kind = OPTION_CHOICE,
     .offset = COUNT(dtype),
     .placeholder = "TYPE",
     .choices = count_dtype_choice,
     .help = "bfloat16 (the default) or float16"},
};

static const option count_options[] = {
    {.name = "kernel",
     .kind = OPTION_CHOICE_LIST,
     .offset = COUNT(kernels),
     .placeholder = "LIST",
     .choices = kernel_choice,
     .help = "some of standard,v1,v2,v3,v4; default: all that run on the emulated GPU"},
    {.name = "markdown", .kind = OPTION_FLAG, .offset = COUNT(markdown), .help = "print the short table as Markdown"},
    {.name = "json",
     .kind = OPTION_TEXT,
     .offset = COUNT(json),
     .placeholder = "FILE",
     .help = "write everything as JSON; -: to standard output, instead of the tables"},
};

/* ---- Cases ---- */

static bool is_gpu_kernel(int kernel) { return kernel == FA_KERNEL_STANDARD || kernel >= FA_KERNEL_V1; }

/* Kernels that were asked for must be able to run; without a wish, those that can. */
static int choose_kernels(uint32_t asked, uint32_t *kernels) {
    *kernels = 0;
    for (int i = 1; kernel_choice(i) != NULL; i++) {
        if (asked != 0 && asked != OPTION_CHOICES_ALL) {
            if ((asked >> i & 1) == 0) continue;
            if (!is_gpu_kernel(i))
                return fail_usage("--kernel %s: runs on the CPU, where nothing is counted", kernel_choice(i));
            if (fa_kernel_supported((fa_kernel)i) != FA_OK) return fail_library();
        } else if (!is_gpu_kernel(i) || fa_kernel_supported((fa_kernel)i) != FA_OK) {
            continue;
        }
        *kernels |= UINT32_C(1) << i;
    }
    return asked & 1u && asked != OPTION_CHOICES_ALL ? fail_usage("--kernel auto: give kernels by name") : EXIT_CODE_OK;
}

static int make_list(count_list *list, uint32_t kernels) {
    const count_settings *s = list->settings;
    for (size_t d = 0; d < s->head_dim.count; d++)
        for (size_t n = 0; n < s->seqlen.count; n++)
            for (int kernel = 1; kernel_choice(kernel) != NULL; kernel++) {
                if ((kernels >> kernel & 1) == 0) continue;
                count_case *cases = realloc(list->cases, (list->count + 1) * sizeof *cases);
                if (cases == NULL) return fail_memory("the list of cases");
                list->cases = cases;
                list->cases[list->count++] = (count_case){
                    .kernel = (fa_kernel)kernel, .seqlen = s->seqlen.values[n], .head_dim = s->head_dim.values[d]};
            }
    return EXIT_CODE_OK;
}

/* ---- Counting ---- */

static int make_tensors(const count_list *list, const count_case *c, attention *a, tensor *out, tensor *lse) {
    static const tensor_settings no_tensors = {.bias = NULL};
    const count_settings *s = list->settings;
    const fa_dtype float32 = FA_FLOAT32;
    fa_dtype dtype = dtype_of_element(s->dtype == 0 ? FA_ELEMENT_BFLOAT16 : FA_ELEMENT_FLOAT16);
    int64_t q[4] = {s->batch.value, c->seqlen, s->heads.value, c->head_dim};
    int64_t k[4] = {s->batch.value, c->seqlen, s->heads_kv.given ? s->heads_kv.value : s->heads.value, c->head_dim};
    int code = attention_set_options(a, list->scores, &no_tensors, NULL);
    if (code != EXIT_CODE_OK) return code;
    a->options.kernel = c->kernel;
    if (!tensor_allocate(&a->q, dtype, 4, q) || !tensor_allocate(&a->k, dtype, 4, k) ||
        !tensor_allocate(&a->v, dtype, 4, k))
        return fail_memory("q, k and v");
    tensor_fill_normal(&a->q, 1);
    tensor_fill_normal(&a->k, 2);
    tensor_fill_normal(&a->v, 3);
    return attention_allocate(a, dtype, float32, out, lse);
}

static int count_one(const count_list *list, count_case *c) {
    attention a = {.file_ndim = 4};
    tensor out = {.memory = NULL}, lse = {.memory = NULL};
    fa_machine_work before;
    int code = make_tensors(list, c, &a, &out, &lse);
    if (code == EXIT_CODE_OK) code = work_read(&before);
    if (code == EXIT_CODE_OK && fa_forward(&a.q.t, &a.k.t, &a.v.t, &a.options, &out.t, &lse.t) != FA_OK)
        code = fail_library();
    if (code == EXIT_CODE_OK) code = work_read(&c->work);
    if (code == EXIT_CODE_OK) work_subtract(&c->work, &before, 1);
    tensor_free(&out);
    tensor_free(&lse);
    attention_close(&a);
    return code;
}

static int count_all(count_list *list) {
    progress bar;
    int code = EXIT_CODE_OK;
    progress_begin(&bar, (double)list->count);
    for (size_t i = 0; i < list->count && code == EXIT_CODE_OK; i++) {
        char label[96];
        const count_case *c = &list->cases[i];
        (void)snprintf(label, sizeof label, "%s  seqlen %" PRId64 "  head_dim %" PRId64, fa_kernel_name(c->kernel),
                       c->seqlen, c->head_dim);
        progress_update(&bar, (double)i, label);
        code = count_one(list, &list->cases[i]);
    }
    progress_end(&bar);
    return code;
}

/* ---- Reports ---- */

static void describe(const count_list *list, char *text, size_t size) {
    const count_settings *s = list->settings;
    static const tensor_settings no_tensors = {.bias = NULL};
    attention a = {.file_ndim = 4};
    char rules[256];
    (void)attention_set_options(&a, list->scores, &no_tensors, NULL);
    attention_describe(&a, rules, sizeof rules);
    (void)snprintf(text, size, "%s, batch %" PRId64 ", heads %" PRId64 ", %s", count_dtype_choice(s->dtype),
                   s->batch.value, s->heads.value, rules);
}

/* A table for each shape: quantities down, kernels across. */
static void print_tables(const count_list *list, size_t kernels) {
    const fa_device cpu = {FA_DEVICE_CPU, 0};
    char machine[192] = "", text[512];
    (void)fa_machine_text(cpu, machine, sizeof machine);
    describe(list, text, sizeof text);
    (void)printf("%s\n%s\n", machine, text);
    for (size_t first = 0; first < list->count; first += kernels) {
        text_table table;
        char alignment[TEXT_TABLE_COLUMNS] = "l";
        (void)printf("\nseqlen %" PRId64 ", head_dim %" PRId64 "\n\n", list->cases[first].seqlen,
                     list->cases[first].head_dim);
        for (size_t k = 0; k < kernels; k++) strcat(alignment, "r");
        text_table_begin(&table, alignment);
        text_table_row *row = text_table_add(&table);
        size_t column = 0;
        text_table_cell(row, &column, "%s", "");
        for (size_t k = 0; k < kernels; k++)
            text_table_cell(row, &column, "%s", fa_kernel_name(list->cases[first + k].kernel));
        for (int i = 0; work_name(i) != NULL; i++) {
            row = text_table_add(&table);
            column = 0;
            text_table_cell(row, &column, "%s", work_name(i));
            for (size_t k = 0; k < kernels; k++) {
                work_text(&list->cases[first + k].work, i, text, 40);
                text_table_cell(row, &column, "%s", text);
            }
        }
        text_table_print(&table, stdout);
        text_table_end(&table);
    }
}

/* The papers' measure: bytes of global memory, for each kernel. */
static void print_markdown(const count_list *list, size_t kernels) {
    (void)printf(
        "| seqlen | head_dim | kernel | read | written | together | against %s |\n| --- | --- | --- | --- | --- | "
        "--- | --- |\n",
        fa_kernel_name(list->cases[0].kernel));
    for (size_t i = 0; i < list->count; i++) {
        const count_case *c = &list->cases[i], *first = &list->cases[i / kernels * kernels];
        double all = (double)(c->work.global_bytes_read + c->work.global_bytes_written);
        double of_first = (double)(first->work.global_bytes_read + first->work.global_bytes_written);
        (void)printf("| %" PRId64 " | %" PRId64 " | %s | %.2f MB | %.2f MB | %.2f MB | %.2f |\n", c->seqlen,
                     c->head_dim, fa_kernel_name(c->kernel), (double)c->work.global_bytes_read * 1e-6,
                     (double)c->work.global_bytes_written * 1e-6, all * 1e-6, of_first > 0 ? all / of_first : 0);
    }
}

static json_t *list_json(const count_list *list) {
    const fa_device cpu = {FA_DEVICE_CPU, 0};
    char machine[192] = "", text[512];
    json_t *root = json_object(), *results = json_array();
    (void)fa_machine_text(cpu, machine, sizeof machine);
    describe(list, text, sizeof text);
    for (size_t i = 0; i < list->count; i++) {
        const count_case *c = &list->cases[i];
        json_t *entry = json_object();
        (void)json_object_set_new(entry, "kernel", json_string(fa_kernel_name(c->kernel)));
        (void)json_object_set_new(entry, "seqlen", json_integer(c->seqlen));
        (void)json_object_set_new(entry, "head_dim", json_integer(c->head_dim));
        (void)json_object_set_new(entry, "work", work_json(&c->work));
        (void)json_array_append_new(results, entry);
    }
    (void)json_object_set_new(root, "version", json_string(fa_version_text()));
    (void)json_object_set_new(root, "machine", json_string(machine));
    (void)json_object_set_new(root, "call", json_string(text));
    (void)json_object_set_new(root, "results", results);
    return root;
}

/* ---- The command ---- */

int command_count(int argc, char **argv) {
    count_settings settings = {.batch = {.value = 1}, .heads = {.value = 1}};
    score_settings scores = {.causal = false};
    const option_group groups[] = {
        {"Shapes (lists: 512,1024; every combination runs)", shape_options,
         sizeof shape_options / sizeof shape_options[0], &settings},
        {"Masks and scores", score_options, score_option_count, &scores},
        {"What is counted", count_options, sizeof count_options / sizeof count_options[0], &settings},
    };
    const command_line line = {
        .name = "count",
        .usage = "[OPTION ...]",
        .description =
            "Runs GPU kernels in the emulator, on random numbers, and counts what they move and compute: bytes of "
            "global and "
            "shared memory, operations of the tensor cores, exponentials, shuffles, barriers. No GPU is needed. The "
            "environment variable FLASHATTN_MACHINE says which one is emulated; without it, an H100. Bytes of global "
            "memory "
            "are those that threads ask for: on a GPU, caches serve some of them.",
        .examples =
            "  flashattn count\n"
            "  flashattn count --kernel standard,v1,v2 --seqlen 256,512,1024 --head-dim 64\n"
            "  flashattn count --seqlen 1024 --causal --json - | jq '.results[] | [.kernel, .work.exp2_calls]'\n"
            "  FLASHATTN_MACHINE=emulated-a100 flashattn count --markdown\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof groups[0],
    };
    size_t count = 0, per_shape = 0;
    int code = EXIT_CODE_OK;
    uint32_t kernels = 0;
    if (!options_parse(&line, argc, argv, NULL, &count, &code)) return code;
    (void)setenv("FLASHATTN_MACHINE", "emulated-h100", 0);
    if (settings.seqlen.count == 0) settings.seqlen = (option_integer_list){.values = {512, 1024}, .count = 2};
    if (settings.head_dim.count == 0) settings.head_dim = (option_integer_list){.values = {64, 128}, .count = 2};
    count_list list = {.settings = &settings, .scores = &scores};
    code = choose_kernels(settings.kernels, &kernels);
    if (code == EXIT_CODE_OK) code = make_list(&list, kernels);
    if (code == EXIT_CODE_OK) code = count_all(&list);
    if (code == EXIT_CODE_OK) {
        for (; kernels != 0; kernels &= kernels - 1) per_shape++;
        if (settings.markdown)
            print_markdown(&list, per_shape);
        else if (!json_on_stdout(settings.json))
            print_tables(&list, per_shape);
        if (settings.json != NULL) code = json_write(settings.json, list_json(&list));
    }
    free(list.cases);
    return code;
}
