/* SPDX-License-Identifier: Apache-2.0 */
/* Which machine a device stands for, and its description for people. */
#include "gpu/machine.h"

#include "status.h"
#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ENVIRONMENT "FLASHATTN_MACHINE"

/* NULL if it is not set; empty counts as not set. */
static const char *asked_for(void) {
    const char *specification = getenv(ENVIRONMENT);
    return specification == NULL || specification[0] == '\0' ? NULL : specification;
}

bool fa_machine_emulation_asked(void) { return asked_for() != NULL; }

fa_status fa_machine_open(fa_device device, const fa_machine **machine) {
    if (device.device_type == FA_DEVICE_CUDA) return fa_machine_open_cuda(device.device_id, machine);
    if (device.device_type != FA_DEVICE_CPU)
        return fa_fail(FA_UNSUPPORTED, "device_type = %" PRId32 ": must be %d (CPU) or %d (CUDA)", device.device_type,
                       FA_DEVICE_CPU, FA_DEVICE_CUDA);
    const char *specification = asked_for();
    if (specification == NULL)
        return fa_fail(FA_UNSUPPORTED, "the environment variable " ENVIRONMENT " is not set: it names the emulated GPU "
                                       "(emulated-h100 for one) that runs GPU kernels on tensors in CPU memory");
    return fa_machine_open_emulated(specification, machine);
}

fa_status fa_machine_runs(const fa_machine *m, const fa_variant *v) {
    if (v->only_arch ? m->arch != v->arch : m->arch < v->arch)
        return fa_fail(FA_UNSUPPORTED, "%s needs sm_%" PRId32 "%s, and %s (%s) is sm_%" PRId32, fa_variant_name(v),
                       v->arch, v->only_arch ? "" : " or newer", m->id, m->name, m->arch);
    if (!m->emulated && v->image == NULL)
        return fa_fail(FA_UNSUPPORTED, "%s: this build has no GPU code, since nvcc was not there when it was made",
                       fa_variant_name(v));
    return FA_OK;
}

fa_status fa_machine_text(fa_device device, char *text, size_t size) {
    const fa_machine *m;
    FA_TRY(fa_machine_open(device, &m));
    if (text == NULL || size == 0) return fa_fail(FA_INVALID_ARGUMENT, "text = NULL or size = 0: must hold a line");
    (void)snprintf(text, size,
                   "%s: %s, sm_%" PRId32 ", %" PRId32 " multiprocessors, %.0f KiB shared memory per block, %.0f MiB L2",
                   m->id, m->name, m->arch, m->processors, (double)m->shared_bytes / 0x1p10,
                   (double)m->l2_bytes / 0x1p20);
    return FA_OK;
}

fa_status fa_machine_count(fa_device device, fa_machine_work *work) {
    const fa_machine *m;
    fa_emulator_counters c;
    if (work == NULL) return fa_fail(FA_INVALID_ARGUMENT, "work = NULL: must point at a fa_machine_work");
    if (work->size != sizeof *work)
        return fa_fail(FA_INVALID_ARGUMENT, "work.size = %zu: must be sizeof(fa_machine_work), %zu", work->size,
                       sizeof *work);
    FA_TRY(fa_machine_open(device, &m));
    if (!m->emulated)
        return fa_fail(FA_UNSUPPORTED, "%s (%s): only an emulated GPU counts what it does", m->id, m->name);
    fa_machine_emulated_counters(m, &c);
    *work = (fa_machine_work){.size = sizeof *work,
                              .global_bytes_read = c.global_bytes_read,
                              .global_bytes_written = c.global_bytes_written,
                              .async_copy_bytes = c.async_copy_bytes,
                              .shared_bytes_read = c.shared_bytes_read,
                              .shared_bytes_written = c.shared_bytes_written,
                              .tensor_flops = c.tensor_flops,
                              .exp2_calls = c.exp2_calls,
                              .other_special_calls = c.other_special_calls,
                              .shuffles = c.shuffles,
                              .votes = c.votes,
                              .barriers = c.barriers,
                              .mbarrier_arrivals = c.mbarrier_arrivals,
                              .mbarrier_waits = c.mbarrier_waits,
                              .global_atomics = c.global_atomics};
    return FA_OK;
}
