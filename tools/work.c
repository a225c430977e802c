/* SPDX-License-Identifier: Apache-2.0 */
/* Counted work, for people: see work.h. */
#include "work.h"

#include "message.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef enum unit { BYTES, FLOPS, TIMES } unit;

#define QUANTITY(member, text, kind) \
    { #member, text, kind, offsetof(fa_machine_work, member) }

static const struct {
    const char *json, *name;
    unit unit;
    size_t offset;
} quantities[] = {
    QUANTITY(global_bytes_read, "global memory, read", BYTES),
    QUANTITY(global_bytes_written, "global memory, written", BYTES),
    QUANTITY(async_copy_bytes, "by asynchronous copies", BYTES),
    QUANTITY(shared_bytes_read, "shared memory, read", BYTES),
    QUANTITY(shared_bytes_written, "shared memory, written", BYTES),
    QUANTITY(tensor_flops, "tensor cores", FLOPS),
    QUANTITY(exp2_calls, "exp2 (threads)", TIMES),
    QUANTITY(other_special_calls, "log, reciprocal (threads)", TIMES),
    QUANTITY(shuffles, "shuffles (warps)", TIMES),
    QUANTITY(votes, "votes (warps)", TIMES),
    QUANTITY(barriers, "barriers (warps)", TIMES),
    QUANTITY(mbarrier_arrivals, "mbarrier arrivals (threads)", TIMES),
    QUANTITY(mbarrier_waits, "mbarrier waits (threads)", TIMES),
    QUANTITY(global_atomics, "global atomics (threads)", TIMES),
};
enum { QUANTITIES = sizeof quantities / sizeof quantities[0] };

static uint64_t *quantity(fa_machine_work *work, int index) {
    return (uint64_t *)(void *)((char *)work + quantities[index].offset);
}

static uint64_t value_of(const fa_machine_work *work, int index) {
    uint64_t x;
    memcpy(&x, (const char *)work + quantities[index].offset, sizeof x);
    return x;
}

int work_read(fa_machine_work *work) {
    const fa_device cpu = {FA_DEVICE_CPU, 0};
    *work = (fa_machine_work){.size = sizeof *work};
    return fa_machine_count(cpu, work) == FA_OK ? EXIT_CODE_OK : fail_library();
}

void work_subtract(fa_machine_work *work, const fa_machine_work *before, int64_t calls) {
    for (int i = 0; i < QUANTITIES; i++)
        *quantity(work, i) = (*quantity(work, i) - value_of(before, i)) / (uint64_t)calls;
}

const char *work_name(int index) { return index < QUANTITIES ? quantities[index].name : NULL; }
const char *work_json_name(int index) { return index < QUANTITIES ? quantities[index].json : NULL; }

/* 1234567 as 1,234,567 */
static void grouped(uint64_t x, char *text, size_t size) {
    char digits[24];
    int count = snprintf(digits, sizeof digits, "%" PRIu64, x);
    size_t used = 0;
    for (int i = 0; i < count && used + 2 < size; i++) {
        if (i > 0 && (count - i) % 3 == 0) text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
}

void work_text(const fa_machine_work *work, int index, char *text, size_t size) {
    double x = (double)value_of(work, index);
    switch (quantities[index].unit) {
    case BYTES:
        if (x < 1e6)
            (void)snprintf(text, size, "%.4g kB", x * 1e-3);
        else
            (void)snprintf(text, size, "%.4g MB", x * 1e-6);
        break;
    case FLOPS: (void)snprintf(text, size, "%.4g GFLOP", x * 1e-9); break;
    case TIMES: grouped(value_of(work, index), text, size); break;
    }
}

json_t *work_json(const fa_machine_work *work) {
    json_t *object = json_object();
    for (int i = 0; i < QUANTITIES; i++)
        (void)json_object_set_new(object, quantities[i].json, json_integer((json_int_t)value_of(work, i)));
    return object;
}
