/* SPDX-License-Identifier: Apache-2.0 */
/* The emulator as a machine: launches run to their end before they return, on host memory that the launch names. */
#include "gpu/machine.h"
#include "status.h"
#include "tensor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One per part and seed. The list only grows at its head, so it is read without the mutex. */
typedef struct emulated_machine {
    fa_machine machine; /* first: a fa_machine * of ours points at the whole */
    fa_emulator *emulator;
    fa_emulator_part part;
    uint64_t seed;
    pthread_mutex_t mutex;
    fa_emulator_counters totals; /* under the mutex */
    struct emulated_machine *next;
} emulated_machine;

static _Atomic(emulated_machine *) opened;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static emulated_machine *of_machine(const fa_machine *machine) { return (emulated_machine *)machine; }

static fa_status fail_emulated(const fa_machine *machine, const char *what, fa_emulator_status status,
                               const char *text) {
    return fa_fail(status == FA_EMULATOR_OUT_OF_MEMORY ? FA_OUT_OF_MEMORY : FA_DEVICE_ERROR, "%s on %s: %s", what,
                   machine->id, text);
}

/* ---- launches ---- */

static void count(emulated_machine *m, const fa_emulator_counters *counters) {
    uint64_t sum[sizeof m->totals / sizeof(uint64_t)], one[sizeof m->totals / sizeof(uint64_t)];
    (void)pthread_mutex_lock(&m->mutex);
    memcpy(sum, &m->totals, sizeof sum);
    memcpy(one, counters, sizeof one);
    for (size_t i = 0; i < sizeof sum / sizeof sum[0]; i++) sum[i] += one[i];
    memcpy(&m->totals, sum, sizeof sum);
    (void)pthread_mutex_unlock(&m->mutex);
}

void fa_machine_emulated_counters(const fa_machine *machine, fa_emulator_counters *counters) {
    emulated_machine *m = of_machine(machine);
    (void)pthread_mutex_lock(&m->mutex);
    *counters = m->totals;
    (void)pthread_mutex_unlock(&m->mutex);
}

static fa_status run(emulated_machine *m, const fa_launch *l) {
    const fa_emulator_kernel *kernel = l->kernel->emulated;
    fa_emulator_report report;
    fa_emulator_launch launch = {.grid = {l->grid[0], l->grid[1], l->grid[2]},
                                 .threads = l->threads,
                                 .cluster = l->cluster,
                                 .shared_bytes = l->shared_bytes,
                                 .seed = m->seed,
                                 .host_threads = l->host_threads > 0 ? (uint32_t)l->host_threads : 0};
    if (kernel->params_bytes != l->params_bytes)
        return fa_fail(FA_DEVICE_ERROR, "%s on %s: the launch gives %zu bytes of parameters, the kernel takes %u",
                       fa_variant_name(l->kernel), m->machine.id, l->params_bytes, kernel->params_bytes);
    if (fa_emulator_run(m->emulator, kernel, l->params, &launch, &report) != FA_EMULATOR_OK)
        return fail_emulated(&m->machine, fa_variant_name(l->kernel), report.status, report.text);
    count(m, &report.counters);
    return FA_OK;
}

static fa_status emulated_launch(const fa_machine *machine, const fa_launch *l) {
    emulated_machine *m = of_machine(machine);
    size_t known = 0;
    while (known < l->memory_count &&
           fa_emulator_register(m->emulator, l->memory[known].begin, l->memory[known].bytes, l->memory[known].writable))
        known++;
    fa_status status = known == l->memory_count
                           ? run(m, l)
                           : fa_fail(FA_OUT_OF_MEMORY, "no memory to register %zu tensors", l->memory_count);
    while (known-- > 0)
        fa_emulator_unregister(m->emulator, l->memory[known].begin, l->memory[known].bytes, l->memory[known].writable);
    return status;
}

/* ---- memory and tensor maps ---- */

static fa_status emulated_allocate(const fa_machine *machine, size_t bytes, void *stream, void **memory) {
    (void)stream;
    *memory = fa_emulator_allocate(of_machine(machine)->emulator, bytes);
    if (*memory != NULL) return FA_OK;
    return fa_fail(FA_OUT_OF_MEMORY, "no memory for %zu bytes of workspace on %s", bytes, machine->id);
}

static fa_status emulated_release(const fa_machine *machine, void *memory, void *stream) {
    (void)stream;
    fa_emulator_free(of_machine(machine)->emulator, memory);
    return FA_OK;
}

static fa_status emulated_fill(const fa_machine *machine, void *memory, uint8_t value, size_t bytes, void *stream) {
    (void)machine;
    (void)stream;
    memset(memory, value, bytes);
    return FA_OK;
}

static fa_status emulated_encode_tensor_map(const fa_machine *machine, const fa_tensor_map_layout *layout,
                                            fa_tensor_map *map) {
    static const uint32_t dense[5] = {1, 1, 1, 1, 1};
    char text[FA_EMULATOR_TEXT];
    fa_emulator_status status =
        fa_emulator_encode_tensor_map(map, layout->type, layout->rank, layout->data, layout->extents, layout->strides,
                                      layout->box, dense, layout->swizzle, false, text);
    return status == FA_EMULATOR_OK ? FA_OK : fail_emulated(machine, "tensor map", status, text);
}

/* ---- opening ---- */

/* "emulated-h100" or "emulated-h100:7" */
static fa_status parse(const char *specification, fa_emulator_part *part, uint64_t *seed) {
    const char *colon = strchr(specification, ':');
    size_t length = colon == NULL ? strlen(specification) : (size_t)(colon - specification);
    *seed = 0;
    if (colon != NULL) {
        char *end;
        if (colon[1] < '0' || colon[1] > '9' || (*seed = strtoull(colon + 1, &end, 10), *end != '\0'))
            return fa_fail(FA_INVALID_ARGUMENT, "FLASHATTN_MACHINE = %s: behind the colon must be a number, the seed",
                           specification);
    }
    char names[128] = "";
    for (int i = 0; i < FA_EMULATOR_PARTS; i++) {
        const char *name = fa_emulator_part_properties((fa_emulator_part)i)->name;
        *part = (fa_emulator_part)i;
        if (strlen(name) == length && strncmp(name, specification, length) == 0) return FA_OK;
        size_t used = strlen(names);
        (void)snprintf(names + used, sizeof names - used, "%s%s",
                       i == 0                      ? ""
                       : i + 1 < FA_EMULATOR_PARTS ? ", "
                                                   : " or ",
                       name);
    }
    return fa_fail(FA_INVALID_ARGUMENT, "FLASHATTN_MACHINE = %s: must be %s", specification, names);
}

static emulated_machine *find_opened(fa_emulator_part part, uint64_t seed) {
    emulated_machine *m = atomic_load(&opened);
    while (m != NULL && (m->part != part || m->seed != seed)) m = m->next;
    return m;
}

static fa_status open_machine(fa_emulator_part part, uint64_t seed) {
    if (find_opened(part, seed) != NULL) return FA_OK;
    emulated_machine *m = calloc(1, sizeof *m);
    if (m != NULL) m->emulator = fa_emulator_create(part);
    if (m == NULL || m->emulator == NULL) {
        free(m);
        return fa_fail(FA_OUT_OF_MEMORY, "no memory for an emulated GPU");
    }
    const fa_emulator_properties *properties = fa_emulator_device_properties(m->emulator);
    fa_machine *machine = &m->machine;
    m->part = part;
    m->seed = seed;
    (void)pthread_mutex_init(&m->mutex, NULL);
    (void)snprintf(machine->id, sizeof machine->id, "%s", properties->name);
    (void)snprintf(machine->name, sizeof machine->name, "emulator on the CPU");
    machine->emulated = true;
    machine->arch = (int32_t)properties->sm;
    machine->processors = (int32_t)properties->multiprocessors;
    machine->shared_bytes = properties->shared_bytes_per_block;
    machine->l2_bytes = (int64_t)properties->l2_bytes;
    machine->launch = emulated_launch;
    machine->allocate = emulated_allocate;
    machine->release = emulated_release;
    machine->fill = emulated_fill;
    machine->encode_tensor_map = emulated_encode_tensor_map;
    m->next = atomic_load(&opened);
    atomic_store(&opened, m);
    return FA_OK;
}

fa_status fa_machine_open_emulated(const char *specification, const fa_machine **machine) {
    fa_emulator_part part;
    uint64_t seed;
    FA_TRY(parse(specification, &part, &seed));
    emulated_machine *m = find_opened(part, seed);
    if (m == NULL) {
        (void)pthread_mutex_lock(&opening);
        fa_status status = open_machine(part, seed);
        (void)pthread_mutex_unlock(&opening);
        FA_TRY(status);
        m = find_opened(part, seed);
    }
    *machine = &m->machine;
    return FA_OK;
}
