/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a result may depend on, and what not: the number of threads and repetition change no bit, splitting the keys
 * stays within the error budget, calls from several threads do not disturb each other. And how many threads there are.
 */
#define _GNU_SOURCE /* sched_setaffinity */

#include "cpu/threads.h"
#include "support/judge.h"
#include "support/sweep.h"
#include "support/testing.h"

#include <fenv.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Shapes ---- */

/* What the policy treats differently: tiles full and not, groups, few units and many, uneven sequences, pages. */
static attention_case shape(int number) {
    static const int32_t uneven_q[] = {200, 1, 0, 33, 64, 7}, uneven_k[] = {30, 300, 5, 0, 64, 129};
    static const int32_t used[] = {1200, 3}, decode_q[] = {1, 1, 0, 1, 1, 1};
    attention_case c = case_default("threads");
    c.index = (uint64_t)number;
    c.head_dim = c.head_dim_v = 24;
    switch (number) {
    case 0: break;
    case 1: /* more rows than a tile has */
        c.seqlen_q = 150;
        c.seqlen_k = 200;
        c.causal = FA_CAUSAL_BOTTOM_RIGHT;
        break;
    case 2: /* decode: keys are split by themselves */
        c.batch = c.heads_kv = 1;
        c.seqlen_q = 1;
        c.seqlen_k = 4000;
        break;
    case 3: /* uneven sequences */
    case 4:
        c.batch = 6;
        c.varlen_q = c.varlen_k = true;
        c.seqlen_q = 200;
        c.seqlen_k = 300;
        c.lengths_q = number == 3 ? uneven_q : decode_q;
        c.lengths_k = uneven_k;
        c.tail_q = 10;
        c.causal = FA_CAUSAL_BOTTOM_RIGHT;
        break;
    case 5: /* pages, most of one sequence's parts empty */
        c.seqlen_q = 2;
        c.seqlen_k = 1200;
        c.page_size = 16;
        c.seqused_k = used;
        c.num_splits = 7;
        c.sink = true;
        break;
    case 6: /* more parts than tiles */
        c.seqlen_q = 3;
        c.num_splits = 256;
        c.alibi = true;
        break;
    default: /* one head group of 16 with a window */
        c.heads = 16;
        c.heads_kv = 1;
        c.seqlen_q = 40;
        c.seqlen_k = 600;
        c.window = true;
        c.window_left = 100;
        break;
    }
    return c;
}
enum { SHAPES = 8 };

/* ---- Bits ---- */

static void expect_same_bits_for_any_number_of_threads(attention_call *a) {
    static const int32_t numbers[] = {1, 2, 3, 7, 0};
    int count;
    const contender *all = contenders_of_type(a->c.type, &count);
    for (int w = 0; w < count; w++) {
        outputs first = {NULL, NULL};
        for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++) {
            a->options.num_threads = numbers[n];
            outputs o = run_call(a, all[w]);
            if (n == 0) {
                first = o;
                continue;
            }
            char what[64];
            (void)snprintf(what, sizeof what, "%s with 1 and %d threads", fa_isa_name(all[w].isa), numbers[n]);
            assert_same_bits(a, &first, &o, what);
            outputs_free(&o);
        }
        outputs_free(&first);
    }
}

static void same_bits_for_any_number_of_threads(void **state) {
    (void)state;
    for (int number = 0; number < SHAPES; number++) {
        attention_case c = shape(number);
        c.type = (fa_element)(number % 3);
        attention_call *a = call_new(&c);
        expect_same_bits_for_any_number_of_threads(a);
        call_free(a);
    }
}

static void same_bits_for_any_number_of_threads_at_random(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 12; i++) {
        attention_case c = random_case("threads at random", i);
        attention_call *a = call_new(&c);
        call_poison_hidden(a);
        expect_same_bits_for_any_number_of_threads(a);
        call_free(a);
    }
}

/* G5, G7 */
static void same_bits_in_every_run(void **state) {
    (void)state;
    for (int number = 1; number < SHAPES; number += 4) {
        attention_case c = shape(number);
        int count;
        const contender *all = contenders_of_type(c.type, &count);
        c.num_threads = 2;
        attention_call *a = call_new(&c);
        for (int w = 0; w < count; w++) {
            outputs first = run_call(a, all[w]);
            for (int64_t run = 1, runs = test_setting("FLASHATTN_TEST_RUNS", 30); run < runs; run++) {
                outputs o = run_call(a, all[w]);
                assert_same_bits(a, &first, &o, "another run");
                outputs_free(&o);
            }
            outputs_free(&first);
        }
        call_free(a);
    }
}

static void any_number_of_splits_keeps_the_budget(void **state) {
    (void)state;
    static const int32_t numbers[] = {0, 1, 2, 3, 8, 61, 256};
    int count;
    const contender *all = contenders(&count);
    for (int number = 0; number < SHAPES; number++) {
        attention_case c = shape(number);
        c.type = (fa_element)(number % 3);
        attention_call *a = call_new(&c);
        call_poison_hidden(a);
        yardstick *y = yardstick_new(a);
        yardstick_to_float32(a, y);
        for (int w = 0; w < count; w++)
            for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++) {
                a->options.num_splits = a->c.num_splits = numbers[n];
                outputs o = run_call(a, all[w]);
                judge_outputs(a, y, all[w], &o);
                outputs_free(&o);
            }
        yardstick_free(y);
        call_free(a);
    }
}

/* I7: with num_splits = 1 a sequence has the same bits alone and in any batch. */
static void I7_one_split_does_not_depend_on_the_batch(void **state) {
    (void)state;
    static const int64_t batches[] = {2, 64};
    int count;
    const contender *all = contenders(&count);
    for (int shape_number = 0; shape_number < 4; shape_number++)
        for (int n = 0; n < 2; n++) {
            attention_case c = case_default("I7");
            c.index = (uint64_t)shape_number;
            c.num_splits = 1;
            c.seqlen_q = shape_number & 1 ? 1 : 20;
            c.seqlen_k = shape_number & 2 ? 600 : 70;
            c.head_dim = c.head_dim_v = 16;
            c.causal = FA_CAUSAL_BOTTOM_RIGHT;
            c.batch = batches[n];
            attention_call *many = call_new(&c);
            c.batch = 1;
            attention_call *alone = call_new(&c);
            for (int64_t b = 0; b < batches[n]; b += batches[n] - 1) {
                call_copy_sequence(alone, 0, many, b, 0);
                for (int w = 0; w < count; w++) {
                    outputs x = run_call(many, all[w]), y = run_call(alone, all[w]);
                    assert_same_sequence(alone, &y, 0, many, &x, b, 0, "alone and in a batch");
                    outputs_free(&x);
                    outputs_free(&y);
                }
            }
            call_free(many);
            call_free(alone);
        }
}

/* ---- Calls from several threads ---- */

enum { CALLERS = 6, ROUNDS = 12 };

typedef struct caller {
    attention_call *a; /* may be shared with another caller: inputs are only read */
    outputs o;
    fa_isa isa;
    const char *wrong; /* NULL: nothing */
} caller;

/* Calls that succeed and calls that are refused, in turn. */
static void *call_in_rounds(void *data) {
    caller *c = data;
    fa_options options = c->a->options, refused = options;
    options.kernel = refused.kernel = FA_KERNEL_CPU;
    options.isa = c->isa;
    options.num_threads = 2;
    refused.num_splits = -1 - (int32_t)(c->isa);
    char sentence[64];
    (void)snprintf(sentence, sizeof sentence, "num_splits = %d: must be", refused.num_splits);
    const fa_tensor *q = &c->a->q->fa, *k = &c->a->k->fa, *v = &c->a->v->fa;
    for (int round = 0; round < ROUNDS; round++) {
        if (fa_forward(q, k, v, &options, &c->o.out->fa, &c->o.lse->fa) != FA_OK) c->wrong = "refused";
        if (fa_forward(q, k, v, &refused, &c->o.out->fa, &c->o.lse->fa) != FA_INVALID_ARGUMENT) c->wrong = "accepted";
        (void)sched_yield(); /* so that others have their turn at it */
        if (strncmp(fa_last_error(), sentence, strlen(sentence)) != 0) c->wrong = "another thread's sentence";
        fa_plan_info info = {.size = sizeof info};
        if (fa_plan(q, k, v, &options, &c->o.out->fa, &c->o.lse->fa, &info) != FA_OK ||
            info.isa != runs_as(c->isa, c->a->c.type))
            c->wrong = "another thread's plan";
        if (fa_default_num_threads() < 1) c->wrong = "no threads";
    }
    return NULL;
}

static void calls_from_several_threads(void **state) {
    (void)state;
    int count;
    const contender *all = contenders(&count);
    caller callers[CALLERS];
    outputs expected[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        attention_case c = shape(i / 2); /* pairs of callers share their inputs */
        callers[i].a = i % 2 == 0 ? call_new(&c) : callers[i - 1].a;
        callers[i].isa = all[i % count].isa;
        callers[i].wrong = NULL;
        callers[i].o = (outputs){call_new_out(callers[i].a, c.type), call_new_lse(callers[i].a, FA_ELEMENT_FLOAT32)};
        expected[i] = run_call(callers[i].a, all[i % count]);
    }
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_in_rounds, &callers[i]), 0);
    for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < CALLERS; i++) {
        if (callers[i].wrong != NULL) call_fail(callers[i].a, "caller %d: %s", i, callers[i].wrong);
        assert_same_bits(callers[i].a, &expected[i], &callers[i].o, "beside calls from other threads");
        outputs_free(&expected[i]);
        outputs_free(&callers[i].o);
    }
    for (int i = 0; i < CALLERS; i += 2) call_free(callers[i].a);
}

/* ---- What the caller finds afterwards ---- */

#ifdef __x86_64__
static unsigned float_control(void) { return __builtin_ia32_stmxcsr() & 0xffc0u; }
static void set_float_control(unsigned x) { __builtin_ia32_ldmxcsr(x); }
#endif

static void floating_point_mode_stays(void **state) {
    (void)state;
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};
    int count;
    const contender *all = contenders(&count);
    attention_case c = shape(0);
    attention_call *a = call_new(&c);
    for (int w = 0; w < count; w++)
        for (int m = 0; m < 4; m++) {
            assert_int_equal(fesetround(modes[m]), 0);
            outputs o = run_call(a, all[w]);
            int after = fegetround();
            (void)fesetround(FE_TONEAREST);
            assert_int_equal(after, modes[m]);
            outputs_free(&o);
        }
#ifdef __x86_64__
    /* Flush to zero, denormals are zero. */
    unsigned before = float_control();
    for (int w = 0; w < count; w++) {
        set_float_control(before | 0x8040u);
        outputs o = run_call(a, all[w]);
        unsigned after = float_control();
        set_float_control(before);
        assert_int_equal(after, before | 0x8040u);
        outputs_free(&o);
    }
#endif
    call_free(a);
}

/* ---- How many threads (I5) ---- */

static void I5_quota_texts(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int cpus;
    } quotas[] = {{"max 100000", 0},
                  {"100000 100000", 1},
                  {"150000 100000", 2},
                  {"400000 100000", 4},
                  {"400001 100000", 5},
                  {"10000 100000", 1},
                  {"1 1000000", 1},
                  {"200000 50000", 4},
                  {"-1 100000", 0}, /* version 1: no limit */
                  {"0 100000", 0},
                  {"100000 0", 0},
                  {"100000 -5", 0},
                  {"100000", 0},
                  {"", 0},
                  {"max", 0},
                  {"cpus 4", 0},
                  {"1000000000000 1", 4096},
                  {"9223372036854775807 100000", 4096},
                  {"9223372036854775807 9223372036854775807", 1}};
    for (size_t i = 0; i < sizeof quotas / sizeof quotas[0]; i++) {
        int cpus = fa_cpus_of_quota(quotas[i].text);
        if (cpus != quotas[i].cpus) fail_msg("\"%s\": %d, not %d", quotas[i].text, cpus, quotas[i].cpus);
    }
}

static void I5_environment_variable_for_threads(void **state) {
    (void)state;
    const char *caller_text = getenv("FLASHATTN_NUM_THREADS");
    char *caller_value = caller_text == NULL ? NULL : strdup(caller_text);
    assert_int_equal(unsetenv("FLASHATTN_NUM_THREADS"), 0);
    int without = fa_default_num_threads();
    assert_true(without >= 1);
    static const struct {
        const char *text;
        int threads; /* 0: not understood, and as without it */
    } settings[] = {{"1", 1},  {"3", 3},   {"4096", 4096}, {"4097", 0}, {"0", 0},
                    {"-2", 0}, {"two", 0}, {"3x", 0},      {"", 0},     {"99999999999999999999", 0}};
    attention_case c = shape(1);
    c.num_threads = 0; /* as the variable says */
    attention_call *a = call_new(&c);
    outputs o = {call_new_out(a, c.type), call_new_lse(a, c.type)};
    fa_plan_info info = {.size = sizeof info};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        assert_int_equal(setenv("FLASHATTN_NUM_THREADS", settings[i].text, 1), 0);
        int expected = settings[i].threads == 0 ? without : settings[i].threads;
        if (fa_default_num_threads() != expected)
            fail_msg("FLASHATTN_NUM_THREADS=%s: %d, not %d", settings[i].text, fa_default_num_threads(), expected);
        /* A plan has no more threads than units of work: here some 12 */
        assert_int_equal(fa_plan(&a->q->fa, &a->k->fa, &a->v->fa, &a->options, &o.out->fa, NULL, &info), FA_OK);
        if (!(info.num_threads == expected || (expected > 4 && info.num_threads < expected)))
            fail_msg("FLASHATTN_NUM_THREADS=%s: a plan for %d threads, not %d", settings[i].text, info.num_threads,
                     expected);
    }
    /* The option goes before the variable. */
    assert_int_equal(setenv("FLASHATTN_NUM_THREADS", "3", 1), 0);
    a->options.num_threads = 2;
    assert_int_equal(fa_plan(&a->q->fa, &a->k->fa, &a->v->fa, &a->options, &o.out->fa, NULL, &info), FA_OK);
    assert_int_equal(info.num_threads, 2);
    a->options.num_threads = 4096; /* no more than there is work for */
    assert_int_equal(fa_plan(&a->q->fa, &a->k->fa, &a->v->fa, &a->options, &o.out->fa, NULL, &info), FA_OK);
    assert_true(info.num_threads >= 4 && info.num_threads < 1000);
    outputs_free(&o);
    call_free(a);
    if (caller_value == NULL)
        assert_int_equal(unsetenv("FLASHATTN_NUM_THREADS"), 0);
    else
        assert_int_equal(setenv("FLASHATTN_NUM_THREADS", caller_value, 1), 0);
    free(caller_value);
}

#ifdef __linux__
/* The default number of threads on every count of CPUs; NULL or what is wrong. */
static void *threads_by_affinity(void *data) {
    (void)data;
    cpu_set_t all, some;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return NULL;
    int limit = fa_default_num_threads(), cpus = 0;
    if (limit > CPU_COUNT(&all)) return "more threads than CPUs";
    CPU_ZERO(&some);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_SET(cpu, &some);
        cpus++;
        if (sched_setaffinity(0, sizeof some, &some) != 0) return NULL;
        int expected = cpus < limit ? cpus : limit; /* a quota may allow fewer */
        if (fa_default_num_threads() != expected) return "not the CPUs of the affinity mask";
    }
    return NULL;
}

#endif

static void I5_affinity_mask(void **state) {
    (void)state;
#ifdef __linux__
    assert_int_equal(unsetenv("FLASHATTN_NUM_THREADS"), 0);
    pthread_t thread; /* whose mask nobody else has */
    void *wrong = NULL;
    assert_int_equal(pthread_create(&thread, NULL, threads_by_affinity, NULL), 0);
    assert_int_equal(pthread_join(thread, &wrong), 0);
    if (wrong != NULL) fail_msg("%s", (const char *)wrong);
#endif
}

/* ---- Which instruction set ---- */

static void environment_variable_for_the_instruction_set(void **state) {
    (void)state;
    assert_int_equal(unsetenv("FLASHATTN_ISA"), 0);
    attention_case c = shape(1);
    attention_call *a = call_new(&c);
    contender automatic = {FA_KERNEL_CPU, FA_ISA_AUTO};
    int count;
    const contender *all = contenders(&count);
    fa_plan_info info = {.size = sizeof info};
    fa_options options = a->options;
    outputs without = run_call(a, automatic);
    assert_int_equal(fa_plan(&a->q->fa, &a->k->fa, &a->v->fa, &options, &without.out->fa, &without.lse->fa, &info),
                     FA_OK);
    /* The last one of the list, but AMX is not for short sequences of float32. */
    if (all[count - 1].isa != FA_ISA_AMX) assert_int_equal(info.isa, runs_as(all[count - 1].isa, a->c.type));
    outputs best = run_call(a, (contender){FA_KERNEL_CPU, info.isa});
    assert_same_bits(a, &without, &best, "automatic, and the instruction set that it stands for");
    for (int isa = FA_ISA_PORTABLE; isa <= FA_ISA_NEON_BF16; isa++) {
        const char *name = fa_isa_name((fa_isa)isa);
        bool here = fa_isa_supported((fa_isa)isa) == FA_OK;
        assert_int_equal(setenv("FLASHATTN_ISA", name, 1), 0);
        options.isa = FA_ISA_AUTO;
        fa_status status =
            fa_plan(&a->q->fa, &a->k->fa, &a->v->fa, &options, &without.out->fa, &without.lse->fa, &info);
        if (!here) {
            char sentence[64];
            (void)snprintf(sentence, sizeof sentence, "FLASHATTN_ISA = %s: ", name);
            assert_int_equal(status, FA_UNSUPPORTED);
            if (strstr(fa_last_error(), sentence) == NULL) fail_msg("\"%s\"", fa_last_error());
            continue;
        }
        assert_int_equal(status, FA_OK);
        assert_int_equal(info.isa, runs_as((fa_isa)isa, a->c.type));
        outputs x = run_call(a, automatic), y = run_call(a, (contender){FA_KERNEL_CPU, (fa_isa)isa});
        assert_same_bits(a, &x, &y, "by environment variable and by option");
        outputs_free(&x);
        outputs_free(&y);
        /* The option goes before the variable. */
        options.isa = all[0].isa;
        assert_int_equal(fa_plan(&a->q->fa, &a->k->fa, &a->v->fa, &options, &without.out->fa, &without.lse->fa, &info),
                         FA_OK);
        assert_int_equal(info.isa, runs_as(all[0].isa, a->c.type));
    }
    assert_int_equal(unsetenv("FLASHATTN_ISA"), 0);
    outputs_free(&without);
    outputs_free(&best);
    call_free(a);
}

/* Data loaders and the like: OpenMP's threads do not survive fork(), and waiting for them would never end. */
static void a_forked_process_computes_too(void **state) {
    (void)state;
    attention_case c = shape(1);
    attention_call *a = call_new(&c);
    a->options.num_threads = 2;
    contender automatic = {FA_KERNEL_AUTO, FA_ISA_AUTO};
    outputs parent = run_call(a, automatic);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(20); /* a child that hangs is ended by a signal */
        outputs x = run_call(a, automatic);
        fa_plan_info info = {.size = sizeof info};
        fa_status status = fa_plan(&a->q->fa, &a->k->fa, &a->v->fa, &a->options, &x.out->fa, &x.lse->fa, &info);
        bool good = status == FA_OK && info.num_threads == 1 && tensor_first_difference(x.out, parent.out) < 0;
        _exit(good ? 0 : 1);
    }
    int result = -1;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    outputs_free(&parent);
    call_free(a);
}

RUN_TESTS(cmocka_unit_test(same_bits_for_any_number_of_threads), cmocka_unit_test(a_forked_process_computes_too),
          cmocka_unit_test(same_bits_for_any_number_of_threads_at_random), cmocka_unit_test(same_bits_in_every_run),
          cmocka_unit_test(any_number_of_splits_keeps_the_budget),
          cmocka_unit_test(I7_one_split_does_not_depend_on_the_batch), cmocka_unit_test(calls_from_several_threads),
          cmocka_unit_test(floating_point_mode_stays), cmocka_unit_test(I5_quota_texts),
          cmocka_unit_test(I5_environment_variable_for_threads), cmocka_unit_test(I5_affinity_mask),
          cmocka_unit_test(environment_variable_for_the_instruction_set))
