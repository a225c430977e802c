/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for tests: see device.h. */
#include "device.h"

#include "gpu/driver.h"
#include "support/testing.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct graph_object *cu_graph;
typedef struct graph_exec_object *cu_graph_exec;

enum { STREAM_NON_BLOCKING = 1, CAPTURE_MODE_THREAD_LOCAL = 1 };

/* What the library itself does not need. */
#define TEST_FUNCTIONS(FUNCTION)                                                                       \
    FUNCTION(cuCtxSetCurrent, "cuCtxSetCurrent", (fa_cu_context context))                              \
    FUNCTION(cuCtxSynchronize, "cuCtxSynchronize", (void))                                             \
    FUNCTION(cuMemAlloc, "cuMemAlloc_v2", (fa_cu_pointer * pointer, size_t bytes))                     \
    FUNCTION(cuMemFree, "cuMemFree_v2", (fa_cu_pointer pointer))                                       \
    FUNCTION(cuMemGetInfo, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * all_bytes))               \
    FUNCTION(cuMemsetD8, "cuMemsetD8_v2", (fa_cu_pointer pointer, unsigned char value, size_t bytes))  \
    FUNCTION(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (fa_cu_pointer pointer, const void *host, size_t bytes)) \
    FUNCTION(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *host, fa_cu_pointer pointer, size_t bytes))       \
    FUNCTION(cuStreamCreate, "cuStreamCreate", (fa_cu_stream * stream, unsigned int flags))            \
    FUNCTION(cuStreamDestroy, "cuStreamDestroy_v2", (fa_cu_stream stream))                             \
    FUNCTION(cuStreamSynchronize, "cuStreamSynchronize", (fa_cu_stream stream))                        \
    FUNCTION(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (fa_cu_stream stream, int mode))         \
    FUNCTION(cuStreamEndCapture, "cuStreamEndCapture", (fa_cu_stream stream, cu_graph * graph))        \
    FUNCTION(cuGraphInstantiate, "cuGraphInstantiateWithFlags",                                        \
             (cu_graph_exec * exec, cu_graph graph, unsigned long long flags))                         \
    FUNCTION(cuGraphDestroy, "cuGraphDestroy", (cu_graph graph))                                       \
    FUNCTION(cuGraphLaunch, "cuGraphLaunch", (cu_graph_exec exec, fa_cu_stream stream))                \
    FUNCTION(cuGraphExecDestroy, "cuGraphExecDestroy", (cu_graph_exec exec))

static struct {
    const fa_driver *driver;
    fa_cu_context context;
#define FIELD(name, symbol, parameters) fa_cu_result(*name) parameters;
    TEST_FUNCTIONS(FIELD)
} device;

static void check(fa_cu_result result, const char *call) {
    if (result == FA_CU_SUCCESS) return;
    (void)fa_driver_fail(device.driver, result, call, "testing");
    fail_msg("%s", fa_last_error());
}

#define CHECK(function, arguments) check(device.function arguments, #function)

bool device_open(void) {
    if (fa_driver_get(&device.driver) != FA_OK) {
        (void)printf("No GPU: %s\n", fa_last_error());
        return false;
    }
    const struct {
        const char *symbol;
        void *field;
    } functions[] = {
#define ROW(name, symbol, parameters) {symbol, &device.name},
        TEST_FUNCTIONS(ROW)};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *address = dlsym(library, functions[i].symbol);
        if (address == NULL) {
            (void)printf("No GPU: libcuda has no %s\n", functions[i].symbol);
            return false;
        }
        memcpy(functions[i].field, &address, sizeof address);
    }
    fa_cu_device gpu;
    fa_cu_result result = device.driver->cuDeviceGet(&gpu, 0);
    if (result == FA_CU_SUCCESS) result = device.driver->cuDevicePrimaryCtxRetain(&device.context, gpu);
    if (result == FA_CU_SUCCESS) result = device.cuCtxSetCurrent(device.context);
    if (result != FA_CU_SUCCESS) (void)printf("No GPU: error %d of the driver\n", result);
    return result == FA_CU_SUCCESS;
}

void device_make_current(void) { CHECK(cuCtxSetCurrent, (device.context)); }

void *device_allocate(size_t bytes) {
    fa_cu_pointer pointer = 0;
    CHECK(cuMemAlloc, (&pointer, bytes == 0 ? 1 : bytes));
    return (void *)(uintptr_t)pointer;
}

void device_free(void *memory) { CHECK(cuMemFree, ((uintptr_t)memory)); }

size_t device_free_bytes(void) {
    size_t free_bytes, all_bytes;
    CHECK(cuMemGetInfo, (&free_bytes, &all_bytes));
    return free_bytes;
}

void device_fill(void *memory, uint8_t value, size_t bytes) { CHECK(cuMemsetD8, ((uintptr_t)memory, value, bytes)); }
void device_write(void *memory, const void *host, size_t bytes) {
    CHECK(cuMemcpyHtoD, ((uintptr_t)memory, host, bytes));
}
void device_read(void *host, const void *memory, size_t bytes) {
    CHECK(cuMemcpyDtoH, (host, (uintptr_t)memory, bytes));
}
void device_synchronize(void) { CHECK(cuCtxSynchronize, ()); }

void *device_stream_new(void) {
    fa_cu_stream stream;
    CHECK(cuStreamCreate, (&stream, STREAM_NON_BLOCKING));
    return stream;
}

void device_stream_free(void *stream) { CHECK(cuStreamDestroy, (stream)); }
void device_stream_synchronize(void *stream) { CHECK(cuStreamSynchronize, (stream)); }
void device_capture_begin(void *stream) { CHECK(cuStreamBeginCapture, (stream, CAPTURE_MODE_THREAD_LOCAL)); }

void *device_capture_end(void *stream) {
    cu_graph graph;
    cu_graph_exec exec;
    CHECK(cuStreamEndCapture, (stream, &graph));
    CHECK(cuGraphInstantiate, (&exec, graph, 0));
    CHECK(cuGraphDestroy, (graph));
    return exec;
}

void device_graph_launch(void *graph, void *stream) { CHECK(cuGraphLaunch, (graph, stream)); }
void device_graph_free(void *graph) { CHECK(cuGraphExecDestroy, (graph)); }
