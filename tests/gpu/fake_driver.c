/* SPDX-License-Identifier: Apache-2.0 */
/* The driver without a GPU: see fake_driver.h. */
#include "fake_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define ERROR_INVALID_VALUE 1
#define ERROR_INVALID_CONTEXT 201
#define ERROR_CAPTURE_UNSUPPORTED 900
#define FATBIN_MAGIC 0xBA55ED50u

enum { DEVICES = 4, DEPTH = 8, ATTRIBUTE_CLOCK_KHZ = 13 };

struct fa_cu_context_object {
    int device;
};
struct fa_cu_module_object {
    int device;
};
struct fa_cu_function_object {
    char name[64];
    int max_dynamic_shared_bytes;
};
struct fa_cu_pool_object {
    int device;
};

/* What libcuda exports has these names: only the pointers in struct fa_driver are called. */
#define FA_DRIVER_PROTOTYPE(name, symbol, parameters) EXPORT fa_cu_result fake_##name parameters __asm__(symbol);
FA_DRIVER_FUNCTIONS(FA_DRIVER_PROTOTYPE)

static fake_driver state;
static struct fa_cu_context_object primary[DEVICES] = {{0}, {1}, {2}, {3}};
static _Thread_local fa_cu_context stack[DEPTH];
static _Thread_local int depth; /* stack[depth - 1] is current */
static _Thread_local int capture_mode;

fake_driver *fake_driver_state(void) { return &state; }
void fake_driver_set_current(fa_cu_context context) {
    depth = context != NULL;
    stack[0] = context;
}
fa_cu_context fake_driver_current(void) { return depth > 0 ? stack[depth - 1] : NULL; }
int fake_driver_capture_mode(void) { return capture_mode; }

/* The result of a call that is otherwise right. */
static fa_cu_result outcome(const char *call) {
    return state.fail_call != NULL && strcmp(state.fail_call, call) == 0 ? state.fail_result : FA_CU_SUCCESS;
}

static fa_cu_result in_context(const char *call) {
    return fake_driver_current() == NULL ? ERROR_INVALID_CONTEXT : outcome(call);
}

static fa_cu_result unless_capturing(const char *call) {
    return state.capturing && capture_mode != FA_CU_CAPTURE_MODE_RELAXED ? ERROR_CAPTURE_UNSUPPORTED : outcome(call);
}

fa_cu_result fake_cuInit(unsigned int flags) { return flags == 0 ? outcome("cuInit") : ERROR_INVALID_VALUE; }
fa_cu_result fake_cuDriverGetVersion(int *version) {
    *version = 13000;
    return FA_CU_SUCCESS;
}

fa_cu_result fake_cuGetErrorName(fa_cu_result result, const char **name) {
    *name = result == FA_CU_ERROR_OUT_OF_MEMORY       ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == FA_CU_ERROR_NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
            : result == ERROR_INVALID_VALUE           ? "CUDA_ERROR_INVALID_VALUE"
            : result == ERROR_CAPTURE_UNSUPPORTED     ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
            : result == ERROR_INVALID_CONTEXT         ? "CUDA_ERROR_INVALID_CONTEXT"
                                                      : NULL;
    return *name == NULL ? ERROR_INVALID_VALUE : FA_CU_SUCCESS;
}
fa_cu_result fake_cuGetErrorString(fa_cu_result result, const char **text) {
    *text = "text of the error";
    return result == FA_CU_SUCCESS ? ERROR_INVALID_VALUE : FA_CU_SUCCESS;
}

fa_cu_result fake_cuDeviceGetCount(int *count) {
    *count = DEVICES;
    return FA_CU_SUCCESS;
}
fa_cu_result fake_cuDeviceGet(fa_cu_device *device, int ordinal) {
    *device = 100 + ordinal; /* a device is not its ordinal */
    return ordinal < DEVICES ? outcome("cuDeviceGet") : ERROR_INVALID_VALUE;
}
fa_cu_result fake_cuDeviceGetName(char *name, int size, fa_cu_device device) {
    static const char *const names[DEVICES] = {"Fake H200", "Fake A100", "Fake RTX 4090", "Fake H100"};
    (void)snprintf(name, (size_t)size, "%s", names[device - 100]);
    return FA_CU_SUCCESS;
}
fa_cu_result fake_cuDeviceGetAttribute(int *value, int attribute, fa_cu_device device) {
    static const struct {
        int attribute, value[DEVICES];
    } attributes[] = {{ATTRIBUTE_CLOCK_KHZ, {1000000, 1000000, 1000000, 1000000}},
                      {FA_CU_ATTRIBUTE_CAPABILITY_MAJOR, {9, 8, 8, 9}},
                      {FA_CU_ATTRIBUTE_CAPABILITY_MINOR, {0, 0, 9, 0}},
                      {FA_CU_ATTRIBUTE_PROCESSORS, {132, 108, 128, 132}},
                      {FA_CU_ATTRIBUTE_SHARED_BYTES_OPTIN, {232448, 166912, 101376, 232448}},
                      {FA_CU_ATTRIBUTE_L2_BYTES, {62914560, 41943040, 75497472, 52428800}}};
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].attribute == attribute) {
            *value = attributes[i].value[device - 100];
            return outcome("cuDeviceGetAttribute");
        }
    return ERROR_INVALID_VALUE;
}

fa_cu_result fake_cuDevicePrimaryCtxRetain(fa_cu_context *context, fa_cu_device device) {
    *context = &primary[device - 100];
    fa_cu_result result = unless_capturing("cuDevicePrimaryCtxRetain");
    if (result == FA_CU_SUCCESS) atomic_fetch_add(&state.retained, 1);
    return result;
}
fa_cu_result fake_cuCtxPushCurrent(fa_cu_context context) {
    fa_cu_result result = outcome("cuCtxPushCurrent");
    if (result != FA_CU_SUCCESS) return result;
    if (context == NULL || depth == DEPTH) return ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return FA_CU_SUCCESS;
}
fa_cu_result fake_cuCtxPopCurrent(fa_cu_context *context) {
    if (depth == 0) return ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return outcome("cuCtxPopCurrent");
}
fa_cu_result fake_cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return outcome("cuThreadExchangeStreamCaptureMode");
}

/* Modules and functions stay, as the library's do. */
fa_cu_result fake_cuModuleLoadData(fa_cu_module *module, const void *image) {
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (fake_driver_current() == NULL) return ERROR_INVALID_CONTEXT;
    fa_cu_result result = unless_capturing("cuModuleLoadData");
    if (result != FA_CU_SUCCESS) return result;
    if (magic != FATBIN_MAGIC) return ERROR_INVALID_VALUE;
    static struct fa_cu_module_object one = {0};
    *module = &one;
    atomic_fetch_add(&state.loaded, 1);
    return FA_CU_SUCCESS;
}
fa_cu_result fake_cuModuleGetFunction(fa_cu_function *function, fa_cu_module module, const char *name) {
    static struct fa_cu_function_object functions[64];
    static atomic_int count;
    fa_cu_result result = module == NULL ? ERROR_INVALID_VALUE : in_context("cuModuleGetFunction");
    if (result != FA_CU_SUCCESS) return result;
    *function = &functions[atomic_fetch_add(&count, 1)];
    (void)snprintf((*function)->name, sizeof(*function)->name, "%s", name);
    return FA_CU_SUCCESS;
}
fa_cu_result fake_cuFuncSetAttribute(fa_cu_function function, int attribute, int value) {
    if (attribute == FA_CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES) function->max_dynamic_shared_bytes = value;
    return in_context("cuFuncSetAttribute");
}

fa_cu_result fake_cuLaunchKernelEx(const fa_cu_launch_config *config, fa_cu_function function, void **params,
                                   void **extra) {
    fa_cu_result result = extra != NULL ? ERROR_INVALID_VALUE : in_context("cuLaunchKernelEx");
    if (result != FA_CU_SUCCESS) return result;
    if (config->shared_bytes >
        (unsigned int)(function->max_dynamic_shared_bytes > 49152 ? function->max_dynamic_shared_bytes : 49152))
        return ERROR_INVALID_VALUE;
    if (atomic_fetch_add(&state.launched, 1) != 0)
        return FA_CU_SUCCESS; /* several threads may come: the first is kept */
    state.config = *config;
    if (config->attribute_count > 0) state.attribute = config->attributes[0];
    memcpy(state.function, function->name, sizeof state.function);
    memcpy(state.params, params[0], 16);
    state.max_dynamic_shared_bytes = function->max_dynamic_shared_bytes;
    return FA_CU_SUCCESS;
}

fa_cu_result fake_cuMemPoolCreate(fa_cu_pool *pool, const fa_cu_pool_properties *properties) {
    static struct fa_cu_pool_object pools[DEVICES];
    if (properties->allocation_type != FA_CU_ALLOCATION_PINNED || properties->location.type != FA_CU_LOCATION_DEVICE ||
        properties->location.id >= DEVICES)
        return ERROR_INVALID_VALUE;
    *pool = &pools[properties->location.id];
    return unless_capturing("cuMemPoolCreate");
}
fa_cu_result fake_cuMemPoolSetAttribute(fa_cu_pool pool, int attribute, void *value) {
    if (pool == NULL || attribute != FA_CU_POOL_RELEASE_THRESHOLD) return ERROR_INVALID_VALUE;
    memcpy(&state.pool_keeps, value, sizeof state.pool_keeps);
    return unless_capturing("cuMemPoolSetAttribute");
}
fa_cu_result fake_cuMemAllocFromPoolAsync(fa_cu_pointer *pointer, size_t bytes, fa_cu_pool pool, fa_cu_stream stream) {
    (void)stream;
    fa_cu_result result = pool == NULL ? ERROR_INVALID_VALUE : in_context("cuMemAllocFromPoolAsync");
    if (result != FA_CU_SUCCESS) return result;
    *pointer = (uintptr_t)malloc(bytes);
    atomic_fetch_add(&state.allocated, 1);
    return FA_CU_SUCCESS;
}
fa_cu_result fake_cuMemFreeAsync(fa_cu_pointer pointer, fa_cu_stream stream) {
    (void)stream;
    free((void *)(uintptr_t)pointer);
    atomic_fetch_sub(&state.allocated, 1);
    return in_context("cuMemFreeAsync");
}
fa_cu_result fake_cuMemsetD8Async(fa_cu_pointer pointer, unsigned char value, size_t bytes, fa_cu_stream stream) {
    (void)stream;
    memset((void *)(uintptr_t)pointer, value, bytes);
    return in_context("cuMemsetD8Async");
}

fa_cu_result fake_cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *data, const uint64_t *extents,
                                         const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                         int interleave, int swizzle, int l2_promotion, int fill) {
    (void)extents;
    (void)strides;
    (void)box;
    if ((uintptr_t)map % 64 != 0 || (uintptr_t)data % 16 != 0 || rank < 1 || rank > 5 || element_strides[0] != 1 ||
        interleave != FA_CU_TENSOR_MAP_INTERLEAVE_NONE || fill != FA_CU_TENSOR_MAP_FILL_ZERO)
        return ERROR_INVALID_VALUE;
    memset(map, 0, 128);
    memcpy(map, (int[]){type, swizzle, l2_promotion}, 12);
    return outcome("cuTensorMapEncodeTiled");
}

/* ---- What only the bench command calls: memory, and events between which a millisecond passes ---- */

EXPORT fa_cu_result fake_cuCtxSetCurrent(fa_cu_context context) __asm__("cuCtxSetCurrent");
EXPORT fa_cu_result fake_cuMemAlloc(fa_cu_pointer *pointer, size_t bytes) __asm__("cuMemAlloc_v2");
EXPORT fa_cu_result fake_cuMemFree(fa_cu_pointer pointer) __asm__("cuMemFree_v2");
EXPORT fa_cu_result fake_cuMemcpyHtoD(fa_cu_pointer pointer, const void *host, size_t bytes) __asm__("cuMemcpyHtoD_v2");
EXPORT fa_cu_result fake_cuEventCreate(void **event, unsigned int flags) __asm__("cuEventCreate");
EXPORT fa_cu_result fake_cuEventRecord(void *event, fa_cu_stream stream) __asm__("cuEventRecord");
EXPORT fa_cu_result fake_cuEventSynchronize(void *event) __asm__("cuEventSynchronize");
EXPORT fa_cu_result fake_cuEventElapsedTime(float *milliseconds, void *begin, void *end) __asm__("cuEventElapsedTime");

fa_cu_result fake_cuCtxSetCurrent(fa_cu_context context) {
    fake_driver_set_current(context);
    return FA_CU_SUCCESS;
}
fa_cu_result fake_cuMemAlloc(fa_cu_pointer *pointer, size_t bytes) {
    void *memory = bytes == 0 ? NULL : malloc(bytes);
    *pointer = (fa_cu_pointer)(uintptr_t)memory;
    return memory == NULL ? FA_CU_ERROR_OUT_OF_MEMORY : in_context("cuMemAlloc");
}
fa_cu_result fake_cuMemFree(fa_cu_pointer pointer) {
    free((void *)(uintptr_t)pointer);
    return in_context("cuMemFree");
}
fa_cu_result fake_cuMemcpyHtoD(fa_cu_pointer pointer, const void *host, size_t bytes) {
    memcpy((void *)(uintptr_t)pointer, host, bytes);
    return in_context("cuMemcpyHtoD");
}
fa_cu_result fake_cuEventCreate(void **event, unsigned int flags) {
    static char events[8];
    static atomic_int count;
    *event = &events[atomic_fetch_add(&count, 1) % 8];
    return flags == 0 ? in_context("cuEventCreate") : ERROR_INVALID_VALUE;
}
fa_cu_result fake_cuEventRecord(void *event, fa_cu_stream stream) {
    return event == NULL || stream != NULL ? ERROR_INVALID_VALUE : in_context("cuEventRecord");
}
fa_cu_result fake_cuEventSynchronize(void *event) { return event == NULL ? ERROR_INVALID_VALUE : FA_CU_SUCCESS; }
fa_cu_result fake_cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
    *milliseconds = 1;
    return begin == NULL || end == NULL || begin == end ? ERROR_INVALID_VALUE : FA_CU_SUCCESS;
}
