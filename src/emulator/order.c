/* SPDX-License-Identifier: Apache-2.0 */
/* Knowledge and exchanges. Threads that met at a barrier share one vector, so that the common cases are comparisons of
 * pointers. */
#include "order.h"

#include <stdlib.h>
#include <string.h>

typedef int32_t clock4 __attribute__((vector_size(16)));

static fa_knowledge *allocate(fa_knowledge_pool *pool) {
    return malloc(sizeof(fa_knowledge) + pool->agents * sizeof(int32_t));
}

bool fa_knowledge_pool_create(fa_knowledge_pool *pool, uint32_t agents) {
    memset(pool, 0, sizeof *pool);
    pool->agents = (agents + 3) & ~3u;
    pool->emergency = allocate(pool);
    if (!pool->emergency) return false;
    pool->emergency->references = UINT32_MAX / 2; /* never freed */
    return true;
}

void fa_knowledge_pool_destroy(fa_knowledge_pool *pool) {
    while (pool->unused) {
        fa_knowledge *next = pool->unused->next;
        free(pool->unused);
        pool->unused = next;
    }
    free(pool->emergency);
}

static fa_knowledge *take(fa_knowledge_pool *pool) {
    fa_knowledge *knowledge = pool->unused;
    if (knowledge)
        pool->unused = knowledge->next;
    else
        knowledge = allocate(pool);
    if (!knowledge) {
        pool->out_of_memory = true;
        return fa_knowledge_keep(pool->emergency);
    }
    knowledge->references = 1;
    knowledge->joined = 0;
    return knowledge;
}

fa_knowledge *fa_knowledge_create(fa_knowledge_pool *pool) {
    fa_knowledge *knowledge = take(pool);
    memset(knowledge->clock, 0, pool->agents * sizeof(int32_t));
    return knowledge;
}

fa_knowledge *fa_knowledge_copy(fa_knowledge_pool *pool, const fa_knowledge *from) {
    fa_knowledge *knowledge = take(pool);
    memmove(knowledge->clock, from->clock, pool->agents * sizeof(int32_t));
    return knowledge;
}

fa_knowledge *fa_knowledge_keep(fa_knowledge *knowledge) {
    knowledge->references++;
    return knowledge;
}

void fa_knowledge_drop(fa_knowledge_pool *pool, fa_knowledge *knowledge) {
    if (!knowledge || --knowledge->references > 0) return;
    knowledge->next = pool->unused;
    pool->unused = knowledge;
}

static void join(const fa_knowledge_pool *pool, fa_knowledge *into, const fa_knowledge *from) {
    for (uint32_t i = 0; i < pool->agents; i += 4) {
        clock4 a, b;
        memcpy(&a, &into->clock[i], sizeof a);
        memcpy(&b, &from->clock[i], sizeof b);
        clock4 newer = b > a;
        a = (newer & b) | (~newer & a);
        memcpy(&into->clock[i], &a, sizeof a);
    }
}

static bool contains(const fa_knowledge_pool *pool, const fa_knowledge *whole, const fa_knowledge *part) {
    clock4 missing = {0, 0, 0, 0};
    for (uint32_t i = 0; i < pool->agents; i += 4) {
        clock4 a, b;
        memcpy(&a, &whole->clock[i], sizeof a);
        memcpy(&b, &part->clock[i], sizeof b);
        missing |= b > a;
    }
    return (missing[0] | missing[1] | missing[2] | missing[3]) == 0;
}

static void forget_last(fa_knowledge_pool *pool, fa_exchange *exchange) {
    fa_knowledge_drop(pool, exchange->last_in);
    fa_knowledge_drop(pool, exchange->last_out);
    exchange->last_in = exchange->last_out = NULL;
}

void fa_exchange_create(fa_knowledge_pool *pool, fa_exchange *exchange) {
    exchange->gathering = fa_knowledge_create(pool);
    exchange->done = fa_knowledge_create(pool);
    exchange->serial = ++pool->serial;
    exchange->last_in = exchange->last_out = NULL;
}

void fa_exchange_destroy(fa_knowledge_pool *pool, fa_exchange *exchange) {
    forget_last(pool, exchange);
    fa_knowledge_drop(pool, exchange->gathering);
    fa_knowledge_drop(pool, exchange->done);
}

void fa_exchange_publish(fa_knowledge_pool *pool, fa_exchange *exchange, fa_observer *observer) {
    if (observer->knows->joined != exchange->serial) {
        join(pool, exchange->gathering, observer->knows);
        observer->knows->joined = exchange->serial;
    }
    exchange->gathering->clock[observer->agent] = observer->clock++;
}

void fa_exchange_publish_agent(fa_exchange *exchange, uint32_t agent, int32_t clock) {
    exchange->gathering->clock[agent] = clock;
}

void fa_exchange_complete(fa_knowledge_pool *pool, fa_exchange *exchange) {
    forget_last(pool, exchange);
    fa_knowledge_drop(pool, exchange->done);
    exchange->done = exchange->gathering;
    exchange->gathering = fa_knowledge_copy(pool, exchange->done);
    exchange->serial = ++pool->serial;
    exchange->done->joined = exchange->serial; /* gathering begins with it */
}

void fa_exchange_learn(fa_knowledge_pool *pool, fa_exchange *exchange, fa_observer *observer) {
    fa_knowledge *in = observer->knows, *out;
    if (in == exchange->done) return;
    if (in == exchange->last_in) {
        out = fa_knowledge_keep(exchange->last_out);
    } else {
        if (contains(pool, exchange->done, in)) {
            out = fa_knowledge_keep(exchange->done);
        } else if (contains(pool, in, exchange->done)) {
            out = fa_knowledge_keep(in);
        } else {
            out = fa_knowledge_copy(pool, in);
            join(pool, out, exchange->done);
        }
        forget_last(pool, exchange);
        exchange->last_in = fa_knowledge_keep(in);
        exchange->last_out = fa_knowledge_keep(out);
    }
    observer->knows = out;
    fa_knowledge_drop(pool, in);
}
