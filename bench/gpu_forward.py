#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forward on one NVIDIA GPU against PyTorch's FlashAttention-2 and cuDNN, in the same run; or against itself, built with
and without a technique.

    python3 bench/gpu_forward.py LIBRARY [--kernel v1,v2,v3] [--head-dim 64,128,256] [--seqlen 512,..,16384] [--causal 0,1]
                                         [--peer NAME=MODULE.py] [--sustained SECONDS]
    python3 bench/gpu_forward.py --ablation NAME=LIBRARY NAME=LIBRARY ... [--kernel v3] [...]

LIBRARY is libflashattn.so; bench/build_ablation.sh builds those of an ablation, and prints the command. The first of them
is what the others are compared with: their outputs as well, before they are measured. 16384 tokens and hidden size 2048 at
every point, bfloat16, random normal data. Each contender is captured in a CUDA graph of several calls, so that no launch
overhead of the host is measured; graphs are replayed in turns (A B C A B C ...), and the median of the replays counts.
FLOPs: 4 b h s^2 d, half of it if causal.

--peer adds one more contender, such as FlashAttention-3: a Python file with forward(q, k, v, out, lse, causal) for tensors
[batch, seqlen, heads, head_dim] on the current stream. --sustained has each contender run for so long without a pause, as
long as it takes the card to reach its power limit, and beside them a matrix product of 8192 x 8192 x 8192.
"""
import argparse
import ctypes
import importlib.util
import math
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from library import addresses, load, tensor

TOKENS, HIDDEN = 16384, 2048


def ours(flashattn, kernel, q, k, v, out, lse, causal):
    tensors = [tensor(flashattn, t) for t in (q, k, v, out, lse)]

    def call():
        options = flashattn.Options(size=ctypes.sizeof(flashattn.Options), causal=int(causal),
                                    kernel=flashattn.KERNELS[kernel], stream=torch.cuda.current_stream().cuda_stream)
        flashattn.check(flashattn.library.fa_forward(*addresses(*tensors[:3], options, *tensors[3:])))
    return call


def peer(backend, q, k, v, causal):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))

    def call():
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=bool(causal))
    return call


def load_peer(path):
    spec = importlib.util.spec_from_file_location("peer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def capture_stream():
    """The one stream on which calls are captured: PyTorch runs a backward pass on the stream of its forward pass."""
    if not hasattr(capture_stream, "stream"):
        capture_stream.stream = torch.cuda.Stream()
    capture_stream.stream.wait_stream(torch.cuda.current_stream())
    return capture_stream.stream


def capture(call, calls):
    stream = capture_stream()
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    return graph


def milliseconds(graphs, calls, rounds):
    times = [[] for _ in graphs]
    for graph in graphs:
        graph.replay()
    for _ in range(rounds):
        for graph, values in zip(graphs, times):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            values.append(begin.elapsed_time(end) / calls)
    return [statistics.median(values) for values in times]


def numbers(text):
    return [int(x) for x in text.split(",")]


class Point:
    """A shape: its tensors, and what a call of it costs."""

    def __init__(self, head_dim, causal, seqlen):
        batch, heads = TOKENS // seqlen, HIDDEN // head_dim
        self.head_dim, self.causal, self.seqlen = head_dim, causal, seqlen
        self.q, self.k, self.v = (torch.randn(batch, seqlen, heads, head_dim, device="cuda", dtype=torch.bfloat16)
                                  for _ in range(3))
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty(batch, heads, seqlen, device="cuda")
        self.flops = 4.0 * batch * heads * seqlen * seqlen * head_dim / (2 if causal else 1)

    def ours(self, flashattn, kernel):
        return ours(flashattn, kernel, self.q, self.k, self.v, self.out, self.lse, self.causal)

    def rates(self, contenders, rounds):
        """TFLOP/s of each, measured in turns."""
        calls = max(1, min(10, int(3e12 / self.flops)))
        ms = milliseconds([capture(c, calls) for c in contenders], calls, rounds)
        return [self.flops / t * 1e-9 for t in ms]

    def __str__(self):
        return f"{self.head_dim:8} {'yes' if self.causal else 'no':>6} {self.seqlen:6}"


def points(arguments):
    torch.manual_seed(0)
    for head_dim in arguments.head_dim:
        for causal in arguments.causal:
            for seqlen in arguments.seqlen:
                yield Point(head_dim, causal, seqlen)


def contenders_of(p, arguments, flashattn, kernels):
    """Names, calls, and how many of them are peers."""
    peers = [("FA2", peer(SDPBackend.FLASH_ATTENTION, p.q, p.k, p.v, p.causal)),
             ("cuDNN", peer(SDPBackend.CUDNN_ATTENTION, p.q, p.k, p.v, p.causal))]
    if arguments.peer:
        name, module = arguments.peer
        peers.append((name, lambda: module.forward(p.q, p.k, p.v, p.out, p.lse, bool(p.causal))))
    names, calls = zip(*(peers + [(name, p.ours(flashattn, name)) for name in kernels]))
    return names, calls, len(peers)


def against_peers(arguments):
    flashattn = load(arguments.library)
    kernels = (arguments.kernel or "v1,v2,v3").split(",")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; TFLOP/s, "
          "ratio to FlashAttention-2 and to the best peer")
    for i, p in enumerate(points(arguments)):
        names, calls, peers = contenders_of(p, arguments, flashattn, kernels)
        if i == 0:
            print("head_dim causal seqlen" + "".join(f"{name:>7}" for name in names[:peers]) +
                  "".join(f"{name:>7}  /FA2 /best" for name in names[peers:]))
        rates = p.rates(calls, arguments.rounds)
        print(f"{p}" + "".join(f"{r:7.0f}" for r in rates[:peers]) +
              "".join(f"{r:7.0f} {r / rates[0]:5.2f} {r / max(rates[:peers]):5.2f}" for r in rates[peers:]), flush=True)


def run_for(call, seconds):
    """Calls per second."""
    call()
    torch.cuda.synchronize()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        count += 20
    return count / (time.perf_counter() - begin)


def sustained(arguments):
    flashattn = load(arguments.library)
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; TFLOP/s over "
          f"{arguments.sustained} s each")
    for p in points(arguments):
        names, calls, _ = contenders_of(p, arguments, flashattn, (arguments.kernel or "v3").split(","))
        for name, call in zip(names, calls):
            print(f"{p} {name:>6} {run_for(call, arguments.sustained) * p.flops * 1e-12:6.0f}", flush=True)
        print(f"{p}   GEMM {run_for(lambda: torch.matmul(a, b), arguments.sustained) * 2 * n ** 3 * 1e-12:6.0f}", flush=True)


def check_outputs(p, names, calls):
    """Leaving out a technique changes the time alone: at most the last bits may differ."""
    for name, call in zip(names, calls):
        p.out.fill_(float("nan"))
        call()
        if name == names[0]:
            expected = p.out.float()
        difference = ((p.out.float() - expected).norm() / expected.norm()).item()
        if not difference < 1e-3:  # NaN fails as well
            raise SystemExit(f"{name}, head_dim {p.head_dim}, causal {p.causal}, seqlen {p.seqlen}: the output differs from "
                             f"that of {names[0]} by {difference:.3g} of its norm")


def ablation(arguments):
    names, libraries = zip(*((name, load(path)) for name, path in arguments.ablation))
    kernel = arguments.kernel or "v3"
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; {kernel}, TFLOP/s, ratio to {names[0]}")
    widths = [max(6, len(name)) for name in names]
    print("head_dim causal seqlen " + " ".join(f"{name:>{width}}" + ("" if i == 0 else "  ratio")
                                               for i, (name, width) in enumerate(zip(names, widths))))
    logarithms = [0.0] * len(names)
    count = 0
    for p in points(arguments):
        calls = [p.ours(flashattn, kernel) for flashattn in libraries]
        check_outputs(p, names, calls)
        rates = p.rates(calls, arguments.rounds)
        print(f"{p} " + " ".join(f"{r:{width}.0f}" + ("" if i == 0 else f" {r / rates[0]:6.3f}")
                                 for i, (r, width) in enumerate(zip(rates, widths))), flush=True)
        logarithms = [sum_ + math.log(r / rates[0]) for sum_, r in zip(logarithms, rates)]
        count += 1
    for name, sum_ in zip(names[1:], logarithms[1:]):
        print(f"{name}: geometric mean {math.exp(sum_ / count):.3f} of {names[0]}")


def named_library(text):
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=LIBRARY")
    return name, path


def named_peer(text):
    name, path = named_library(text)
    return name, load_peer(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--ablation", type=named_library, nargs="+", metavar="NAME=LIBRARY")
    parser.add_argument("--kernel", help="default v1,v2,v3; with --ablation one alone, v3")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256])
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--peer", type=named_peer, metavar="NAME=MODULE.py")
    parser.add_argument("--sustained", type=float, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    if (arguments.library is None) == (arguments.ablation is None):
        parser.error("give either LIBRARY or --ablation")
    if arguments.ablation:
        ablation(arguments)
    elif arguments.sustained:
        sustained(arguments)
    else:
        against_peers(arguments)


if __name__ == "__main__":
    main()
