/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .npy, NumPy's format of one array, versions 1.0, 2.0 and 3.0:
 *
 *     93 'NUMPY'  major minor  header length (2 bytes in 1.0, else 4; little-endian)  header  data
 *
 * The header is a Python dictionary with exactly the keys 'descr', 'fortran_order' and 'shape', padded with
 * blanks so that data begins at a multiple of 64. The versions differ in the length field and in the encoding
 * of field names, of which the types read here have none. Stricter than Python where a looser reading could
 * only help a broken file: strings without escapes, decimal sizes, nothing after the dictionary or the data.
 */
#include "file_format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char magic[] = "\x93NUMPY";
enum { MAGIC_SIZE = sizeof magic - 1, DATA_ALIGNMENT = 64 };

bool fa_npy_recognise(const uint8_t *bytes, size_t size) {
    return size >= MAGIC_SIZE && memcmp(bytes, magic, MAGIC_SIZE) == 0;
}

/* ---- The header dictionary ---- */

/* Reads the bytes [at, end) of a file. Functions return false after they have described the failure. */
typedef struct header_reader {
    const fa_tensor_file *file;
    size_t at;
    size_t end;
    fa_file_error *error;
    fa_file_status status;
} header_reader;

typedef struct npy_header {
    char descr[24];
    bool fortran_order;
    int32_t ndim;
    int64_t shape[FA_FILE_MAX_NDIM];
} npy_header;

static bool fail_expected(header_reader *reader, const char *expected) {
    const char *label = reader->file->label;
    if (reader->at == reader->end) {
        reader->status = fa_file_fail(reader->error, FA_FILE_MALFORMED, label,
                                      ".npy header ends at byte %zu; expected %s", reader->at, expected);
        return false;
    }
    uint8_t found = reader->file->bytes[reader->at];
    reader->status =
        fa_file_fail(reader->error, FA_FILE_MALFORMED, label, ".npy header has '%c' (0x%02x) at byte %zu; expected %s",
                     found >= ' ' && found <= '~' ? found : '?', found, reader->at, expected);
    return false;
}

/* The next byte that is not a blank, or 0 at the end. */
static char peek(header_reader *reader) {
    while (reader->at < reader->end) {
        char next = (char)reader->file->bytes[reader->at];
        if (next != ' ' && next != '\t' && next != '\n' && next != '\r') return next;
        reader->at++;
    }
    return '\0';
}

static bool take(header_reader *reader, char wanted) {
    if (peek(reader) != wanted) return false;
    reader->at++;
    return true;
}

static bool take_word(header_reader *reader, const char *word) {
    size_t length = strlen(word);
    (void)peek(reader);
    if (reader->end - reader->at < length) return false;
    if (memcmp(reader->file->bytes + reader->at, word, length) != 0) return false;
    reader->at += length;
    return true;
}

/* A quoted string of less than size characters, all printable ASCII, no escapes. */
static bool read_string(header_reader *reader, char *text, size_t size, const char *expected) {
    char quote = peek(reader);
    if (quote != '\'' && quote != '"') return fail_expected(reader, expected);
    reader->at++;
    size_t length = 0;
    for (; reader->at < reader->end; reader->at++) {
        char next = (char)reader->file->bytes[reader->at];
        if (next == quote) {
            reader->at++;
            text[length] = '\0';
            return true;
        }
        if (next < ' ' || next > '~' || next == '\\' || length + 1 == size) break;
        text[length++] = next;
    }
    return fail_expected(reader, "a short plain string and its closing quote");
}

static bool read_size(header_reader *reader, int64_t *size) {
    if (peek(reader) < '0' || peek(reader) > '9') return fail_expected(reader, "a size: decimal digits, not negative");
    size_t first = reader->at;
    *size = 0;
    for (; reader->at < reader->end; reader->at++) {
        int digit = reader->file->bytes[reader->at] - '0';
        if (digit < 0 || digit > 9) break;
        if (*size > (INT64_MAX - digit) / 10) return fail_expected(reader, "a size of less than 2^63");
        *size = 10 * *size + digit;
    }
    if (reader->at - first > 1 && reader->file->bytes[first] == '0') {
        reader->at = first;
        return fail_expected(reader, "a size without leading zeros");
    }
    (void)take(reader, 'L'); /* files from Python 2 on some systems have (3L, 4L) */
    return true;
}

/* A Python tuple: (), (3,), (3, 4) or (3, 4,). (3) is not a tuple. */
static bool read_shape(header_reader *reader, npy_header *header) {
    if (!take(reader, '(')) return fail_expected(reader, "'(' of the shape");
    header->ndim = 0;
    bool comma = true;
    while (!take(reader, ')')) {
        if (!comma) return fail_expected(reader, "',' or ')' in the shape");
        if (header->ndim == FA_FILE_MAX_NDIM) {
            reader->status =
                fa_file_fail(reader->error, FA_FILE_UNSUPPORTED, reader->file->label,
                             ".npy shape has more than %d dimensions at byte %zu", FA_FILE_MAX_NDIM, reader->at);
            return false;
        }
        if (!read_size(reader, &header->shape[header->ndim])) return false;
        header->ndim++;
        comma = take(reader, ',');
    }
    if (header->ndim == 1 && !comma) {
        reader->at--; /* the ')' */
        return fail_expected(reader, "',' after the size, as in (3,)");
    }
    return true;
}

static bool read_descr(header_reader *reader, npy_header *header) {
    if (peek(reader) == '[') {
        reader->status =
            fa_file_fail(reader->error, FA_FILE_UNSUPPORTED, reader->file->label,
                         ".npy descr at byte %zu is a list of fields; expected one element type", reader->at);
        return false;
    }
    return read_string(reader, header->descr, sizeof header->descr, "the element type, as '<f4'");
}

static bool read_bool(header_reader *reader, bool *value) {
    *value = take_word(reader, "True");
    return *value || take_word(reader, "False") || fail_expected(reader, "True or False");
}

static bool read_dictionary(header_reader *reader, npy_header *header) {
    bool has_descr = false, has_fortran_order = false, has_shape = false;
    if (!take(reader, '{')) return fail_expected(reader, "'{'");
    bool comma = true;
    while (!take(reader, '}')) {
        if (!comma) return fail_expected(reader, "',' or '}'");
        (void)peek(reader);
        size_t key_at = reader->at;
        char key[24];
        bool *seen = NULL;
        if (!read_string(reader, key, sizeof key, "a key")) return false;
        if (strcmp(key, "descr") == 0) seen = &has_descr;
        if (strcmp(key, "fortran_order") == 0) seen = &has_fortran_order;
        if (strcmp(key, "shape") == 0) seen = &has_shape;
        if (!seen || *seen) {
            reader->status =
                fa_file_fail(reader->error, FA_FILE_MALFORMED, reader->file->label,
                             ".npy header has %s key '%s' at byte %zu; expected 'descr', 'fortran_order' and "
                             "'shape' once each",
                             seen ? "a second" : "the unknown", key, key_at);
            return false;
        }
        *seen = true;
        if (!take(reader, ':')) return fail_expected(reader, "':'");
        if (seen == &has_descr && !read_descr(reader, header)) return false;
        if (seen == &has_fortran_order && !read_bool(reader, &header->fortran_order)) return false;
        if (seen == &has_shape && !read_shape(reader, header)) return false;
        comma = take(reader, ',');
    }
    if (!has_descr || !has_fortran_order || !has_shape) {
        reader->status =
            fa_file_fail(reader->error, FA_FILE_MALFORMED, reader->file->label, ".npy header has no key '%s'",
                         !has_descr           ? "descr"
                         : !has_fortran_order ? "fortran_order"
                                              : "shape");
        return false;
    }
    (void)peek(reader);
    return reader->at == reader->end || fail_expected(reader, "only blanks after the dictionary");
}

/* ---- Reading ---- */

/* descr is the byte order and then the kind and size: '<f4', '|b1'. */
static fa_file_status read_dtype(const fa_tensor_file *file, const char *descr, const fa_file_dtype **dtype,
                                 fa_file_error *error) {
    const char order = descr[0];
    *dtype = order ? fa_file_dtype_from_npy(descr + 1) : NULL;
    if (!*dtype)
        return fa_file_fail(error, FA_FILE_UNSUPPORTED, file->label,
                            ".npy element type '%s' is not read here; expected <f4, <f2, <f8, <V2 (bfloat16), "
                            "<i4, <i8, |i1, |u1 or |b1",
                            descr);
    bool one_byte = (*dtype)->dtype.bits == 8;
    bool opaque = descr[1] == 'V'; /* raw bytes to NumPy, which may give them no order */
    if (order == '>' && !one_byte)
        return fa_file_fail(error, FA_FILE_UNSUPPORTED, file->label,
                            ".npy element type '%s' is big-endian; expected little-endian, since data is used "
                            "where it lies",
                            descr);
    if (order != '<' && !(order == '|' && (one_byte || opaque)))
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            ".npy element type '%s' has byte order '%c'; expected '<', or '|' if there is none", descr,
                            order);
    return FA_FILE_OK;
}

/* Where the header lies, by the fixed fields before it. */
static fa_file_status read_prefix(const fa_tensor_file *file, size_t *begin, size_t *end, fa_file_error *error) {
    const uint8_t *version = file->bytes + MAGIC_SIZE;
    if (file->size < MAGIC_SIZE + 2)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label, ".npy ends at byte %zu, in its version", file->size);
    if (version[0] < 1 || version[0] > 3 || version[1] != 0)
        return fa_file_fail(error, FA_FILE_UNSUPPORTED, file->label, ".npy version is %d.%d; expected 1.0, 2.0 or 3.0",
                            version[0], version[1]);
    size_t length_size = version[0] == 1 ? 2 : 4;
    *begin = MAGIC_SIZE + 2 + length_size;
    if (file->size < *begin)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label, ".npy ends at byte %zu, in its header length",
                            file->size);
    uint32_t length = 0;
    memcpy(&length, version + 2, length_size);
    if (length > file->size - *begin)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            ".npy header should take %" PRIu32 " bytes from byte %zu, but the file ends after "
                            "%zu of them",
                            length, *begin, file->size - *begin);
    *end = *begin + length;
    return FA_FILE_OK;
}

fa_file_status fa_npy_parse(fa_tensor_file *file, fa_file_error *error) {
    header_reader reader = {.file = file, .error = error, .status = FA_FILE_OK};
    fa_file_status status = read_prefix(file, &reader.at, &reader.end, error);
    if (status != FA_FILE_OK) return status;
    npy_header header = {.ndim = 0};
    if (!read_dictionary(&reader, &header)) return reader.status;

    fa_tensor_record record = {.name = "",
                               .dtype_name = header.descr,
                               .ndim = header.ndim,
                               .fortran_order = header.fortran_order,
                               .offset = reader.end};
    memcpy(record.shape, header.shape, (size_t)header.ndim * sizeof header.shape[0]);
    status = read_dtype(file, header.descr, &record.dtype, error);
    if (status != FA_FILE_OK) return status;
    if (!fa_file_shape_bytes(record.ndim, record.shape, record.dtype->dtype.bits / 8, &record.bytes))
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            ".npy shape needs more than 2^63 bytes; the file has %zu", file->size);
    uint64_t present = file->size - record.offset;
    if (present != record.bytes)
        return fa_file_fail(error, FA_FILE_MALFORMED, file->label,
                            ".npy has %" PRIu64 " bytes of data from byte %" PRIu64 " on; its shape and type "
                            "need exactly %" PRIu64,
                            present, record.offset, record.bytes);
    return fa_file_add_tensor(file, &record, error);
}

/* ---- Writing ---- */

fa_file_status fa_npy_write(fa_atomic_output *output, const fa_named_tensor *named, fa_file_error *error) {
    const fa_tensor *tensor = named->tensor;
    /* "9223372036854775807, " for each dimension, and less than 128 bytes around them: far below the 65535
     * bytes of version 1.0. */
    char header[128 + FA_FILE_MAX_NDIM * 21 + DATA_ALIGNMENT] = "\x93NUMPY\x01";
    const size_t dictionary = MAGIC_SIZE + 4;
    size_t at = dictionary;
    at += (size_t)snprintf(header + at, sizeof header - at, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                           tensor->dtype.bits == 8 ? '|' : '<', fa_file_dtype_of(tensor->dtype)->npy);
    for (int32_t i = 0; i < tensor->ndim; i++)
        at += (size_t)snprintf(header + at, sizeof header - at, "%s%" PRId64, i == 0 ? "" : ", ", tensor->shape[i]);
    at += (size_t)snprintf(header + at, sizeof header - at, tensor->ndim == 1 ? ",), }" : "), }");
    size_t size = (at + 1 + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
    memset(header + at, ' ', size - at);
    header[size - 1] = '\n';
    uint16_t length = (uint16_t)(size - dictionary);
    memcpy(header + MAGIC_SIZE + 2, &length, sizeof length);

    fa_file_status status = fa_atomic_output_write(output, header, size, error);
    return status == FA_FILE_OK ? fa_file_write_elements(output, tensor, error) : status;
}
