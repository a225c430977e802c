/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA driver API that the library uses, declared here so that neither the build nor the process
 * needs CUDA: libcuda.so.1 is opened when the first call asks for a GPU. Values and layouts are those of cuda.h, with
 * the driver's own names for functions, so that messages and documentation match; tests/gpu/test_driver_layout.c
 * compares them with cuda.h.
 */
#ifndef FA_GPU_DRIVER_H
#define FA_GPU_DRIVER_H

#include "flashattn.h"

#include <stddef.h>
#include <stdint.h>

typedef int fa_cu_result;
typedef int fa_cu_device;
typedef struct fa_cu_context_object *fa_cu_context;
typedef struct fa_cu_module_object *fa_cu_module;
typedef struct fa_cu_function_object *fa_cu_function;
typedef struct fa_cu_stream_object *fa_cu_stream;
typedef struct fa_cu_pool_object *fa_cu_pool;
typedef unsigned long long fa_cu_pointer; /* a device address */

enum {
    FA_CU_SUCCESS = 0,
    FA_CU_ERROR_OUT_OF_MEMORY = 2,
    FA_CU_ERROR_NO_DEVICE = 100,
    FA_CU_ERROR_NO_BINARY_FOR_GPU = 209,
    FA_CU_ERROR_UNSUPPORTED_PTX_VERSION = 222
};

enum { /* CUdevice_attribute */
       FA_CU_ATTRIBUTE_PROCESSORS = 16,
       FA_CU_ATTRIBUTE_L2_BYTES = 38,
       FA_CU_ATTRIBUTE_CAPABILITY_MAJOR = 75,
       FA_CU_ATTRIBUTE_CAPABILITY_MINOR = 76,
       FA_CU_ATTRIBUTE_SHARED_BYTES_OPTIN = 97
};

enum { FA_CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8 }; /* CUfunction_attribute */
enum { FA_CU_CAPTURE_MODE_RELAXED = 2 };              /* CUstreamCaptureMode */
enum { FA_CU_LAUNCH_CLUSTER_DIMENSION = 4 };          /* CUlaunchAttributeID */
enum { FA_CU_POOL_RELEASE_THRESHOLD = 4 };            /* CUmemPool_attribute */
enum { FA_CU_ALLOCATION_PINNED = 1 };                 /* CUmemAllocationType */
enum { FA_CU_LOCATION_DEVICE = 1 };                   /* CUmemLocationType */

typedef struct fa_cu_launch_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct {
            unsigned int x, y, z;
        } cluster;
    } value;
} fa_cu_launch_attribute;

typedef struct fa_cu_launch_config {
    unsigned int grid_x, grid_y, grid_z;
    unsigned int block_x, block_y, block_z;
    unsigned int shared_bytes;
    fa_cu_stream stream;
    fa_cu_launch_attribute *attributes;
    unsigned int attribute_count;
} fa_cu_launch_config;

typedef struct fa_cu_pool_properties {
    int allocation_type;
    int handle_types; /* 0: not shared with other processes */
    struct {
        int type;
        int id;
    } location;
    void *security_attributes;
    size_t max_bytes;
    unsigned short usage;
    unsigned char reserved[54];
} fa_cu_pool_properties;

/* cuTensorMapEncodeTiled; types and swizzles are those of fa_tensor_map_layout. */
enum { FA_CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };   /* CUtensorMapInterleave */
enum { FA_CU_TENSOR_MAP_L2_PROMOTION_256B = 3 }; /* CUtensorMapL2promotion */
enum { FA_CU_TENSOR_MAP_FILL_ZERO = 0 };         /* CUtensorMapFloatOOBfill */

/* Every function of the driver that is called: (name in struct fa_driver, symbol in libcuda, parameters). */
#define FA_DRIVER_FUNCTIONS(FUNCTION)                                                                              \
    FUNCTION(cuInit, "cuInit", (unsigned int flags))                                                               \
    FUNCTION(cuDriverGetVersion, "cuDriverGetVersion", (int *version))                                             \
    FUNCTION(cuGetErrorName, "cuGetErrorName", (fa_cu_result result, const char **name))                           \
    FUNCTION(cuGetErrorString, "cuGetErrorString", (fa_cu_result result, const char **text))                       \
    FUNCTION(cuDeviceGetCount, "cuDeviceGetCount", (int *count))                                                   \
    FUNCTION(cuDeviceGet, "cuDeviceGet", (fa_cu_device * device, int ordinal))                                     \
    FUNCTION(cuDeviceGetName, "cuDeviceGetName", (char *name, int size, fa_cu_device device))                      \
    FUNCTION(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, fa_cu_device device))       \
    FUNCTION(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (fa_cu_context * context, fa_cu_device device)) \
    FUNCTION(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (fa_cu_context context))                                     \
    FUNCTION(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (fa_cu_context * context))                                     \
    FUNCTION(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode))                  \
    FUNCTION(cuModuleLoadData, "cuModuleLoadData", (fa_cu_module * module, const void *image))                     \
    FUNCTION(cuModuleGetFunction, "cuModuleGetFunction",                                                           \
             (fa_cu_function * function, fa_cu_module module, const char *name))                                   \
    FUNCTION(cuFuncSetAttribute, "cuFuncSetAttribute", (fa_cu_function function, int attribute, int value))        \
    FUNCTION(cuLaunchKernelEx, "cuLaunchKernelEx",                                                                 \
             (const fa_cu_launch_config *config, fa_cu_function function, void **params, void **extra))            \
    FUNCTION(cuMemPoolCreate, "cuMemPoolCreate", (fa_cu_pool * pool, const fa_cu_pool_properties *properties))     \
    FUNCTION(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", (fa_cu_pool pool, int attribute, void *value))        \
    FUNCTION(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync",                                                   \
             (fa_cu_pointer * pointer, size_t bytes, fa_cu_pool pool, fa_cu_stream stream))                        \
    FUNCTION(cuMemFreeAsync, "cuMemFreeAsync", (fa_cu_pointer pointer, fa_cu_stream stream))                       \
    FUNCTION(cuMemsetD8Async, "cuMemsetD8Async",                                                                   \
             (fa_cu_pointer pointer, unsigned char value, size_t bytes, fa_cu_stream stream))                      \
    FUNCTION(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                     \
             (void *map, int type, uint32_t rank, void *data, const uint64_t *extents, const uint64_t *strides,    \
              const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int l2_promotion, \
              int fill))

typedef struct fa_driver {
    int device_count;
    int version; /* 1000 * major + 10 * minor of the CUDA that the driver serves */
#define FA_DRIVER_FIELD(name, symbol, parameters) fa_cu_result(*name) parameters;
    FA_DRIVER_FUNCTIONS(FA_DRIVER_FIELD)
#undef FA_DRIVER_FIELD
} fa_driver;

/*
 * The driver, opened and initialised by the first call of the process. FA_UNSUPPORTED with the reason if there is
 * none: it is the same reason in every later call.
 */
fa_status fa_driver_get(const fa_driver **driver);

/* fa_fail() for a call that did not return FA_CU_SUCCESS: names the call, the error and what was being done. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
fa_status
fa_driver_fail(const fa_driver *driver, fa_cu_result result, const char *call, const char *doing, ...);

/* FA_DRIVER_TRY(driver, cuMemFreeAsync, (pointer, stream), "freeing the workspace on cuda:%d", ordinal) */
#define FA_DRIVER_TRY(driver, function, arguments, ...)                                                     \
    do {                                                                                                    \
        fa_cu_result try_result = (driver)->function arguments;                                             \
        if (try_result != FA_CU_SUCCESS) return fa_driver_fail(driver, try_result, #function, __VA_ARGS__); \
    } while (0)

#endif
