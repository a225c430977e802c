/* SPDX-License-Identifier: Apache-2.0 */
/* The interface over both formats: mapping, choice of format, look-up, writing. See tensor_file.h. */
#define _XOPEN_SOURCE 700

#include "file_format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Reading ---- */

static fa_file_status map(const char *path, const uint8_t **bytes, size_t *size, fa_file_error *error) {
    /* O_NONBLOCK: opening a named pipe must not wait for somebody to write to it. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) return fa_file_fail(error, FA_FILE_SYSTEM_ERROR, path, "cannot be opened: %s", strerror(errno));
    fa_file_status result = FA_FILE_OK;
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        result = fa_file_fail(error, FA_FILE_SYSTEM_ERROR, path, "cannot be examined: %s", strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        result = fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                              "is a directory, a pipe or a device; only a regular file can be mapped");
    } else if (status.st_size == 0) {
        result = fa_file_fail(error, FA_FILE_MALFORMED, path, "is empty; expected .npy or .safetensors");
    } else if ((uintmax_t)status.st_size > SIZE_MAX) {
        result = fa_file_fail(error, FA_FILE_UNSUPPORTED, path, "has %jd bytes, more than this machine can address",
                              (intmax_t)status.st_size);
    } else {
        *size = (size_t)status.st_size;
        void *mapping = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (mapping == MAP_FAILED)
            result = fa_file_fail(error, FA_FILE_SYSTEM_ERROR, path, "cannot be mapped: %s", strerror(errno));
        else
            *bytes = mapping;
    }
    (void)close(descriptor); /* the mapping stays */
    return result;
}

static fa_file_status fail_unrecognised(const fa_tensor_file *file, fa_file_error *error) {
    if (file->size >= 4 && memcmp(file->bytes, "PK\3\4", 4) == 0)
        return fa_file_fail(error, FA_FILE_UNSUPPORTED, file->label,
                            "is a zip archive, as .npz is; extract the .npy files that it holds");
    return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                        "is neither .npy (which begins with 93 'NUMPY') nor .safetensors (8 bytes of header "
                        "length, then '{'); it has %zu bytes",
                        file->size);
}

fa_file_status fa_tensor_file_parse(const void *bytes, size_t size, const char *label, fa_tensor_file **file,
                                    fa_file_error *error) {
    *file = NULL;
    fa_tensor_file *parsed = calloc(1, sizeof *parsed);
    if (!parsed) return fa_file_fail_memory(error, label);
    parsed->bytes = bytes;
    parsed->size = size;
    parsed->label = strdup(label);
    fa_file_status status;
    if (!parsed->label)
        status = fa_file_fail_memory(error, label);
    else if (fa_npy_recognise(bytes, size))
        status = fa_npy_parse(parsed, error);
    else if (fa_safetensors_recognise(bytes, size))
        status = fa_safetensors_parse(parsed, error);
    else
        status = fail_unrecognised(parsed, error);
    if (status != FA_FILE_OK) {
        fa_tensor_file_close(parsed);
        return status;
    }
    *file = parsed;
    return FA_FILE_OK;
}

fa_file_status fa_tensor_file_open(const char *path, fa_tensor_file **file, fa_file_error *error) {
    *file = NULL;
    const uint8_t *bytes = NULL;
    size_t size = 0;
    fa_file_status status = map(path, &bytes, &size, error);
    if (status != FA_FILE_OK) return status;
    status = fa_tensor_file_parse(bytes, size, path, file, error);
    if (status != FA_FILE_OK) {
        (void)munmap((void *)bytes, size);
        return status;
    }
    (*file)->mapped = true;
    return FA_FILE_OK;
}

void fa_tensor_file_close(fa_tensor_file *file) {
    if (!file) return;
    for (size_t i = 0; i < file->count; i++) {
        free(file->tensors[i].name);
        free(file->tensors[i].tensor.shape); /* strides are in the same allocation */
    }
    free(file->tensors);
    if (file->mapped) (void)munmap((void *)file->bytes, file->size);
    free(file->label);
    free(file);
}

size_t fa_tensor_file_count(const fa_tensor_file *file) { return file->count; }

const fa_file_tensor *fa_tensor_file_at(const fa_tensor_file *file, size_t index) { return &file->tensors[index]; }

fa_file_status fa_tensor_file_find(const fa_tensor_file *file, const char *name, fa_tensor *tensor,
                                   fa_file_error *error) {
    const fa_file_tensor *found = NULL;
    if (!name) {
        if (file->count != 1)
            return fa_file_fail(error, FA_FILE_NOT_FOUND, file->label, "holds %zu tensors; one of them must be named",
                                file->count);
        found = &file->tensors[0];
    }
    for (size_t i = 0; !found && i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0) found = &file->tensors[i];
    if (!found)
        return fa_file_fail(error, FA_FILE_NOT_FOUND, file->label, "holds no tensor named '%.200s' among its %zu", name,
                            file->count);
    if (!found->readable)
        return fa_file_fail(error, FA_FILE_UNSUPPORTED, file->label,
                            "tensor '%.200s' is of type %s, which is not read here", found->name, found->dtype_name);
    *tensor = found->tensor;
    return FA_FILE_OK;
}

/* ---- Writing ---- */

static bool ends_with(const char *text, const char *suffix) {
    size_t length = strlen(text), suffix_length = strlen(suffix);
    return length >= suffix_length && strcmp(text + length - suffix_length, suffix) == 0;
}

static fa_file_status check_tensor(const char *path, const fa_named_tensor *named, fa_file_error *error) {
    const fa_tensor *tensor = named->tensor;
    const char *name = named->name ? named->name : "";
    if (tensor->ndim < 0 || tensor->ndim > FA_FILE_MAX_NDIM)
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                            "tensor '%.200s' has %" PRId32 " dimensions; 0 to %d can be written", name, tensor->ndim,
                            FA_FILE_MAX_NDIM);
    if (tensor->device.device_type != FA_DEVICE_CPU)
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                            "tensor '%.200s' is on device type %" PRId32
                            "; only tensors on the CPU (%d) can be written",
                            name, tensor->device.device_type, FA_DEVICE_CPU);
    const fa_file_dtype *dtype = fa_file_dtype_of(tensor->dtype);
    if (!dtype)
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                            "tensor '%.200s' has element type code %d, bits %d, lanes %d, which cannot be "
                            "written",
                            name, tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
    for (int32_t i = 0; i < tensor->ndim; i++)
        if (tensor->shape[i] < 0)
            return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                                "tensor '%.200s' has size %" PRId64 " in dimension %" PRId32, name, tensor->shape[i],
                                i);
    uint64_t bytes;
    if (!fa_file_shape_bytes(tensor->ndim, tensor->shape, dtype->dtype.bits / 8, &bytes))
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                            "tensor '%.200s' has a shape of more than 2^63 bytes", name);
    if (bytes > 0 && !tensor->data)
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path, "tensor '%.200s' has no data", name);
    return FA_FILE_OK;
}

static fa_file_status check_npy(const char *path, const fa_named_tensor *tensors, size_t count, size_t metadata_count,
                                fa_file_error *error) {
    if (count != 1 || metadata_count != 0)
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                            "%zu tensors and %zu entries of metadata cannot be written; .npy holds one "
                            "tensor and no metadata",
                            count, metadata_count);
    const fa_file_dtype *dtype = fa_file_dtype_of(tensors[0].tensor->dtype);
    if (!dtype->npy)
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                            "element type %s cannot be written to .npy; .safetensors holds it", dtype->safetensors);
    return FA_FILE_OK;
}

fa_file_status fa_tensor_file_write(const char *path, const fa_named_tensor *tensors, size_t count,
                                    const fa_file_metadata *metadata, size_t metadata_count, fa_file_error *error) {
    bool npy = ends_with(path, ".npy");
    if (!npy && !ends_with(path, ".safetensors"))
        return fa_file_fail(error, FA_FILE_INVALID_ARGUMENT, path,
                            "the extension must be .npy or .safetensors, to tell the format to write");
    fa_file_status status = FA_FILE_OK;
    for (size_t i = 0; status == FA_FILE_OK && i < count; i++) status = check_tensor(path, &tensors[i], error);
    if (status == FA_FILE_OK && npy) status = check_npy(path, tensors, count, metadata_count, error);
    if (status != FA_FILE_OK) return status;

    fa_atomic_output output;
    status = fa_atomic_output_open(&output, path, error);
    if (status != FA_FILE_OK) return status;
    status = npy ? fa_npy_write(&output, tensors, error)
                 : fa_safetensors_write(&output, tensors, count, metadata, metadata_count, error);
    if (status != FA_FILE_OK) {
        fa_atomic_output_discard(&output);
        return status;
    }
    return fa_atomic_output_commit(&output, error);
}
