/* SPDX-License-Identifier: Apache-2.0 */
/* Measures and presents ceilings: see bench_ceilings.h. */
#include "bench_ceilings.h"

#include "fma_peak.h"
#include "json_output.h"
#include "machine.h"
#include "memory_speed.h"
#include "message.h"
#include "text_table.h"

#include <stdio.h>

typedef struct ceiling {
    const char *name, *what;
    fa_isa isa;      /* of arithmetic; FA_ISA_AUTO: memory */
    size_t bytes;    /* of memory; for each thread, if it is a core's own cache */
    bool per_thread; /* bytes */
    bool triad;
    double one, all; /* operations or bytes per second, on one thread and on all */
} ceiling;

static ceiling ceilings[] = {
    {.name = "portable", .what = "float32 multiply-adds", .isa = FA_ISA_PORTABLE},
    {.name = "neon", .what = "float32 multiply-adds", .isa = FA_ISA_NEON},
    {.name = "avx2", .what = "float32 multiply-adds", .isa = FA_ISA_AVX2},
    {.name = "avx512", .what = "float32 multiply-adds", .isa = FA_ISA_AVX512},
    {.name = "avx512_bf16", .what = "bfloat16 dot products", .isa = FA_ISA_AVX512_BF16},
    {.name = "amx", .what = "bfloat16 tiles, random data", .isa = FA_ISA_AMX},
    {.name = "neon_bf16", .what = "bfloat16 matrix products", .isa = FA_ISA_NEON_BF16},
    {.name = "read_l2", .what = "reading 256 KiB of each thread", .bytes = 256 << 10, .per_thread = true},
    {.name = "read_16m", .what = "reading 16 MiB", .bytes = 16 << 20},
    {.name = "read_512m", .what = "reading 512 MiB", .bytes = 512 << 20},
    {.name = "triad", .what = "triad on 384 MiB", .bytes = 384 << 20, .triad = true},
};
enum { CEILINGS = sizeof ceilings / sizeof ceilings[0] };

static double measure(const ceiling *c, int threads, double seconds) {
    if (c->isa != FA_ISA_AUTO) return fma_peak_measure(c->isa, threads, seconds);
    size_t bytes = c->per_thread ? c->bytes * (size_t)threads : c->bytes;
    return c->triad ? memory_triad_measure(bytes, threads, seconds) : memory_read_measure(bytes, threads, seconds);
}

static bool is_here(const ceiling *c) { return c->isa == FA_ISA_AUTO || fa_isa_supported(c->isa) == FA_OK; }

static void print_table(int threads) {
    char machine[256];
    machine_name(machine, sizeof machine);
    (void)printf("%s\n\n", machine);
    text_table table;
    text_table_begin(&table, "lrrl");
    text_table_row *row = text_table_add(&table);
    size_t column = 0;
    text_table_cell(row, &column, "ceiling");
    text_table_cell(row, &column, "1 thread");
    text_table_cell(row, &column, "%d threads", threads);
    text_table_cell(row, &column, "unit");
    for (int i = 0; i < CEILINGS; i++) {
        const ceiling *c = &ceilings[i];
        if (!is_here(c)) continue;
        row = text_table_add(&table);
        column = 0;
        if (c->isa != FA_ISA_AUTO)
            text_table_cell(row, &column, "%s, %s", c->name, c->what);
        else
            text_table_cell(row, &column, "%s", c->what);
        text_table_cell(row, &column, "%.1f", c->one * 1e-9);
        text_table_cell(row, &column, "%.1f", c->all * 1e-9);
        text_table_cell(row, &column, c->isa != FA_ISA_AUTO ? "GFLOP/s" : "GB/s");
    }
    text_table_print(&table, stdout);
    text_table_end(&table);
}

static json_t *as_json(int threads) {
    char machine[256];
    json_t *root = json_object(), *list = json_array();
    machine_name(machine, sizeof machine);
    for (int i = 0; i < CEILINGS; i++) {
        const ceiling *c = &ceilings[i];
        if (!is_here(c)) continue;
        json_t *entry = json_object();
        (void)json_object_set_new(entry, "name", json_string(c->name));
        (void)json_object_set_new(entry, "unit", json_string(c->isa != FA_ISA_AUTO ? "GFLOP/s" : "GB/s"));
        (void)json_object_set_new(entry, "one_thread", json_rounded(c->one * 1e-9));
        (void)json_object_set_new(entry, "all_threads", json_rounded(c->all * 1e-9));
        (void)json_array_append_new(list, entry);
    }
    (void)json_object_set_new(root, "version", json_string(fa_version_text()));
    (void)json_object_set_new(root, "processor", json_string(machine));
    (void)json_object_set_new(root, "threads", json_integer(threads));
    (void)json_object_set_new(root, "ceilings", list);
    return root;
}

int bench_ceilings(int threads, double seconds, const char *json) {
    for (int i = 0; i < CEILINGS; i++) {
        if (!is_here(&ceilings[i])) continue;
        ceilings[i].one = measure(&ceilings[i], 1, seconds / CEILINGS / 2);
        ceilings[i].all = threads == 1 ? ceilings[i].one : measure(&ceilings[i], threads, seconds / CEILINGS / 2);
    }
    if (!json_on_stdout(json)) print_table(threads);
    return json != NULL ? json_write(json, as_json(threads)) : EXIT_CODE_OK;
}
