/* SPDX-License-Identifier: Apache-2.0 */
/* flashattn info: what this build and this machine can do. Everything is asked of the library, not listed
 * here: kernels, instruction sets, types and head dimensions are those that the library accepts. */
#include "attention.h"
#include "command.h"
#include "json_output.h"
#include "machine.h"
#include "message.h"
#include "terminal.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct info_settings {
    const char *json;
} info_settings;

static const option info_options[] = {
    {.name = "json",
     .kind = OPTION_TEXT,
     .offset = offsetof(info_settings, json),
     .placeholder = "FILE",
     .help = "write the same as JSON; -: to standard output, instead of the text"},
};

/*
 * Whether the CPU kernel would take a call with these properties. It takes all that any kernel takes, and the default one
 * depends on FLASHATTN_MACHINE.
 */
static bool plan_accepts(fa_dtype dtype, int64_t head_dim) {
    int64_t shape[4] = {1, 1, 1, head_dim};
    fa_options options = {.size = sizeof options, .kernel = FA_KERNEL_CPU};
    fa_tensor t = {.device = {FA_DEVICE_CPU, 0}, .ndim = 4, .dtype = dtype, .shape = shape};
    fa_plan_info plan = {.size = sizeof plan};
    return fa_plan(&t, &t, &t, &options, &t, NULL, &plan) == FA_OK;
}

static int64_t largest_head_dim(void) {
    const fa_dtype float32 = FA_FLOAT32;
    int64_t largest = 0;
    for (int64_t d = 1; d <= 2048 && plan_accepts(float32, d); d++) largest = d;
    return largest;
}

/* Where the number of threads comes from. */
static const char *threads_reason(int threads, int cpus) {
    const char *variable = getenv("FLASHATTN_NUM_THREADS");
    if (variable != NULL && variable[0] != '\0' && atoi(variable) == threads) return "FLASHATTN_NUM_THREADS";
    return threads < cpus ? "the cgroup's CPU quota" : "the affinity mask";
}

/* Why the last thing asked for is not supported, without the name of the argument, which stands beside it. */
static const char *reason(void) {
    const char *colon = strstr(fa_last_error(), ": ");
    return colon != NULL ? colon + 2 : fa_last_error();
}

static void print_support(const char *name, bool supported) {
    (void)printf("  %-13s%s%s%s%s%s\n", name, style(stdout, supported ? STYLE_GOOD : STYLE_FAINT),
                 supported ? "yes" : "no", style(stdout, STYLE_NONE), supported ? "" : "   ",
                 supported ? "" : reason());
}

static void print_heading(const char *text) {
    (void)printf("\n%s%s%s\n", style(stdout, STYLE_BOLD), text, style(stdout, STYLE_NONE));
}

/* "causal, window-left, ...", of both tables. */
static void print_option_names(void) {
    char names[1024] = "";
    size_t used = 0;
    for (size_t i = 0; i < score_option_count + tensor_option_count && used < sizeof names; i++) {
        const option *o = i < score_option_count ? &score_options[i] : &tensor_options[i - score_option_count];
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", o->name);
    }
    print_wrapped(names, 2, 0);
}

/* The line about GPU `number`; -1: about the emulated one. False, with the reason, if there is none. */
static bool gpu_text(int32_t number, char *text, size_t size) {
    fa_device device = {number < 0 ? FA_DEVICE_CPU : FA_DEVICE_CUDA, number < 0 ? 0 : number};
    return fa_machine_text(device, text, size) == FA_OK;
}

static void print_gpus(void) {
    char text[192];
    int32_t count = 0;
    while (gpu_text(count, text, sizeof text)) {
        (void)printf("  gpu        %s\n", text);
        count++;
    }
    if (count == 0) (void)printf("  gpu        none   %s\n", reason());
    if (gpu_text(-1, text, sizeof text)) (void)printf("  emulated   %s\n", text);
}

static void print_text(void) {
    char machine[256];
    machine_name(machine, sizeof machine);
    int threads = fa_default_num_threads(), cpus = machine_cpus();
    (void)printf("%sflashattn %s%s\n", style(stdout, STYLE_BOLD), fa_version_text(), style(stdout, STYLE_NONE));
    print_heading("Machine");
    (void)printf("  processor  %s\n", machine);
    (void)printf("  threads    %d by default, by %s (%d CPU%s may be used)\n", threads, threads_reason(threads, cpus),
                 cpus, cpus == 1 ? "" : "s");
    print_gpus();
    print_heading("Kernels");
    for (int i = 1; kernel_choice(i) != NULL; i++)
        print_support(kernel_choice(i), fa_kernel_supported((fa_kernel)i) == FA_OK);
    print_heading("Instruction sets of the cpu kernel");
    for (int i = 1; isa_choice(i) != NULL; i++) print_support(isa_choice(i), fa_isa_supported((fa_isa)i) == FA_OK);
    print_heading("Tensors of the cpu kernel");
    (void)printf("  types      ");
    const char *separator = "";
    for (int i = 0; dtype_choice(i) != NULL; i++) {
        if (!plan_accepts(dtype_of_element((fa_element)i), 1)) continue;
        (void)printf("%s%s", separator, dtype_choice(i));
        separator = ", ";
    }
    (void)printf("\n  head_dim   1 .. %lld, head_dim_v likewise; heads a multiple of heads_kv\n",
                 (long long)largest_head_dim());
    print_heading("Options of a call (flashattn run --help)");
    print_option_names();
}

static json_t *support_json(bool supported) {
    json_t *entry = json_object();
    (void)json_object_set_new(entry, "supported", json_boolean(supported));
    if (!supported) (void)json_object_set_new(entry, "reason", json_string(reason()));
    return entry;
}

static json_t *info_json(void) {
    json_t *root = json_object(), *kernels = json_object(), *isas = json_object(), *types = json_array(),
           *options = json_array(), *gpus = json_array();
    char machine[256], gpu[192];
    machine_name(machine, sizeof machine);
    for (int32_t i = 0; gpu_text(i, gpu, sizeof gpu); i++) (void)json_array_append_new(gpus, json_string(gpu));
    for (int i = 1; kernel_choice(i) != NULL; i++)
        (void)json_object_set_new(kernels, kernel_choice(i), support_json(fa_kernel_supported((fa_kernel)i) == FA_OK));
    for (int i = 1; isa_choice(i) != NULL; i++)
        (void)json_object_set_new(isas, isa_choice(i), support_json(fa_isa_supported((fa_isa)i) == FA_OK));
    for (int i = 0; dtype_choice(i) != NULL; i++)
        if (plan_accepts(dtype_of_element((fa_element)i), 1))
            (void)json_array_append_new(types, json_string(dtype_choice(i)));
    for (size_t i = 0; i < score_option_count; i++)
        (void)json_array_append_new(options, json_string(score_options[i].name));
    for (size_t i = 0; i < tensor_option_count; i++)
        (void)json_array_append_new(options, json_string(tensor_options[i].name));
    (void)json_object_set_new(root, "version", json_string(fa_version_text()));
    (void)json_object_set_new(root, "processor", json_string(machine));
    (void)json_object_set_new(root, "default_threads", json_integer(fa_default_num_threads()));
    (void)json_object_set_new(root, "cpus", json_integer(machine_cpus()));
    (void)json_object_set_new(root, "gpus", gpus);
    if (gpu_text(-1, gpu, sizeof gpu)) (void)json_object_set_new(root, "emulated_gpu", json_string(gpu));
    (void)json_object_set_new(root, "kernels", kernels);
    (void)json_object_set_new(root, "instruction_sets", isas);
    (void)json_object_set_new(root, "dtypes", types);
    (void)json_object_set_new(root, "largest_head_dim", json_integer(largest_head_dim()));
    (void)json_object_set_new(root, "options", options);
    return root;
}

int command_info(int argc, char **argv) {
    info_settings settings = {NULL};
    const option_group groups[] = {{"Options", info_options, 1, &settings}};
    const command_line line = {
        .name = "info",
        .usage = "[--json FILE]",
        .description = "Prints the version, which kernels and instruction sets can run here (and why the others "
                       "cannot), how many threads are used, and which tensors and options are accepted.",
        .examples = "  flashattn info\n"
                    "  flashattn info --json - | jq .instruction_sets\n",
        .groups = groups,
        .group_count = 1,
    };
    size_t count = 0;
    int code = EXIT_CODE_OK;
    if (!options_parse(&line, argc, argv, NULL, &count, &code)) return code;
    if (!json_on_stdout(settings.json)) print_text();
    return settings.json != NULL ? json_write(settings.json, info_json()) : EXIT_CODE_OK;
}
