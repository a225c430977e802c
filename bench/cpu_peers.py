#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forward on the CPU against PyTorch, and llama.cpp's ggml where its Python package is to be had, in the same run.

    python3 bench/cpu_peers.py LIBRARY [--threads 1] [--rounds 7] [--cases prefill,decode,small] [--plot FILE.png]
                               [--venv DIR] [--with-ggml]

LIBRARY is libflashattn.so. The peers live in a virtual environment, DIR, which is made at the first run: PyPI's torch and
matplotlib (some GB on x86-64), with --with-ggml also ggml-python, which is compiled. Contenders take turns (A B C A B C ...),
and the best of each counts. With one thread it is the thread's CPU time, which other processes disturb least; with more it
is the clock. Random normal data. FLOPs: 2 (d + dv) for each pair of a query and a key that it may see.

flash: scaled_dot_product_attention with SDPBackend.FLASH_ATTENTION. math: the same with SDPBackend.MATH, plain attention.
"""
import argparse
import ctypes
import os
import subprocess
import sys
import time
import venv

from library import addresses, load, tensor

# name: batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, causal
CASES = {
    "prefill": [(1, 16, 16, 1024, 1024, 64, 0), (1, 16, 16, 1024, 1024, 64, 1), (1, 16, 16, 2048, 2048, 128, 0),
                (1, 16, 16, 2048, 2048, 128, 1), (1, 8, 2, 4096, 4096, 128, 1)],
    "decode": [(1, 32, 8, 1, 8192, 128, 0), (8, 32, 8, 1, 4096, 128, 0)],
    "small": [(1, 1, 1, 1, 1, 64, 0), (1, 8, 8, 1, 64, 64, 0), (1, 8, 8, 4, 4, 64, 1), (1, 8, 8, 16, 16, 64, 0),
              (1, 12, 12, 24, 24, 32, 0), (4, 8, 8, 32, 32, 64, 1), (1, 8, 8, 64, 64, 128, 0), (1, 8, 8, 128, 128, 64, 1),
              (32, 8, 8, 16, 16, 32, 0)],
}
DTYPES = ("float32", "bfloat16", "float16")


def enter_venv(arguments):
    """Continues in the environment that has the peers."""
    python = os.path.join(arguments.venv, "bin", "python")
    if not os.path.exists(python):
        venv.create(arguments.venv, with_pip=True)
    wanted = ["torch", "matplotlib"] + (["ggml-python"] if arguments.with_ggml else [])
    missing = [name for name in wanted if subprocess.run(
        [python, "-c", f"import {name.replace('-python', '')}"], stderr=subprocess.DEVNULL, check=False).returncode != 0]
    if missing:
        subprocess.run([python, "-m", "pip", "install", "-q", *missing], check=True)
    if os.path.realpath(sys.prefix) != os.path.realpath(arguments.venv):
        os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])


def ours(flashattn, threads, q, k, v, out, causal):
    q, k, v, result = tensors = [tensor(flashattn, t) for t in (q, k, v, out)]
    options = flashattn.Options(size=ctypes.sizeof(flashattn.Options), causal=2 * causal, num_threads=threads)
    pointers = [*addresses(q, k, v, options, result), None]

    def call(alive=(tensors, options)):
        flashattn.check(flashattn.library.fa_forward(*pointers))
        return out
    return call


def pytorch(backend, q, k, v, causal):
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def call():
        return scaled_dot_product_attention(q, k, v, is_causal=bool(causal), enable_gqa=grouped).transpose(1, 2)

    def in_context(clock):
        with sdpa_kernel(backend):  # not timed: entering costs as much as a small call
            begin = clock()
            result = call()
            return clock() - begin, result
    return in_context


def timed(call):
    def run(clock):
        begin = clock()
        result = call()
        return clock() - begin, result
    return run


def ggml_flash(threads, q, k, v, causal):
    """ggml_flash_attn_ext with float32 Q and float16 K and V, as llama.cpp calls it; None where it does not fit."""
    import ggml
    import torch
    if q.dtype != torch.float16:
        return None
    b, sq, h, d = q.shape
    sk, hk = k.shape[1:3]
    context = ggml.ggml_init(ggml.ggml_init_params(mem_size=(512 << 20) + 8 * q.numel() + 4 * k.numel(), mem_buffer=None))

    def tensor(kind, values):
        t = ggml.ggml_new_tensor_4d(context, kind, *reversed(values.shape))
        ctypes.memmove(ggml.ggml_get_data(t), values.data_ptr(), values.numel() * values.element_size())
        return t
    gq = tensor(ggml.GGML_TYPE_F32, q.transpose(1, 2).float().contiguous())
    gk, gv = (tensor(ggml.GGML_TYPE_F16, t.transpose(1, 2).contiguous()) for t in (k, v))
    mask = None
    if causal:
        hidden = torch.full((1, 1, (sq + 63) // 64 * 64, sk), float("-inf"), dtype=torch.float16).triu(1 + sk - sq)
        mask = tensor(ggml.GGML_TYPE_F16, hidden)
    result = ggml.ggml_flash_attn_ext(context, gq, gk, gv, mask, d ** -0.5, 0.0, 0.0)
    graph = ggml.ggml_new_graph(context)
    ggml.ggml_build_forward_expand(graph, result)

    def call():
        ggml.ggml_graph_compute_with_ctx(context, graph, threads)
        address = ctypes.cast(ggml.ggml_get_data(result), ctypes.POINTER(ctypes.c_float))
        return torch.frombuffer((ctypes.c_float * (b * sq * h * d)).from_address(
            ctypes.addressof(address.contents)), dtype=torch.float32).view(b, sq, h, d)
    return timed(call)


def measure(contenders, rounds, clock):
    best = {name: float("inf") for name in contenders}
    results = {}
    for _ in range(rounds):
        for name, run in contenders.items():
            repeats = 1 if best[name] > 1e-3 else 20
            for _ in range(repeats):
                seconds, results[name] = run(clock)
                best[name] = min(best[name], seconds)
    return best, results


def plot(path, rows, threads):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    names = list(dict.fromkeys(name for _, _, best, _ in rows for name in best))
    figure, axes = pyplot.subplots(figsize=(11, 0.42 * len(rows) + 1.5))
    for i, name in enumerate(names):
        at = [j + 0.8 * i / len(names) for j, row in enumerate(rows) if name in row[2]]
        axes.barh(at, [row[3] / row[2][name] * 1e-9 for row in rows if name in row[2]], 0.8 / len(names), label=name)
    axes.set_yticks([j + 0.3 for j in range(len(rows))], [row[0] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"GFLOP/s, {threads} thread{'s' if threads > 1 else ''}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", default="prefill,decode,small")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--plot")
    parser.add_argument("--venv", default=os.path.expanduser("~/.cache/flashattn-peers"))
    parser.add_argument("--with-ggml", action="store_true")
    arguments = parser.parse_args()
    enter_venv(arguments)
    import torch
    from torch.nn.attention import SDPBackend
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    flashattn = load(arguments.library)
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    rows = []
    print(f"PyTorch {torch.__version__}, {arguments.threads} thread(s), best of {arguments.rounds} rounds, milliseconds\n")
    print("| case (b, h, hk, sq, sk, d) | dtype | flashattn | flash | math | ggml | flash / ours | GFLOP/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in arguments.cases.split(","):
        for case in CASES[kind]:
            for dtype in arguments.dtypes.split(","):
                b, h, hk, sq, sk, d, causal = case
                q, k, v = (torch.randn(shape).to(getattr(torch, dtype)) for shape in
                           ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, d)))
                contenders = {"flashattn": timed(ours(flashattn, arguments.threads, q, k, v, torch.empty_like(q), causal)),
                              "flash": pytorch(SDPBackend.FLASH_ATTENTION, q, k, v, causal)}
                if b * h * sq * sk <= 1 << 26:
                    contenders["math"] = pytorch(SDPBackend.MATH, q, k, v, causal)
                other = ggml_flash(arguments.threads, q, k, v, causal) if arguments.with_ggml else None
                if other is not None:
                    contenders["ggml"] = other
                best, results = measure(contenders, arguments.rounds, clock)
                for name, result in results.items():  # a peer that computes something else is no peer
                    difference = (result.float() - results["flash"].float()).abs().max().item()
                    if not difference < 0.05:
                        raise RuntimeError(f"{case} {dtype}: {name} differs from flash by {difference}")
                pairs = sq * (sq + 1) / 2 if causal else sq * sk
                flops = 4.0 * b * h * pairs * d
                cells = [f"{best[name] * 1e3:.4g}" if name in best else "" for name in ("flashattn", "flash", "math", "ggml")]
                name = f"{b}, {h}, {hk}, {sq}, {sk}, {d}{' causal' if causal else ''}"
                print(f"| {name} | {dtype} | {' | '.join(cells)} | {best['flash'] / best['flashattn']:.2f} | "
                      f"{flops / best['flashattn'] * 1e-9:.1f} |", flush=True)
                rows.append((f"{name} {dtype}", dtype, best, flops))
    if arguments.plot:
        plot(arguments.plot, rows, arguments.threads)


if __name__ == "__main__":
    main()
