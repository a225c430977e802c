/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The declarations of gpu/driver.h against cuda.h; compiled where CUDA's headers are. Nothing to run: it compiles or
 * not.
 */
#include "gpu/driver.h"

#include <cuda.h>

#include <assert.h>

#define SAME_VALUE(ours, theirs) static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
#define SAME_FIELD(ours, field, theirs, their_field)                                    \
    static_assert(offsetof(ours, field) == offsetof(theirs, their_field) &&             \
                      sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->their_field), \
                  #ours "." #field " is not " #theirs "." #their_field)

SAME_VALUE(FA_CU_SUCCESS, CUDA_SUCCESS);
SAME_VALUE(FA_CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(FA_CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(FA_CU_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_VALUE(FA_CU_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME_VALUE(FA_CU_ATTRIBUTE_PROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(FA_CU_ATTRIBUTE_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_VALUE(FA_CU_ATTRIBUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(FA_CU_ATTRIBUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(FA_CU_ATTRIBUTE_SHARED_BYTES_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME_VALUE(FA_CU_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(FA_CU_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(FA_CU_LAUNCH_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME_VALUE(FA_CU_POOL_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
SAME_VALUE(FA_CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_VALUE(FA_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_VALUE(FA_CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME_VALUE(FA_CU_TENSOR_MAP_L2_PROMOTION_256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME_VALUE(FA_CU_TENSOR_MAP_FILL_ZERO, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

static_assert(sizeof(fa_cu_device) == sizeof(CUdevice) && sizeof(fa_cu_pointer) == sizeof(CUdeviceptr), "scalars");
static_assert(sizeof(fa_cu_launch_config) == sizeof(CUlaunchConfig), "CUlaunchConfig");
SAME_FIELD(fa_cu_launch_config, grid_x, CUlaunchConfig, gridDimX);
SAME_FIELD(fa_cu_launch_config, block_x, CUlaunchConfig, blockDimX);
SAME_FIELD(fa_cu_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_FIELD(fa_cu_launch_config, stream, CUlaunchConfig, hStream);
SAME_FIELD(fa_cu_launch_config, attributes, CUlaunchConfig, attrs);
SAME_FIELD(fa_cu_launch_config, attribute_count, CUlaunchConfig, numAttrs);
static_assert(sizeof(fa_cu_launch_attribute) == sizeof(CUlaunchAttribute), "CUlaunchAttribute");
SAME_FIELD(fa_cu_launch_attribute, id, CUlaunchAttribute, id);
SAME_FIELD(fa_cu_launch_attribute, value, CUlaunchAttribute, value);
SAME_FIELD(fa_cu_launch_attribute, value.cluster.y, CUlaunchAttribute, value.clusterDim.y);
static_assert(sizeof(fa_cu_pool_properties) == sizeof(CUmemPoolProps), "CUmemPoolProps");
SAME_FIELD(fa_cu_pool_properties, allocation_type, CUmemPoolProps, allocType);
SAME_FIELD(fa_cu_pool_properties, handle_types, CUmemPoolProps, handleTypes);
SAME_FIELD(fa_cu_pool_properties, location.type, CUmemPoolProps, location.type);
SAME_FIELD(fa_cu_pool_properties, location.id, CUmemPoolProps, location.id);
SAME_FIELD(fa_cu_pool_properties, security_attributes, CUmemPoolProps, win32SecurityAttributes);
SAME_FIELD(fa_cu_pool_properties, max_bytes, CUmemPoolProps, maxSize);

int main(void) { return 0; }
