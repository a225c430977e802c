/* SPDX-License-Identifier: Apache-2.0 */
/* The processor's name and the CPUs that may be used: see machine.h. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE /* getloadavg */

#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifdef _OPENMP
#    include <omp.h>
#endif

/* x86 has "model name", some ARM kernels "Hardware" or "Model". */
static int name_from_cpuinfo(char *text, size_t size) {
    static const char *const keys[] = {"model name", "Hardware", "Model"};
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    int found = 0;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        for (size_t i = 0; i < 3 && !found; i++) {
            const char *colon = strchr(line, ':');
            if (strncmp(line, keys[i], strlen(keys[i])) != 0 || colon == NULL) continue;
            line[strcspn(line, "\n")] = '\0';
            colon++;
            while (*colon == ' ') colon++;
            (void)snprintf(text, size, "%s", colon);
            found = text[0] != '\0';
        }
    }
    if (file != NULL) (void)fclose(file);
    return found;
}

void machine_name(char *text, size_t size) {
    struct utsname system;
    if (name_from_cpuinfo(text, size)) return;
    if (uname(&system) == 0)
        (void)snprintf(text, size, "%s processor", system.machine);
    else
        (void)snprintf(text, size, "unknown processor");
}

int machine_cpus(void) {
#ifdef _OPENMP
    return omp_get_num_procs();
#else
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    return cpus > 0 ? (int)cpus : 1;
#endif
}

bool machine_is_busy(double *load) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    *load = 0;
    if (getloadavg(load, 1) != 1 || online < 1) return false;
    return *load > 0.3 * (double)online;
}
