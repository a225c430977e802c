/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The default number of threads: the CPUs in the caller's affinity mask, but no more than the cgroup's CPU
 * quota pays for. Threads beyond the quota would be stopped in the middle of a tile and make all others wait.
 */
#include "cpu/threads.h"

#include "flashattn.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#    include <sched.h>
#    include <unistd.h>
#endif

int fa_cpus_of_quota(const char *text) {
    long long quota = 0, period = 0;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return 0;
    long long cpus = quota / period + (quota % period != 0);
    return cpus > FA_MAX_THREADS ? FA_MAX_THREADS : (int)cpus;
}

#ifdef __linux__

/* The first line of a small file; false if there is none. */
static int read_line(const char *path, char *line, int size) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    char *read = fgets(line, size, file);
    (void)fclose(file);
    if (read == NULL) return 0;
    line[strcspn(line, "\n")] = '\0';
    return 1;
}

static int lower_of(int a, int b) { return a == 0 || (b != 0 && b < a) ? b : a; }

/* Version 2: cpu.max of the process's group and of every group above it. 0: no limit. */
static int quota_of_group(char *group) {
    int cpus = 0;
    for (;;) {
        char path[4352], line[128];
        (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        if (read_line(path, line, sizeof line)) cpus = lower_of(cpus, fa_cpus_of_quota(line));
        char *slash = strrchr(group, '/');
        if (slash == NULL) return cpus;
        *slash = '\0';
    }
}

static int read_cpu_quota(void) {
    char line[4224];
    int cpus = 0;
    FILE *file = fopen("/proc/self/cgroup", "r");
    if (file != NULL) {
        while (fgets(line, sizeof line, file) != NULL) {
            line[strcspn(line, "\n")] = '\0';
            if (strncmp(line, "0::/", 4) == 0) cpus = quota_of_group(line + 3);
        }
        (void)fclose(file);
    }
    /* Version 1 keeps the two numbers in two files; inside a container they are those of its own group. */
    char quota[64], period[64], both[160];
    if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, sizeof quota) &&
        read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period)) {
        (void)snprintf(both, sizeof both, "%s %s", quota, period);
        cpus = lower_of(cpus, fa_cpus_of_quota(both));
    }
    return cpus;
}

static int affinity_cpus(void) {
    /* Machines beyond 1024 CPUs refuse the fixed-size mask, so it grows until it fits. */
    for (int size = 1024; size <= 1 << 18; size *= 2) {
        cpu_set_t *mask = CPU_ALLOC((size_t)size);
        if (mask == NULL) break;
        int result = sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)size), mask);
        int count = result == 0 ? CPU_COUNT_S(CPU_ALLOC_SIZE((size_t)size), mask) : 0;
        CPU_FREE(mask);
        if (count > 0) return count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

bool fa_process_is_fork(void) {
    static atomic_long first_caller; /* 0: nobody has called yet */
    long process = (long)getpid(), first = 0;
    return !atomic_compare_exchange_strong(&first_caller, &first, process) && first != process;
}

#else

bool fa_process_is_fork(void) { return false; }

static int read_cpu_quota(void) { return 0; }

static int affinity_cpus(void) {
#    ifdef _OPENMP
    return omp_get_num_procs();
#    else
    return 1;
#    endif
}

#endif

int fa_default_num_threads(void) {
    const char *text = getenv("FLASHATTN_NUM_THREADS");
    if (text != NULL) {
        char *end;
        long threads = strtol(text, &end, 10);
        if (end != text && *end == '\0' && threads > 0 && threads <= FA_MAX_THREADS) return (int)threads;
    }
    /* The quota is read once: it takes several file reads, and it rarely changes while a process runs. -1:
     * not read yet. */
    static atomic_int cached_quota = -1;
    int quota = atomic_load_explicit(&cached_quota, memory_order_relaxed);
    if (quota < 0) {
        quota = read_cpu_quota();
        atomic_store_explicit(&cached_quota, quota, memory_order_relaxed);
    }
    int cpus = affinity_cpus();
    return quota > 0 && quota < cpus ? quota : cpus;
}
