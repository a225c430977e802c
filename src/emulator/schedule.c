/* SPDX-License-Identifier: Apache-2.0 */
/* Which fiber runs next. A thread runs until it must wait; then one of the ready threads is chosen by the seeded random
 * numbers, preferably of the same warp. When nobody is ready, a copy in flight that somebody waits for is completed;
 * when there is none either, the cluster is deadlocked, and the report lists who waits for what. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "state.h"

_Thread_local const fa_emulated_place *fa_emulated_self;

enum { STAY_IN_WARP = 512 }; /* leave a warp with ready lanes once in so many choices */

uint32_t fa_random(fa_worker *worker) {
    uint64_t x = worker->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    worker->random = x;
    return (uint32_t)(x >> 16);
}

/* ---- Failure ---- */

static void append(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(char *text, const char *format, ...) {
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, FA_EMULATOR_TEXT - used, format, arguments);
    va_end(arguments);
}

_Noreturn static void leave(fa_worker *worker, fa_emulator_status status) {
    worker->status = status;
    fa_fiber_switch(&worker->current->fiber, &worker->main);
    __builtin_unreachable();
}

static void begin_text(fa_worker *worker, const fa_block *block) {
    snprintf(worker->text, sizeof worker->text, "kernel %s, block (%u,%u,%u)", worker->launch->kernel->name,
             block->index[0], block->index[1], block->index[2]);
}

_Noreturn void fa_emulated_fail(const char *operation, const char *format, ...) {
    fa_thread *self = fa_current();
    fa_worker *worker = self->block->worker;
    begin_text(worker, self->block);
    append(worker->text, ", warp %u lane %u: %s: ", self->warp->index, self->lane, operation);
    size_t used = strlen(worker->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(worker->text + used, sizeof worker->text - used, format, arguments);
    va_end(arguments);
    leave(worker, FA_EMULATOR_RULE_BROKEN);
}

_Noreturn void fa_emulated_fail_memory(void) {
    fa_worker *worker = fa_current()->block->worker;
    snprintf(worker->text, sizeof worker->text, "kernel %s: the host ran out of memory", worker->launch->kernel->name);
    leave(worker, FA_EMULATOR_OUT_OF_MEMORY);
}

const char *fa_meet_name(fa_meet meet) {
    static const char *const names[] = {
        [FA_MEET_NONE] = "nothing",
        [FA_MEET_WARP_SYNC] = "warp_sync",
        [FA_MEET_SHUFFLE] = "shuffle",
        [FA_MEET_VOTE] = "vote",
        [FA_MEET_ELECT] = "elect_one",
        [FA_MEET_LDMATRIX] = "ldmatrix",
        [FA_MEET_STMATRIX] = "stmatrix",
        [FA_MEET_MMA] = "mma",
        [FA_MEET_BLOCK_SYNC] = "block_sync",
        [FA_MEET_NAMED_SYNC] = "named_barrier_sync",
        [FA_MEET_NAMED_ARRIVE] = "named_barrier_arrive",
        [FA_MEET_CLUSTER_ARRIVE] = "cluster_arrive",
        [FA_MEET_CLUSTER_WAIT] = "cluster_wait",
        [FA_MEET_REGISTERS] = "set_max_registers",
        [FA_MEET_WGMMA] = "wgmma",
        [FA_MEET_WGMMA_FENCE] = "wgmma_fence",
        [FA_MEET_WGMMA_COMMIT] = "wgmma_commit_group",
        [FA_MEET_WGMMA_WAIT] = "wgmma_wait_group",
    };
    return names[meet];
}

/* ---- Deadlock ---- */

static void describe_wait(char *text, const fa_thread *thread) {
    const fa_block *block = thread->block;
    switch (thread->wait) {
    case FA_WAIT_NOTHING: append(text, " polls"); break;
    case FA_WAIT_WARP: append(text, " waits in %s for the other lanes", fa_meet_name(thread->warp->meet)); break;
    case FA_WAIT_WARPGROUP: {
        const fa_warpgroup *group = thread->wait_object;
        append(text, " waits in %s for the other warps of its warpgroup", fa_meet_name(group->meet));
        break;
    }
    case FA_WAIT_BARRIER: {
        const fa_named_barrier *barrier = thread->wait_object;
        long id = barrier - block->named;
        if (id == 0)
            append(text, " waits in block_sync");
        else
            append(text, " waits at named barrier %ld", id);
        append(text, " (%u of %u threads have come)", barrier->arrived, barrier->threads);
        break;
    }
    case FA_WAIT_MBARRIER: {
        const fa_mbarrier *barrier = thread->wait_object;
        append(text,
               " waits for parity %u of mbarrier 0x%x (in phase %u: %u of %u arrivals missing, %lld bytes missing)",
               thread->wait_parity, barrier->address, barrier->phase, barrier->pending, barrier->expected,
               (long long)barrier->transactions);
        break;
    }
    case FA_WAIT_CLUSTER: append(text, " waits in cluster_wait"); break;
    case FA_WAIT_REGISTERS: append(text, " waits in set_max_registers_increase"); break;
    case FA_WAIT_EXITED: append(text, " has returned"); break;
    }
}

static bool same_wait(const fa_thread *a, const fa_thread *b) {
    if (a->block != b->block || a->wait != b->wait) return false;
    if (a->wait == FA_WAIT_NOTHING) return true;
    if (a->wait == FA_WAIT_WARP) return a->warp->meet == b->warp->meet;
    if (a->wait == FA_WAIT_MBARRIER && a->wait_parity != b->wait_parity) return false;
    return a->wait_object == b->wait_object;
}

/* Threads with the same wait that follow each other are listed as one. */
_Noreturn static void deadlock(fa_worker *worker) {
    snprintf(worker->text, sizeof worker->text, "kernel %s: deadlock:", worker->launch->kernel->name);
    for (uint32_t first = 0, next; first < worker->thread_count; first = next) {
        const fa_thread *a = &worker->threads[first];
        for (next = first + 1; next < worker->thread_count; next++)
            if (!same_wait(a, &worker->threads[next])) break;
        const fa_thread *b = &worker->threads[next - 1];
        append(worker->text, "%s block (%u,%u,%u) warp %u lane %u", first ? ";" : "", a->block->index[0],
               a->block->index[1], a->block->index[2], a->warp->index, a->lane);
        if (b != a) append(worker->text, " to warp %u lane %u", b->warp->index, b->lane);
        describe_wait(worker->text, a);
    }
    leave(worker, FA_EMULATOR_DEADLOCK);
}

/* ---- The choice ---- */

static void set_ready(fa_warp *warp, uint32_t lanes) {
    fa_worker *worker = warp->block->worker;
    uint32_t index = (uint32_t)(warp - worker->warps);
    warp->ready |= lanes;
    worker->ready_warps[index / 64] |= UINT64_C(1) << (index % 64);
}

static fa_warp *random_ready_warp(fa_worker *worker, uint32_t random) {
    uint32_t words = (worker->warp_count + 63) / 64;
    for (uint32_t i = 0; i < words; i++) {
        uint32_t word = (i + (random >> 6)) % words;
        uint64_t ready = worker->ready_warps[word];
        if (!ready) continue;
        uint32_t turn = random & 63;
        uint64_t turned = ready >> turn | ready << ((64 - turn) & 63);
        return &worker->warps[word * 64 + (((uint32_t)__builtin_ctzll(turned) + turn) & 63)];
    }
    return NULL;
}

static fa_thread *pick(fa_worker *worker, bool stay) {
    for (;;) {
        fa_warp *warp = worker->current->warp;
        uint32_t random = fa_random(worker);
        if (!warp->ready || !stay || random % STAY_IN_WARP == 0) warp = random_ready_warp(worker, random >> 8);
        if (warp) {
            uint32_t turn = random >> 27;
            uint32_t turned = warp->ready >> turn | warp->ready << ((32 - turn) & 31);
            uint32_t lane = ((uint32_t)__builtin_ctz(turned) + turn) & 31;
            warp->ready &= ~(1u << lane);
            if (!warp->ready) {
                uint32_t index = (uint32_t)(warp - worker->warps);
                worker->ready_warps[index / 64] &= ~(UINT64_C(1) << (index % 64));
            }
            return &warp->threads[lane];
        }
        if (!fa_finish_some_copy(worker)) deadlock(worker);
    }
}

static void run_next(fa_thread *self, bool stay) {
    fa_worker *worker = self->block->worker;
    fa_thread *next = pick(worker, stay);
    if (next == self) return;
    worker->counters.fiber_switches++;
    worker->current = next;
    fa_emulated_self = &next->place;
    fa_fiber_switch(&self->fiber, &next->fiber);
}

void fa_sleep(fa_thread *self, fa_wait wait, const void *object) {
    self->wait = wait;
    self->wait_object = object;
    run_next(self, true);
}

void fa_sleep_warp(fa_thread *self, fa_wait wait, const void *object) {
    for (uint32_t i = 0; i < FA_LANES; i++) {
        self->warp->threads[i].wait = wait;
        self->warp->threads[i].wait_object = object;
    }
    run_next(self, true);
}

void fa_wake(fa_thread *thread) {
    thread->wait = FA_WAIT_NOTHING;
    thread->block->worker->idle_polls = 0;
    set_ready(thread->warp, 1u << thread->lane);
}

void fa_wake_warp(fa_warp *warp) {
    uint32_t lanes = FA_ALL_LANES;
    const fa_thread *self = fa_current();
    if (self->warp == warp) lanes &= ~(1u << self->lane);
    for (uint32_t i = 0; i < FA_LANES; i++) warp->threads[i].wait = FA_WAIT_NOTHING;
    warp->block->worker->idle_polls = 0;
    set_ready(warp, lanes);
}

void fa_breathe(fa_thread *self) {
    fa_worker *worker = self->block->worker;
    worker->idle_polls = 0;
    if (fa_random(worker) % 8 != 0) return;
    set_ready(self->warp, 1u << self->lane);
    run_next(self, false);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What a thread polls for may have been done by a block that has ended since the thread last looked: only who finds nothing
 * in as many polls again, after all others had ended, is deadlocked. */
static void give_up_alone(fa_worker *worker) {
    if (worker->alone) deadlock(worker);
    worker->alone = true;
    worker->idle_polls = 1;
}

static void wait_for_others(fa_worker *worker, const char *operation) {
    const double limit = 120; /* seconds; a busy host may hold up the threads of other blocks */
    sched_yield();
    if (worker->poll_start == 0)
        worker->poll_start = seconds();
    else if (seconds() - worker->poll_start > limit)
        fa_emulated_fail(operation, "polled for %.0f seconds while nothing else happened", limit);
    if (__atomic_load_n(&worker->launch->stop, __ATOMIC_RELAXED)) fa_emulated_fail(operation, "another block failed");
}

void fa_poll(fa_thread *self, const char *operation) {
    fa_worker *worker = self->block->worker;
    if (worker->idle_polls == 0) {
        worker->poll_start = 0;
        worker->alone = false;
    }
    if (++worker->idle_polls > 64 + 16 * worker->thread_count) {
        if (fa_finish_some_copy(worker))
            worker->idle_polls = 0;
        else if (__atomic_load_n(&worker->launch->running, __ATOMIC_SEQ_CST) > 1)
            wait_for_others(worker, operation);
        else
            give_up_alone(worker);
    }
    set_ready(self->warp, 1u << self->lane);
    run_next(self, false);
}

/* ---- Meetings ---- */

bool fa_meet_warp(fa_thread *self, fa_meet meet) {
    fa_warp *warp = self->warp;
    if (warp->exited)
        fa_emulated_fail(fa_meet_name(meet), "all 32 lanes must take part, but lane %d has returned",
                         __builtin_ctz(warp->exited));
    if (warp->arrived && warp->meet != meet)
        fa_emulated_fail(fa_meet_name(meet), "all 32 lanes must take part, but lane %d waits in %s",
                         __builtin_ctz(warp->arrived), fa_meet_name(warp->meet));
    warp->meet = meet;
    warp->arrived |= 1u << self->lane;
    if (warp->arrived == FA_ALL_LANES) {
        warp->arrived = 0;
        return true;
    }
    fa_sleep(self, FA_WAIT_WARP, warp);
    return false;
}

bool fa_meet_warpgroup(fa_thread *self, fa_warpgroup *group, fa_meet meet) {
    fa_warp *warps = &self->block->warps[group->index * FA_WARPGROUP_WARPS];
    for (uint32_t i = 0; i < FA_WARPGROUP_WARPS; i++)
        if (warps[i].exited)
            fa_emulated_fail(fa_meet_name(meet),
                             "all four warps of the warpgroup must take part, but warp %u has returned",
                             warps[i].index);
    if (group->arrived && group->meet != meet)
        fa_emulated_fail(fa_meet_name(meet), "all four warps of the warpgroup must take part, but warp %u waits in %s",
                         warps[__builtin_ctz(group->arrived)].index, fa_meet_name(group->meet));
    group->meet = meet;
    group->arrived |= 1u << (self->warp->index % FA_WARPGROUP_WARPS);
    if (group->arrived == 0xF) {
        group->arrived = 0;
        return true;
    }
    fa_sleep_warp(self, FA_WAIT_WARPGROUP, group);
    return false;
}

void fa_wake_warpgroup(fa_warpgroup *group) {
    fa_warp *warps = &group->block->warps[group->index * FA_WARPGROUP_WARPS];
    for (uint32_t i = 0; i < FA_WARPGROUP_WARPS; i++) fa_wake_warp(&warps[i]);
}

void fa_require_sm(uint32_t sm, const char *operation) {
    const fa_emulator_properties *part = fa_current()->block->worker->launch->part;
    if (part->sm < sm) fa_emulated_fail(operation, "needs sm_%u, but %s is sm_%u", sm, part->name, part->sm);
}

uint32_t fa_emulated_sm(void) { return fa_current()->block->worker->launch->part->sm; }

void fa_check_value(const char *operation, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFFu) == FA_POISON_BITS)
        fa_emulated_fail(
            operation, "the value comes from wgmma accumulators that were read before the wgmma_wait_group that covers "
                       "them");
}

/* ---- Life of a thread ---- */

static void end_block(fa_block *block) {
    fa_check_copies_at_exit(block);
    for (uint32_t i = 0; i < block->warpgroup_count; i++) fa_wgmma_check_at_exit(&block->warpgroups[i]);
}

static void thread_main(void *argument) {
    fa_thread *self = argument;
    fa_block *block = self->block;
    fa_worker *worker = block->worker;
    fa_fiber_begin(&worker->main);
    worker->launch->kernel->body(worker->launch->params);

    if (self->warp->arrived)
        fa_emulated_fail("return", "lane %d of the warp waits in %s for all 32 lanes",
                         __builtin_ctz(self->warp->arrived), fa_meet_name(self->warp->meet));
    if (block->named[0].arrived)
        fa_emulated_fail("return", "other warps wait in block_sync, in which all threads of the block must take part");
    fa_cp_async_finish(self);
    self->wait = FA_WAIT_EXITED;
    self->wait_object = NULL;
    self->warp->exited |= 1u << self->lane;
    worker->idle_polls = 0;
    if (--block->live == 0) end_block(block);
    if (--worker->live == 0) leave(worker, FA_EMULATOR_OK);
    run_next(self, true);
    __builtin_unreachable();
}

void fa_run_cluster(fa_worker *worker) {
    for (uint32_t i = 0; i < worker->thread_count; i++)
        fa_fiber_prepare(&worker->threads[i].fiber, &worker->stacks, i, thread_main, &worker->threads[i]);
    for (uint32_t i = 0; i < worker->warp_count; i++) set_ready(&worker->warps[i], FA_ALL_LANES);
    worker->live = worker->thread_count;
    worker->current = &worker->threads[0];
    fa_thread *first = pick(worker, false);
    worker->current = first;
    fa_emulated_self = &first->place;
    fa_fiber_switch(&worker->main, &first->fiber);
    fa_emulated_self = NULL;
}
