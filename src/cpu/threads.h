/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads a call may use; fa_default_num_threads() of flashattn.h is defined beside it. */
#ifndef FA_CPU_THREADS_H
#define FA_CPU_THREADS_H

#include <stdbool.h>
#include <stdint.h>

/* A run-time library that cannot start as many threads as it was told to ends the process. */
#define FA_MAX_THREADS 4096

#ifdef _OPENMP
#    include <omp.h>
static inline int64_t fa_thread_number(void) { return omp_get_thread_num(); }
#else
static inline int64_t fa_thread_number(void) { return 0; }
#endif

/* Whether this process is a fork() of one that has called the library. Threads do not survive fork(), and an OpenMP run time
 * whose threads are gone waits for them for ever: such a process must do with one. */
bool fa_process_is_fork(void);

/* CPUs that a cgroup quota text grants, rounded up: "max 100000" and what is no quota give 0, "150000 100000"
 * gives 2. */
int fa_cpus_of_quota(const char *text);

#endif
