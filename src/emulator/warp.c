/* SPDX-License-Identifier: Apache-2.0 */
/* Operations in which the 32 lanes of a warp exchange values: shuffles, votes, elect, ldmatrix and stmatrix. The last
 * lane to come does the work for all. */
#include <string.h>

#include "../element.h"
#include "state.h"

static uint32_t source_lane(fa_shuffle kind, uint32_t lane, uint32_t argument) {
    switch (kind) {
    case FA_SHUFFLE_XOR: return lane ^ (argument & 31);
    case FA_SHUFFLE_INDEX: return argument & 31;
    case FA_SHUFFLE_DOWN: return lane + argument < FA_LANES ? lane + argument : lane;
    case FA_SHUFFLE_UP: return lane >= argument ? lane - argument : lane;
    }
    return lane;
}

uint32_t fa_emulated_shuffle(fa_shuffle kind, uint32_t value, uint32_t argument) {
    fa_thread *self = fa_current();
    fa_lane *lanes = self->warp->lanes;
    fa_check_value("shuffle", fa_float_from_bits(value));
    lanes[self->lane].value[0] = value;
    lanes[self->lane].value[1] = argument;
    lanes[self->lane].value[2] = (uint32_t)kind;
    if (fa_meet_warp(self, FA_MEET_SHUFFLE)) {
        self->block->worker->counters.shuffles++;
        for (uint32_t i = 0; i < FA_LANES; i++) {
            if (lanes[i].value[2] != (uint32_t)kind)
                fa_emulated_fail("shuffle", "lanes %u and %u execute different kinds of shuffle", self->lane, i);
            lanes[i].result = lanes[source_lane(kind, i, lanes[i].value[1])].value[0];
        }
        fa_wake_warp(self->warp);
    }
    return lanes[self->lane].result;
}

uint32_t fa_emulated_ballot(bool predicate) {
    fa_thread *self = fa_current();
    fa_lane *lanes = self->warp->lanes;
    lanes[self->lane].value[0] = predicate;
    if (fa_meet_warp(self, FA_MEET_VOTE)) {
        uint32_t ballot = 0;
        self->block->worker->counters.votes++;
        for (uint32_t i = 0; i < FA_LANES; i++) ballot |= lanes[i].value[0] << i;
        for (uint32_t i = 0; i < FA_LANES; i++) lanes[i].result = ballot;
        fa_wake_warp(self->warp);
    }
    return lanes[self->lane].result;
}

/* Which lane wins depends on the seed: a kernel may not rely on lane 0. */
bool fa_emulated_elect_one(void) {
    fa_thread *self = fa_current();
    fa_require_sm(90, "elect_one");
    if (fa_meet_warp(self, FA_MEET_ELECT)) fa_wake_warp(self->warp);
    return self->lane == self->block->worker->elected_lane;
}

/* ---- Matrices of 8 rows of 16 bytes ---- */

static const char *matrix_name(bool store, uint32_t matrices) {
    static const char *const names[2][3] = {{"ldmatrix_x1", "ldmatrix_x2", "ldmatrix_x4"},
                                            {"stmatrix_x1", "stmatrix_x2", "stmatrix_x4"}};
    return names[store][matrices / 2];
}

static void check_same(const fa_lane *lanes, uint32_t lane, const char *operation) {
    for (uint32_t i = 0; i < FA_LANES; i++)
        if (lanes[i].value[1] != lanes[lane].value[1])
            fa_emulated_fail(operation, "lanes %u and %u execute different forms of it", lane, i);
}

/* Element (row, column) of a matrix lies in lane 4 row + column / 2; with trans row and column change places. */
static void load_matrix(const fa_thread *self, const char *operation, fa_lane *lanes, uint32_t matrix, bool trans) {
    uint16_t elements[8][8];
    for (uint32_t row = 0; row < 8; row++) {
        uint32_t lane = 8 * matrix + row;
        fa_thread *reader = &self->warp->threads[lane];
        fa_block *block;
        uint32_t offset = fa_shared_offset(reader, operation, lanes[lane].value[0], 16, 16, &block);
        fa_shadow_read(reader, operation, block, offset, 16);
        memcpy(elements[row], block->shared + offset, 16);
    }
    for (uint32_t i = 0; i < FA_LANES; i++) {
        uint32_t p = i / 4, q = i % 4;
        uint32_t low = trans ? elements[2 * q][p] : elements[p][2 * q];
        uint32_t high = trans ? elements[2 * q + 1][p] : elements[p][2 * q + 1];
        ((uint32_t *)lanes[i].out)[matrix] = low | high << 16;
    }
}

void fa_emulated_ldmatrix(uint32_t *destination, uint32_t row_address, uint32_t matrices, bool trans) {
    const char *operation = matrix_name(false, matrices);
    fa_thread *self = fa_current();
    fa_lane *lanes = self->warp->lanes;
    lanes[self->lane].value[0] = row_address;
    lanes[self->lane].value[1] = matrices << 1 | trans;
    lanes[self->lane].out = destination;
    if (!fa_meet_warp(self, FA_MEET_LDMATRIX)) return;
    check_same(lanes, self->lane, operation);
    for (uint32_t matrix = 0; matrix < matrices; matrix++) load_matrix(self, operation, lanes, matrix, trans);
    self->block->worker->counters.shared_bytes_read += matrices * 128;
    fa_wake_warp(self->warp);
}

static void store_matrix(const fa_thread *self, const char *operation, const fa_lane *lanes, uint32_t matrix,
                         bool trans) {
    uint16_t elements[8][8];
    for (uint32_t i = 0; i < FA_LANES; i++) {
        uint32_t p = i / 4, q = i % 4;
        uint32_t pair = ((const uint32_t *)lanes[i].in[0])[matrix];
        uint16_t *low = trans ? &elements[2 * q][p] : &elements[p][2 * q];
        uint16_t *high = trans ? &elements[2 * q + 1][p] : &elements[p][2 * q + 1];
        *low = (uint16_t)pair;
        *high = (uint16_t)(pair >> 16);
    }
    for (uint32_t row = 0; row < 8; row++) {
        uint32_t lane = 8 * matrix + row;
        fa_thread *writer = &self->warp->threads[lane];
        fa_block *block;
        uint32_t offset = fa_shared_offset(writer, operation, lanes[lane].value[0], 16, 16, &block);
        fa_shadow_write(writer, operation, block, offset, 16);
        memcpy(block->shared + offset, elements[row], 16);
    }
}

void fa_emulated_stmatrix(uint32_t row_address, const uint32_t *source, uint32_t matrices, bool trans) {
    const char *operation = matrix_name(true, matrices);
    fa_thread *self = fa_current();
    fa_lane *lanes = self->warp->lanes;
    fa_require_sm(90, operation);
    lanes[self->lane].value[0] = row_address;
    lanes[self->lane].value[1] = matrices << 1 | trans;
    lanes[self->lane].in[0] = source;
    if (!fa_meet_warp(self, FA_MEET_STMATRIX)) return;
    check_same(lanes, self->lane, operation);
    for (uint32_t matrix = 0; matrix < matrices; matrix++) store_matrix(self, operation, lanes, matrix, trans);
    self->block->worker->counters.shared_bytes_written += matrices * 128;
    fa_wake_warp(self->warp);
}
