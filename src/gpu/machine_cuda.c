/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU through the CUDA driver. Work runs in the device's primary context, which the CUDA runtime, PyTorch and
 * others use too, so that their streams and memory are ours. The context is retained when the first kernel is
 * launched, a kernel is loaded when it is first used; both are kept until the process ends. Launches under stream
 * capture become graph nodes: nothing here waits or touches another stream, and what capture forbids (loading) runs
 * with the thread's capture mode relaxed.
 */
#include "gpu/driver.h"
#include "gpu/machine.h"
#include "status.h"
#include "tensor.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* What the workspace pool keeps when the device is idle instead of giving it back to the driver. */
#define POOL_KEEPS_BYTES ((uint64_t)256 << 20)

typedef struct loaded_function {
    const fa_variant *variant;
    fa_cu_function function;
    struct loaded_function *next;
} loaded_function;

/* Lists only grow at their head, so they are read without the mutex; everything is made under it. */
typedef struct cuda_machine {
    fa_machine machine; /* first: a fa_machine * of ours points at the whole */
    const fa_driver *driver;
    int32_t ordinal;
    fa_cu_device device;
    pthread_mutex_t mutex;
    _Atomic(fa_cu_context) context;
    _Atomic(fa_cu_pool) pool;
    _Atomic(loaded_function *) functions;
    struct cuda_machine *next;
} cuda_machine;

static _Atomic(cuda_machine *) opened;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* ---- the primary context ---- */

/* Makes ours the thread's current context; leave() brings the caller's back. */
static fa_status enter(cuda_machine *m) {
    FA_DRIVER_TRY(m->driver, cuCtxPushCurrent, (atomic_load(&m->context)), "entering the context of %s", m->machine.id);
    return FA_OK;
}

static fa_status leave(cuda_machine *m, fa_status status) {
    fa_cu_context ours;
    fa_cu_result result = m->driver->cuCtxPopCurrent(&ours);
    if (status != FA_OK || result == FA_CU_SUCCESS) return status;
    return fa_driver_fail(m->driver, result, "cuCtxPopCurrent", "leaving the context of %s", m->machine.id);
}

/* ---- things made once: under the mutex, with the thread's capture mode relaxed ---- */

typedef fa_status (*maker)(cuda_machine *m, const void *of);

static fa_status make(cuda_machine *m, maker make_it, const void *of) {
    int capture_mode = FA_CU_CAPTURE_MODE_RELAXED;
    FA_DRIVER_TRY(m->driver, cuThreadExchangeStreamCaptureMode, (&capture_mode), "preparing %s", m->machine.id);
    (void)pthread_mutex_lock(&m->mutex);
    fa_status status = make_it(m, of);
    (void)pthread_mutex_unlock(&m->mutex);
    fa_cu_result result = m->driver->cuThreadExchangeStreamCaptureMode(&capture_mode);
    if (status != FA_OK || result == FA_CU_SUCCESS) return status;
    return fa_driver_fail(m->driver, result, "cuThreadExchangeStreamCaptureMode", "preparing %s", m->machine.id);
}

static fa_status make_context(cuda_machine *m, const void *of) {
    (void)of;
    if (atomic_load(&m->context) != NULL) return FA_OK;
    fa_cu_context context;
    FA_DRIVER_TRY(m->driver, cuDevicePrimaryCtxRetain, (&context, m->device), "opening %s", m->machine.id);
    atomic_store(&m->context, context);
    return FA_OK;
}

static fa_status make_pool(cuda_machine *m, const void *of) {
    (void)of;
    if (atomic_load(&m->pool) != NULL) return FA_OK;
    fa_cu_pool pool;
    uint64_t keeps = POOL_KEEPS_BYTES;
    fa_cu_pool_properties properties = {.allocation_type = FA_CU_ALLOCATION_PINNED,
                                        .location = {.type = FA_CU_LOCATION_DEVICE, .id = m->ordinal}};
    FA_DRIVER_TRY(m->driver, cuMemPoolCreate, (&pool, &properties), "making the workspace pool of %s", m->machine.id);
    FA_DRIVER_TRY(m->driver, cuMemPoolSetAttribute, (pool, FA_CU_POOL_RELEASE_THRESHOLD, &keeps),
                  "making the workspace pool of %s", m->machine.id);
    atomic_store(&m->pool, pool);
    return FA_OK;
}

static const loaded_function *find_function(cuda_machine *m, const fa_variant *variant) {
    const loaded_function *f = atomic_load(&m->functions);
    while (f != NULL && f->variant != variant) f = f->next;
    return f;
}

static fa_status make_function(cuda_machine *m, const void *of) {
    const fa_variant *variant = of;
    if (find_function(m, variant) != NULL) return FA_OK;
    FA_TRY(fa_machine_runs(&m->machine, variant));
    fa_cu_module module;
    loaded_function *f = malloc(sizeof *f);
    if (f == NULL) return fa_fail(FA_OUT_OF_MEMORY, "no memory for %zu bytes", sizeof *f);
    f->variant = variant;
    fa_cu_result result = m->driver->cuModuleLoadData(&module, variant->image);
    const char *call = "cuModuleLoadData";
    if (result == FA_CU_SUCCESS) {
        result = m->driver->cuModuleGetFunction(&f->function, module, variant->symbol);
        call = "cuModuleGetFunction";
    }
    if (result == FA_CU_SUCCESS) { /* more than 48 KiB only if asked for */
        result = m->driver->cuFuncSetAttribute(f->function, FA_CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES,
                                               (int)m->machine.shared_bytes);
        call = "cuFuncSetAttribute";
    }
    if (result != FA_CU_SUCCESS) {
        free(f);
        return fa_driver_fail(m->driver, result, call, "loading %s on %s (%s, sm_%" PRId32 ", driver for CUDA %d.%d)",
                              fa_variant_name(variant), m->machine.id, m->machine.name, m->machine.arch,
                              m->driver->version / 1000, m->driver->version % 1000 / 10);
    }
    f->next = atomic_load(&m->functions);
    atomic_store(&m->functions, f);
    return FA_OK;
}

/* ---- the machine's functions ---- */

static cuda_machine *of_machine(const fa_machine *machine) { return (cuda_machine *)machine; }

static fa_status ready(cuda_machine *m) {
    if (atomic_load(&m->context) == NULL) FA_TRY(make(m, make_context, NULL));
    return enter(m);
}

static fa_status launch_inside(cuda_machine *m, const fa_launch *l) {
    const loaded_function *f = find_function(m, l->kernel);
    if (f == NULL) {
        FA_TRY(make(m, make_function, l->kernel));
        f = find_function(m, l->kernel);
    }
    fa_cu_launch_attribute cluster = {.id = FA_CU_LAUNCH_CLUSTER_DIMENSION, .value = {.cluster = {l->cluster, 1, 1}}};
    fa_cu_launch_config config = {.grid_x = l->grid[0],
                                  .grid_y = l->grid[1],
                                  .grid_z = l->grid[2],
                                  .block_x = l->threads,
                                  .block_y = 1,
                                  .block_z = 1,
                                  .shared_bytes = l->shared_bytes,
                                  .stream = l->stream,
                                  .attributes = &cluster,
                                  .attribute_count = l->cluster > 1};
    void *params[] = {(void *)l->params}; /* the driver copies from there */
    FA_DRIVER_TRY(m->driver, cuLaunchKernelEx, (&config, f->function, params, NULL),
                  "launching %s on %s with a grid of %" PRIu32 " x %" PRIu32 " x %" PRIu32 ", %" PRIu32
                  " threads and %" PRIu32 " bytes of shared memory",
                  fa_variant_name(l->kernel), m->machine.id, l->grid[0], l->grid[1], l->grid[2], l->threads,
                  l->shared_bytes);
    return FA_OK;
}

static fa_status cuda_launch(const fa_machine *machine, const fa_launch *launch) {
    cuda_machine *m = of_machine(machine);
    FA_TRY(ready(m));
    return leave(m, launch_inside(m, launch));
}

static fa_status allocate_inside(cuda_machine *m, size_t bytes, fa_cu_stream stream, void **memory) {
    fa_cu_pointer pointer = 0;
    if (atomic_load(&m->pool) == NULL) FA_TRY(make(m, make_pool, NULL));
    FA_DRIVER_TRY(m->driver, cuMemAllocFromPoolAsync, (&pointer, bytes, atomic_load(&m->pool), stream),
                  "allocating %zu bytes of workspace on %s", bytes, m->machine.id);
    *memory = (void *)(uintptr_t)pointer;
    return FA_OK;
}

static fa_status cuda_allocate(const fa_machine *machine, size_t bytes, void *stream, void **memory) {
    cuda_machine *m = of_machine(machine);
    FA_TRY(ready(m));
    return leave(m, allocate_inside(m, bytes, stream, memory));
}

static fa_status release_inside(cuda_machine *m, void *memory, fa_cu_stream stream) {
    FA_DRIVER_TRY(m->driver, cuMemFreeAsync, ((uintptr_t)memory, stream), "freeing workspace on %s", m->machine.id);
    return FA_OK;
}

static fa_status cuda_release(const fa_machine *machine, void *memory, void *stream) {
    cuda_machine *m = of_machine(machine);
    FA_TRY(ready(m));
    return leave(m, release_inside(m, memory, stream));
}

static fa_status fill_inside(cuda_machine *m, void *memory, uint8_t value, size_t bytes, fa_cu_stream stream) {
    FA_DRIVER_TRY(m->driver, cuMemsetD8Async, ((uintptr_t)memory, value, bytes, stream), "filling %zu bytes on %s",
                  bytes, m->machine.id);
    return FA_OK;
}

static fa_status cuda_fill(const fa_machine *machine, void *memory, uint8_t value, size_t bytes, void *stream) {
    cuda_machine *m = of_machine(machine);
    FA_TRY(ready(m));
    return leave(m, fill_inside(m, memory, value, bytes, stream));
}

static fa_status encode_inside(cuda_machine *m, const fa_tensor_map_layout *layout, fa_tensor_map *map) {
    static const uint32_t dense[5] = {1, 1, 1, 1, 1};
    FA_DRIVER_TRY(m->driver, cuTensorMapEncodeTiled,
                  (map, (int)layout->type, layout->rank, (void *)layout->data, layout->extents, layout->strides,
                   layout->box, dense, FA_CU_TENSOR_MAP_INTERLEAVE_NONE, (int)layout->swizzle,
                   FA_CU_TENSOR_MAP_L2_PROMOTION_256B, FA_CU_TENSOR_MAP_FILL_ZERO),
                  "encoding a tensor map of rank %" PRIu32 " for %s", layout->rank, m->machine.id);
    return FA_OK;
}

static fa_status cuda_encode_tensor_map(const fa_machine *machine, const fa_tensor_map_layout *layout,
                                        fa_tensor_map *map) {
    cuda_machine *m = of_machine(machine);
    FA_TRY(ready(m));
    return leave(m, encode_inside(m, layout, map));
}

/* ---- opening ---- */

static fa_status read_properties(cuda_machine *m) {
    fa_machine *machine = &m->machine;
    int major = 0, minor = 0, processors = 0, shared_bytes = 0, l2_bytes = 0;
    const struct {
        int attribute;
        int *value;
    } attributes[] = {{FA_CU_ATTRIBUTE_CAPABILITY_MAJOR, &major},
                      {FA_CU_ATTRIBUTE_CAPABILITY_MINOR, &minor},
                      {FA_CU_ATTRIBUTE_PROCESSORS, &processors},
                      {FA_CU_ATTRIBUTE_SHARED_BYTES_OPTIN, &shared_bytes},
                      {FA_CU_ATTRIBUTE_L2_BYTES, &l2_bytes}};
    (void)snprintf(machine->id, sizeof machine->id, "cuda:%" PRId32, m->ordinal);
    FA_DRIVER_TRY(m->driver, cuDeviceGet, (&m->device, m->ordinal), "looking up %s", machine->id);
    FA_DRIVER_TRY(m->driver, cuDeviceGetName, (machine->name, (int)sizeof machine->name, m->device),
                  "reading the name of %s", machine->id);
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        FA_DRIVER_TRY(m->driver, cuDeviceGetAttribute, (attributes[i].value, attributes[i].attribute, m->device),
                      "reading attribute %d of %s", attributes[i].attribute, machine->id);
    machine->arch = 10 * major + minor;
    machine->processors = processors;
    machine->shared_bytes = shared_bytes;
    machine->l2_bytes = l2_bytes;
    machine->launch = cuda_launch;
    machine->allocate = cuda_allocate;
    machine->release = cuda_release;
    machine->fill = cuda_fill;
    machine->encode_tensor_map = cuda_encode_tensor_map;
    return FA_OK;
}

static cuda_machine *find_opened(int32_t ordinal) {
    cuda_machine *m = atomic_load(&opened);
    while (m != NULL && m->ordinal != ordinal) m = m->next;
    return m;
}

static fa_status open_machine(const fa_driver *driver, int32_t ordinal) {
    if (find_opened(ordinal) != NULL) return FA_OK;
    cuda_machine *m = calloc(1, sizeof *m);
    if (m == NULL) return fa_fail(FA_OUT_OF_MEMORY, "no memory for %zu bytes", sizeof *m);
    m->driver = driver;
    m->ordinal = ordinal;
    (void)pthread_mutex_init(&m->mutex, NULL);
    fa_status status = read_properties(m);
    if (status != FA_OK) {
        free(m);
        return status;
    }
    m->next = atomic_load(&opened);
    atomic_store(&opened, m);
    return FA_OK;
}

int32_t fa_machine_cuda_devices(void) {
    const fa_driver *driver;
    return fa_driver_get(&driver) == FA_OK ? driver->device_count : 0;
}

fa_status fa_machine_open_cuda(int32_t ordinal, const fa_machine **machine) {
    const fa_driver *driver;
    FA_TRY(fa_driver_get(&driver));
    if (ordinal < 0 || ordinal >= driver->device_count)
        return fa_fail(FA_INVALID_ARGUMENT, "device_id = %" PRId32 ": must be 0 .. %d, this process sees %d GPUs",
                       ordinal, driver->device_count - 1, driver->device_count);
    cuda_machine *m = find_opened(ordinal);
    if (m == NULL) {
        (void)pthread_mutex_lock(&opening);
        fa_status status = open_machine(driver, ordinal);
        (void)pthread_mutex_unlock(&opening);
        FA_TRY(status);
        m = find_opened(ordinal);
    }
    *machine = &m->machine;
    return FA_OK;
}
