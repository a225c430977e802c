# SPDX-License-Identifier: Apache-2.0
"""What the scripts for the CPU beside this file share: the peers and where they come from, taking turns, tables, plots.

A contender is a function that takes a clock and returns the seconds that one call took, and its result.
"""
import ctypes
import math
import os
import pathlib
import platform
import subprocess
import sys
import sysconfig
import time
import venv

HERE = pathlib.Path(__file__).resolve().parent
# The results of two contenders may differ by so much, as a share of the largest number in them. Plain attention in
# bfloat16 rounds its scores; ggml adds up values in float16 when it decodes.
TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-2}


def add_options(parser):
    parser.add_argument("library")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plot")
    parser.add_argument("--venv", default=os.path.expanduser("~/.cache/flashattn-peers"))


def enter_venv(directory, with_ggml=False):
    """Continues in the environment that has the peers."""
    directory = pathlib.Path(directory)
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    modules = {"torch": "torch", "matplotlib": "matplotlib", "numpy": "numpy"}
    if with_ggml:
        modules["ggml"] = "ggml-python"
    missing = [package for module, package in modules.items() if subprocess.run(
        [python, "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False).returncode != 0]
    if platform.machine() == "x86_64" and not (directory / "include" / "oneapi" / "dnnl" / "dnnl.h").exists():
        missing.append("onednn-devel-cpu-gomp")
    if missing:
        subprocess.run([python, "-m", "pip", "install", "-q", *missing], check=True)
    if os.path.realpath(sys.prefix) != os.path.realpath(directory):
        os.execv(python, [python, os.path.abspath(sys.argv[0]), *sys.argv[1:]])


def timed(call):
    def run(clock):
        begin = clock()
        result = call()
        return clock() - begin, result
    return run


def clock_of(threads):
    """With one thread its CPU time, which other processes disturb least; with more the time of day."""
    return time.thread_time if threads == 1 else time.perf_counter


# ---- oneDNN

def load_onednn():
    """onednn_attention.c, built where the environment has oneDNN; else None."""
    prefix = pathlib.Path(sys.prefix)
    source, library = HERE / "onednn_attention.c", prefix / "lib" / "libonednn_attention.so"
    if not (prefix / "include" / "oneapi" / "dnnl" / "dnnl.h").exists():
        return None
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC").split()[0]
        subprocess.run([compiler, "-std=c11", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", source, "-o", library,
                        f"-I{prefix}/include", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", "-ldnnl", "-lm"], check=True)
    onednn = ctypes.CDLL(str(library))
    onednn.onednn_attention_new.restype = ctypes.c_void_p
    onednn.onednn_attention_new.argtypes = [ctypes.c_int64] * 12 + [ctypes.c_int] * 4 + [ctypes.c_int64, ctypes.c_int]
    onednn.onednn_attention_free.argtypes = [ctypes.c_void_p]
    onednn.onednn_attention_forward.argtypes = [ctypes.c_void_p] * 5
    onednn.onednn_attention_backward.argtypes = [ctypes.c_void_p] * 10
    return onednn


class OneDNN:
    """One composition for one shape. Tensors are [batch, seqlen, heads, head_dim], with any strides but the last."""

    def __init__(self, onednn, threads, q, k, causal, backward, pack, row_block):
        b, sq, h, d = q.shape
        sk, hk = k.shape[1:3]
        dtype = ("float32", "bfloat16", "float16").index(str(q.dtype)[6:])
        self.onednn, self.backward = onednn, backward
        self.handle = onednn.onednn_attention_new(b, h, hk, sq, sk, d, *q.stride()[:3], *k.stride()[:3], dtype, causal,
                                                  backward, pack, row_block, threads)

    def __call__(self, *tensors):
        function = self.onednn.onednn_attention_backward if self.backward else self.onednn.onednn_attention_forward
        status = function(self.handle, *(t.data_ptr() for t in tensors))
        if status != 0:
            raise RuntimeError(f"oneDNN: status {status}")

    def __del__(self):
        if self.handle:
            self.onednn.onednn_attention_free(self.handle)


def onednn_contender(onednn, threads, q, k, causal, backward, tensors, result):
    """The fastest of a few compositions, as a trial of each shows; None where oneDNN has none for this dtype."""
    clock = clock_of(threads)
    best = (math.inf, None)
    for row_block in [rows for rows in (64, 128, 256) if rows == 64 or rows < 2 * q.shape[1]]:
        for pack in ((1,) if backward else (0, 1)):
            composition = OneDNN(onednn, threads, q, k, causal, backward, pack, row_block)
            if not composition.handle:
                return None
            run = timed(lambda: composition(*tensors))
            run(clock)
            seconds = min(run(clock)[0] for _ in range(2))
            if seconds < best[0]:
                best = (seconds, composition)

    def call(composition=best[1]):
        composition(*tensors)
        return result
    return timed(call)


# ---- measuring

def check(contenders, what, dtype):
    """One call each: a contender that computes something else is none. NaN fails."""
    expected = None
    for name, run in contenders.items():
        result = [t.float().clone() for t in run(time.perf_counter)[1]]
        expected = expected or result
        for x, y in zip(result, expected):
            difference = ((x - y).abs().max() / y.abs().max()).item()
            if not difference <= TOLERANCES[dtype]:
                raise SystemExit(f"{what}: {name} differs from {next(iter(contenders))} by {difference:.3g} of the largest")


def measure(contenders, rounds, clock):
    """The best seconds of each; they take turns, of a few milliseconds where calls are short."""
    best = {name: math.inf for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            for _ in range(max(1, min(20, int(5e-3 / best[name])))):
                best[name] = min(best[name], run(clock)[0])
    return best


def best_peer(best):
    return min(((seconds, name) for name, seconds in best.items() if name != "flashattn"))


def table_head(first, names):
    print(f"| {first} | dtype | {' | '.join(names)} | best peer / flashattn | GFLOP/s |")
    print("| --- " * (len(names) + 4) + "|")


def table_row(label, dtype, names, best, flops):
    cells = " | ".join(f"{best[name] * 1e3:.4g}" if name in best else "" for name in names)
    seconds, peer = best_peer(best)
    print(f"| {label} | {dtype} | {cells} | {seconds / best['flashattn']:.2f} ({peer}) | "
          f"{flops / best['flashattn'] * 1e-9:.1f} |", flush=True)


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def plot(path, title, rows, threads):
    """rows: (label, dtype, {name: seconds}, flops). How many times as long as flashattn each peer takes, a panel per dtype."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    labels = list(dict.fromkeys(row[0] for row in rows))
    dtypes = list(dict.fromkeys(row[1] for row in rows))
    names = [n for n in dict.fromkeys(name for row in rows for name in row[2]) if n != "flashattn"]
    marks = dict(zip(names, [("o", "tab:orange"), ("s", "tab:gray"), ("D", "tab:blue"), ("^", "tab:purple"),
                             ("v", "tab:brown")]))
    figure, panels = pyplot.subplots(1, len(dtypes), sharex=True, sharey=True, squeeze=False, layout="constrained",
                                     figsize=(2.6 + 3.2 * len(dtypes), 1.5 + 0.3 * len(labels)))
    ratios = [seconds / best["flashattn"] for _, _, best, _ in rows for seconds in best.values()]
    for panel, dtype in zip(panels[0], dtypes):
        panel.axvline(1, color="tab:green", linewidth=2, label="flashattn")
        for name in names:
            points = [(best[name] / best["flashattn"], labels.index(label))
                      for label, kind, best, _ in rows if kind == dtype and name in best]
            if points:
                panel.plot(*zip(*points), marks[name][0], color=marks[name][1], markersize=6, alpha=0.85, label=name)
        for label, kind, best, _ in rows:
            if kind == dtype:
                panel.hlines(labels.index(label), 1, best_peer(best)[0] / best["flashattn"], color="0.75", zorder=0)
        panel.set_title(dtype)
        panel.set_xlabel("time / time of flashattn", fontsize=9)
        panel.set_xscale("log")
        panel.set_xlim(min(0.8, 0.9 * min(ratios)), 1.15 * max(ratios))
        ticks = [t for t in (0.5, 1, 2, 3, 5, 10, 20, 50, 100, 200) if min(0.8, min(ratios)) <= t <= 1.15 * max(ratios)]
        panel.set_xticks(ticks, [f"{t:g}" for t in ticks])
        panel.minorticks_off()
        panel.grid(axis="x", color="0.9")
        panel.set_axisbelow(True)
    panels[0][0].set_yticks(range(len(labels)), labels, fontsize=8)
    panels[0][0].invert_yaxis()
    panels[0][0].set_ylabel("batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim", fontsize=8)
    figure.suptitle(f"{title}, {threads} thread{'s' if threads > 1 else ''}, {processor()}", fontsize=11)
    handles = {label: handle for panel in panels[0] for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), fontsize=9)
    figure.savefig(path, dpi=100)
