/* SPDX-License-Identifier: Apache-2.0 */
/* Who has learned of whose work: the happens-before order of a running cluster.
 *
 * Every agent (a thread, a warpgroup's wgmma unit, the copies that complete on one mbarrier) has a clock. What a thread
 * does at clock c is known to another thread once that thread's knowledge of the agent is at least c. Knowledge is
 * handed on by synchronisation only: a thread publishes to an exchange (an arrival), others learn from it (a wait). An
 * access that finds work on the same bytes that the thread does not know of is a race. */
#ifndef FA_EMULATOR_ORDER_H
#define FA_EMULATOR_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* A vector of clocks, one per agent. Shared between threads that know the same, hence never changed once shared. */
typedef struct fa_knowledge {
    uint32_t references;
    uint64_t joined; /* serial of the last exchange this was joined into */
    struct fa_knowledge *next;
    int32_t clock[] __attribute__((aligned(16)));
} fa_knowledge;

typedef struct {
    uint32_t agents; /* a multiple of 4 */
    uint64_t serial;
    fa_knowledge *unused;
    bool out_of_memory; /* then an emergency vector is handed out, and the launch fails at the next check */
    fa_knowledge *emergency;
} fa_knowledge_pool;

/* The meeting point of one synchronisation object. `done` is what arrivals of completed phases published, `gathering`
 * adds those of the current phase. */
typedef struct {
    fa_knowledge *gathering, *done;
    uint64_t serial;
    fa_knowledge *last_in, *last_out; /* the latest answer of learning, by which equal threads stay equal */
} fa_exchange;

/* The order-related part of a thread. */
typedef struct {
    uint32_t agent;
    int32_t clock;
    fa_knowledge *knows; /* its own entry may be stale: use fa_knows */
} fa_observer;

bool fa_knowledge_pool_create(fa_knowledge_pool *pool, uint32_t agents);
void fa_knowledge_pool_destroy(fa_knowledge_pool *pool); /* after everything was dropped */

fa_knowledge *fa_knowledge_create(fa_knowledge_pool *pool); /* knows nothing */
fa_knowledge *fa_knowledge_copy(fa_knowledge_pool *pool, const fa_knowledge *from);
fa_knowledge *fa_knowledge_keep(fa_knowledge *knowledge);
void fa_knowledge_drop(fa_knowledge_pool *pool, fa_knowledge *knowledge); /* NULL is fine */

void fa_exchange_create(fa_knowledge_pool *pool, fa_exchange *exchange);
void fa_exchange_destroy(fa_knowledge_pool *pool, fa_exchange *exchange);
void fa_exchange_publish(fa_knowledge_pool *pool, fa_exchange *exchange, fa_observer *observer);
void fa_exchange_publish_agent(fa_exchange *exchange, uint32_t agent, int32_t clock);
void fa_exchange_complete(fa_knowledge_pool *pool, fa_exchange *exchange);
void fa_exchange_learn(fa_knowledge_pool *pool, fa_exchange *exchange, fa_observer *observer);

static inline bool fa_knows(const fa_observer *observer, uint32_t agent, int32_t clock) {
    return agent == observer->agent || observer->knows->clock[agent] >= clock;
}

#endif
