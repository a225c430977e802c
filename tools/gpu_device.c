/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for measurements: see gpu_device.h. */
#include "gpu_device.h"

#include "gpu/driver.h"
#include "message.h"

#include <dlfcn.h>
#include <string.h>

typedef struct event_object *cu_event;

enum { ATTRIBUTE_CLOCK_KHZ = 13 };

/* What the library itself does not need. */
#define BENCH_FUNCTIONS(FUNCTION)                                                                      \
    FUNCTION(cuCtxSetCurrent, "cuCtxSetCurrent", (fa_cu_context context))                              \
    FUNCTION(cuMemAlloc, "cuMemAlloc_v2", (fa_cu_pointer * pointer, size_t bytes))                     \
    FUNCTION(cuMemFree, "cuMemFree_v2", (fa_cu_pointer pointer))                                       \
    FUNCTION(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (fa_cu_pointer pointer, const void *host, size_t bytes)) \
    FUNCTION(cuEventCreate, "cuEventCreate", (cu_event * event, unsigned int flags))                   \
    FUNCTION(cuEventRecord, "cuEventRecord", (cu_event event, fa_cu_stream stream))                    \
    FUNCTION(cuEventSynchronize, "cuEventSynchronize", (cu_event event))                               \
    FUNCTION(cuEventElapsedTime, "cuEventElapsedTime", (float *milliseconds, cu_event begin, cu_event end))

static struct {
    const fa_driver *driver;
    fa_cu_device device;
    cu_event begin, end;
#define FIELD(name, symbol, parameters) fa_cu_result(*name) parameters;
    BENCH_FUNCTIONS(FIELD)
#undef FIELD
} gpu;

static int check(fa_cu_result result, const char *call) {
    if (result == FA_CU_SUCCESS) return EXIT_CODE_OK;
    (void)fa_driver_fail(gpu.driver, result, call, "measuring");
    return fail_library();
}

#define TRY(call)                                      \
    do {                                               \
        int try_code = (call);                         \
        if (try_code != EXIT_CODE_OK) return try_code; \
    } while (0)
#define CALL(function, arguments) TRY(check(gpu.function arguments, #function))
#define DRIVER_CALL(function, arguments) TRY(check(gpu.driver->function arguments, #function))

static int load_functions(void) {
    const struct {
        const char *symbol;
        void *field;
    } functions[] = {
#define ROW(name, symbol, parameters) {symbol, &gpu.name},
        BENCH_FUNCTIONS(ROW)
#undef ROW
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *address = library != NULL ? dlsym(library, functions[i].symbol) : NULL;
        if (address == NULL) return fail_file("libcuda.so.1 has no %s", functions[i].symbol);
        memcpy(functions[i].field, &address, sizeof address);
    }
    return EXIT_CODE_OK;
}

int gpu_open(int number) {
    fa_cu_context context;
    if (fa_driver_get(&gpu.driver) != FA_OK) return fail_library();
    TRY(load_functions());
    DRIVER_CALL(cuDeviceGet, (&gpu.device, number));
    DRIVER_CALL(cuDevicePrimaryCtxRetain, (&context, gpu.device));
    CALL(cuCtxSetCurrent, (context));
    CALL(cuEventCreate, (&gpu.begin, 0));
    CALL(cuEventCreate, (&gpu.end, 0));
    return EXIT_CODE_OK;
}

double gpu_peak(void) {
    int major = 0, processors = 0, khz = 0;
    (void)gpu.driver->cuDeviceGetAttribute(&major, FA_CU_ATTRIBUTE_CAPABILITY_MAJOR, gpu.device);
    (void)gpu.driver->cuDeviceGetAttribute(&processors, FA_CU_ATTRIBUTE_PROCESSORS, gpu.device);
    (void)gpu.driver->cuDeviceGetAttribute(&khz, ATTRIBUTE_CLOCK_KHZ, gpu.device);
    /* Per clock and multiprocessor: A100, H100 and B200 as NVIDIA states them, dense. */
    double operations = major == 8 ? 2048 : major == 9 ? 4096 : major == 10 ? 8192 : 0;
    return operations * processors * khz * 1e3;
}

int gpu_allocate(void **memory, size_t bytes) {
    fa_cu_pointer pointer = 0;
    CALL(cuMemAlloc, (&pointer, bytes));
    *memory = (void *)(uintptr_t)pointer;
    return EXIT_CODE_OK;
}

void gpu_free(void *memory) {
    if (memory != NULL) (void)gpu.cuMemFree((uintptr_t)memory);
}

int gpu_fill(void *memory, size_t bytes, const void *block, size_t block_bytes) {
    for (size_t at = 0; at < bytes; at += block_bytes)
        CALL(cuMemcpyHtoD, ((uintptr_t)memory + at, block, bytes - at < block_bytes ? bytes - at : block_bytes));
    return EXIT_CODE_OK;
}

int gpu_start(void) {
    CALL(cuEventRecord, (gpu.begin, NULL));
    return EXIT_CODE_OK;
}

int gpu_stop(double *seconds) {
    float milliseconds = 0;
    CALL(cuEventRecord, (gpu.end, NULL));
    CALL(cuEventSynchronize, (gpu.end));
    CALL(cuEventElapsedTime, (&milliseconds, gpu.begin, gpu.end));
    *seconds = (double)milliseconds * 1e-3;
    return EXIT_CODE_OK;
}
