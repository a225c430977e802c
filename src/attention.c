/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points: check the arguments, plan, run what was planned. fa_plan() and fa_forward() share all but
 * the last step, and so do fa_plan_backward() and fa_backward(). */
#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/threads.h"
#include "gpu/launch_forward.h"
#include "problem.h"
#include "reference.h"
#include "status.h"
#include "tensor.h"

#include <stdio.h>

/* What runs, and the back end's own plan for it. */
typedef struct forward_plan {
    fa_kernel kernel;
    bool on_gpu; /* or on an emulated one */
    fa_cpu_plan cpu;
    fa_gpu_plan gpu;
} forward_plan;

static const char *const kernel_names[] = {"auto", "cpu", "reference", "standard", "v1", "v2", "v3", "v4"};

const char *fa_kernel_name(fa_kernel kernel) {
    return (int)kernel >= 0 && kernel <= FA_KERNEL_V4 ? kernel_names[kernel] : "unknown";
}

fa_status fa_kernel_supported(fa_kernel kernel) {
    switch (kernel) {
    case FA_KERNEL_AUTO:
    case FA_KERNEL_CPU:
    case FA_KERNEL_REFERENCE:
    case FA_KERNEL_STANDARD: return FA_OK;
    case FA_KERNEL_V1:
    case FA_KERNEL_V2:
    case FA_KERNEL_V3:
    case FA_KERNEL_V4: return fa_gpu_kernel_supported(kernel);
    }
    return fa_fail(FA_INVALID_ARGUMENT, "kernel = %d: is not a value of fa_kernel", (int)kernel);
}

/* Tensors decide. Those on the CPU go to a GPU, an emulated one, only if somebody asked for that. */
static bool runs_on_gpu(const fa_problem *p) {
    if (p->device_type == FA_DEVICE_CUDA) return true;
    switch (p->kernel) {
    case FA_KERNEL_AUTO:
    case FA_KERNEL_STANDARD: return fa_machine_emulation_asked();
    case FA_KERNEL_CPU:
    case FA_KERNEL_REFERENCE: return false;
    default: return true;
    }
}

/* Options of the CPU kernel, for a kernel that takes the caller's thread alone. */
static fa_status refuse_cpu_options(const fa_problem *p, fa_kernel kernel) {
    if (p->isa != FA_ISA_AUTO)
        return fa_fail(FA_UNSUPPORTED, "isa = %s: only the cpu kernel has instruction sets, and kernel is %s",
                       fa_isa_name(p->isa), fa_kernel_name(kernel));
    if (p->num_splits > 1)
        return fa_fail(FA_UNSUPPORTED, "num_splits = %d: the %s kernel does not split keys", p->num_splits,
                       fa_kernel_name(kernel));
    return FA_OK;
}

static fa_status make_plan(const fa_problem *p, forward_plan *plan) {
    memset(plan, 0, sizeof *plan);
    plan->on_gpu = runs_on_gpu(p);
    if (plan->on_gpu) {
        FA_TRY(fa_gpu_forward_plan(p, &plan->gpu));
        plan->kernel = plan->gpu.kernel;
        return FA_OK;
    }
    plan->kernel = p->kernel == FA_KERNEL_AUTO ? FA_KERNEL_CPU : p->kernel;
    if (plan->kernel == FA_KERNEL_CPU) return fa_cpu_forward_plan(p, &plan->cpu);
    return refuse_cpu_options(p, plan->kernel);
}

fa_status fa_forward(const fa_tensor *q, const fa_tensor *k, const fa_tensor *v, const fa_options *options,
                     const fa_tensor *out, const fa_tensor *lse) {
    fa_problem p;
    forward_plan plan;
    FA_TRY(fa_problem_init(&p, q, k, v, options, out, lse, true));
    FA_TRY(make_plan(&p, &plan));
    if (plan.on_gpu) return fa_gpu_forward(&p, &plan.gpu);
    switch (plan.kernel) {
    case FA_KERNEL_REFERENCE: return fa_reference_forward(&p);
    case FA_KERNEL_STANDARD: return fa_standard_forward(&p);
    default: return fa_cpu_forward(&p, &plan.cpu);
    }
}

static const char *element_name(fa_element type) {
    static const char *const names[] = {"float32", "float16", "bfloat16", "float64"};
    return names[type];
}

static fa_status check_plan_size(const fa_plan_info *info) {
    if (info == NULL) return fa_fail(FA_INVALID_ARGUMENT, "plan = NULL: must point at a fa_plan_info");
    if (info->size != sizeof *info)
        return fa_fail(FA_INVALID_ARGUMENT, "plan.size = %zu: must be sizeof(fa_plan_info), %zu", info->size,
                       sizeof *info);
    return FA_OK;
}

static void begin_plan_info(fa_plan_info *info, fa_kernel kernel) {
    memset(info, 0, sizeof *info);
    info->size = sizeof *info;
    info->kernel = kernel;
    info->num_splits = 1;
    info->num_threads = 1;
    info->tile_rows = 1;
}

fa_status fa_plan(const fa_tensor *q, const fa_tensor *k, const fa_tensor *v, const fa_options *options,
                  const fa_tensor *out, const fa_tensor *lse, fa_plan_info *info) {
    fa_problem p;
    forward_plan plan;
    FA_TRY(check_plan_size(info));
    FA_TRY(fa_problem_init(&p, q, k, v, options, out, lse, false));
    FA_TRY(make_plan(&p, &plan));
    begin_plan_info(info, plan.kernel);
    if (plan.on_gpu) {
        info->tile_rows = plan.gpu.variant->block_m;
        info->tile_keys = plan.gpu.variant->block_n;
        info->workspace_bytes = plan.gpu.workspace_bytes;
        (void)snprintf(info->name, sizeof info->name, "%s on %s", fa_variant_name(plan.gpu.variant),
                       plan.gpu.machine->id);
        memcpy(info->note, plan.gpu.note, sizeof info->note);
    } else if (plan.kernel == FA_KERNEL_CPU) {
        info->isa = plan.cpu.kernels->isa;
        info->tile_rows = (int32_t)plan.cpu.tile_rows;
        info->tile_keys = FA_TILE_KEYS;
        info->num_splits = (int32_t)plan.cpu.splits;
        info->num_threads = (int32_t)plan.cpu.threads;
        info->workspace_bytes = plan.cpu.shared_bytes + plan.cpu.threads * plan.cpu.thread_bytes;
        (void)snprintf(info->name, sizeof info->name, "cpu_forward %s %s d%d", fa_isa_name(info->isa),
                       element_name(p.q.type), (int)p.head_dim);
    } else {
        info->workspace_bytes = fa_reference_workspace(&p);
        (void)snprintf(info->name, sizeof info->name, "%s_forward %s d%d", fa_kernel_name(plan.kernel),
                       element_name(p.q.type), (int)p.head_dim);
    }
    return FA_OK;
}

/* ---- Backward ---- */

typedef struct backward_plan {
    fa_kernel kernel;
    fa_cpu_backward_plan cpu;
} backward_plan;

static fa_status make_backward_plan(const fa_gradients *g, backward_plan *plan) {
    const fa_problem *p = &g->problem;
    memset(plan, 0, sizeof *plan);
    if (runs_on_gpu(p))
        return fa_fail(FA_UNSUPPORTED,
                       "kernel = %s on %s: GPU kernels have no backward pass in this version; cpu, reference and "
                       "standard have, for tensors on the CPU",
                       fa_kernel_name(p->kernel), p->device_type == FA_DEVICE_CUDA ? "a GPU" : "an emulated GPU");
    plan->kernel = p->kernel == FA_KERNEL_AUTO ? FA_KERNEL_CPU : p->kernel;
    return plan->kernel == FA_KERNEL_CPU ? fa_cpu_backward_plan_make(g, &plan->cpu)
                                         : refuse_cpu_options(p, plan->kernel);
}

fa_status fa_backward(const fa_tensor *dout, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                      const fa_tensor *out, const fa_tensor *lse, const fa_options *options, const fa_tensor *dq,
                      const fa_tensor *dk, const fa_tensor *dv) {
    const fa_backward_arguments arguments = {dout, q, k, v, out, lse, options, dq, dk, dv};
    fa_gradients g;
    backward_plan plan;
    FA_TRY(fa_gradients_init(&g, &arguments, true));
    FA_TRY(make_backward_plan(&g, &plan));
    switch (plan.kernel) {
    case FA_KERNEL_REFERENCE: return fa_reference_backward(&g);
    case FA_KERNEL_STANDARD: return fa_standard_backward(&g);
    default: return fa_cpu_backward(&g, &plan.cpu);
    }
}

fa_status fa_plan_backward(const fa_tensor *dout, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                           const fa_tensor *out, const fa_tensor *lse, const fa_options *options, const fa_tensor *dq,
                           const fa_tensor *dk, const fa_tensor *dv, fa_plan_info *info) {
    const fa_backward_arguments arguments = {dout, q, k, v, out, lse, options, dq, dk, dv};
    fa_gradients g;
    backward_plan plan;
    FA_TRY(check_plan_size(info));
    FA_TRY(fa_gradients_init(&g, &arguments, false));
    FA_TRY(make_backward_plan(&g, &plan));
    begin_plan_info(info, plan.kernel);
    const char *element = element_name(g.problem.q.type);
    int head_dim = (int)g.problem.head_dim;
    if (plan.kernel == FA_KERNEL_CPU) {
        info->isa = plan.cpu.isa;
        info->tile_rows = (int32_t)plan.cpu.tile_rows;
        info->tile_keys = (int32_t)plan.cpu.tile_keys;
        info->num_splits = (int32_t)plan.cpu.splits;
        info->num_threads = (int32_t)plan.cpu.threads;
        info->workspace_bytes = plan.cpu.shared_bytes + plan.cpu.threads * plan.cpu.thread_bytes;
        (void)snprintf(info->name, sizeof info->name, "cpu_backward %s %s d%d", fa_isa_name(info->isa), element,
                       head_dim);
    } else {
        info->workspace_bytes = fa_reference_backward_workspace(&g);
        (void)snprintf(info->name, sizeof info->name, "%s_backward %s d%d", fa_kernel_name(plan.kernel), element,
                       head_dim);
    }
    return FA_OK;
}
