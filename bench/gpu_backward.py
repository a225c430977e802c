#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Backward on one NVIDIA GPU against PyTorch's FlashAttention-2 and cuDNN, in the same run.

    python3 bench/gpu_backward.py LIBRARY [--kernel v2,v3] [--head-dim 64,128,256] [--seqlen 512,..,16384] [--causal 0,1]
                                          [--deterministic 0,1] [--peer NAME=MODULE.py]

LIBRARY is libflashattn.so. 16384 tokens and hidden size 2048 at every point, bfloat16, random normal data. Contenders do
nothing but the backward pass, from the out and lse of their own forward pass; ours runs as it is and deterministic. Each is
captured in a CUDA graph of several calls, so that no launch overhead of the host is measured; graphs are replayed in turns
(A B C A B C ...), and the median of the replays counts. FLOPs: 10 b h s^2 d, half of it if causal.

--peer adds one more contender, such as FlashAttention-3: a Python file with backward(dout, q, k, v, out, lse, dq, dk, dv, causal)
for tensors [batch, seqlen, heads, head_dim] on the current stream.

Before a point is measured, our gradients are compared with the peer's: the run ends where they differ by more than rounding.
"""
import argparse
import ctypes

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from gpu_forward import HIDDEN, TOKENS, capture, capture_stream, milliseconds, named_peer, numbers, ours
from library import addresses, load, tensor


def our_backward(flashattn, kernel, dout, q, k, v, out, lse, gradients, causal, deterministic):
    inputs = [tensor(flashattn, t) for t in (dout, q, k, v, out, lse)]
    outputs = [tensor(flashattn, t) for t in gradients]

    def call():
        options = flashattn.Options(size=ctypes.sizeof(flashattn.Options), causal=int(causal),
                                    kernel=flashattn.KERNELS[kernel], deterministic=deterministic,
                                    stream=torch.cuda.current_stream().cuda_stream)
        flashattn.check(flashattn.library.fa_backward(*addresses(*inputs, options, *outputs)))
    return call


def peer_backward(backend, dout, q, k, v, causal):
    """The call, and the gradients of a first one, in our order of dimensions."""
    with torch.cuda.stream(capture_stream()), sdpa_kernel(backend):
        leaves = [t.detach().transpose(1, 2).requires_grad_() for t in (q, k, v)]
        out = scaled_dot_product_attention(*leaves, is_causal=bool(causal))

    def call():
        return torch.autograd.grad(out, leaves, dout.transpose(1, 2), retain_graph=True)
    with torch.cuda.stream(capture_stream()):
        gradients = [g.transpose(1, 2) for g in call()]
    torch.cuda.synchronize()
    return call, gradients


def compare(ours, theirs, what):
    for name, x, y in zip(("dq", "dk", "dv"), ours, theirs):
        difference = ((x.float() - y.float()).norm() / y.float().norm()).item()
        if not difference < 0.02:  # a few units of bfloat16; NaN fails as well
            raise SystemExit(f"{what}: {name} differs from the peer's by {difference:.3g} of its norm")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--kernel", default="v2,v3")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128, 256])
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--deterministic", type=numbers, default=[0, 1])
    parser.add_argument("--peer", type=named_peer, metavar="NAME=MODULE.py")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    flashattn = load(arguments.library)
    ways = [(name, d) for name in arguments.kernel.split(",") for d in arguments.deterministic]
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}; TFLOP/s, "
          "ratio to FlashAttention-2 and to the best peer; det: deterministic")
    print("head_dim causal seqlen    FA2  cuDNN" + (f"{arguments.peer[0]:>7}" if arguments.peer else "") +
          "".join(f"{name + (' det' if d else ''):>7}  /FA2 /best" for name, d in ways))
    torch.manual_seed(0)
    for head_dim in arguments.head_dim:
        for causal in arguments.causal:
            for seqlen in arguments.seqlen:
                batch, heads = TOKENS // seqlen, HIDDEN // head_dim
                q, k, v, dout = (torch.randn(batch, seqlen, heads, head_dim, device="cuda", dtype=torch.bfloat16)
                                 for _ in range(4))
                out = torch.empty_like(q)
                lse = torch.empty(batch, heads, seqlen, device="cuda")
                gradients = [torch.empty_like(t) for t in (q, k, v)]
                ours(flashattn, "v2", q, k, v, out, lse, causal)()
                flops = 10.0 * batch * heads * seqlen * seqlen * head_dim / (2 if causal else 1)
                calls = max(1, min(10, int(3e12 / flops)))
                flash, expected = peer_backward(SDPBackend.FLASH_ATTENTION, dout, q, k, v, causal)
                cudnn, _ = peer_backward(SDPBackend.CUDNN_ATTENTION, dout, q, k, v, causal)
                contenders = [flash, cudnn]
                if arguments.peer:
                    contenders.append(lambda: arguments.peer[1].backward(dout, q, k, v, out, lse, *gradients, bool(causal)))
                peers = len(contenders)
                for name, deterministic in ways:
                    call = our_backward(flashattn, name, dout, q, k, v, out, lse, gradients, causal, deterministic)
                    call()
                    compare(gradients, expected, f"{name}, head_dim {head_dim}, causal {causal}, seqlen {seqlen}")
                    contenders.append(call)
                ms = milliseconds([capture(c, calls) for c in contenders], calls, arguments.rounds)
                rates = [flops / t * 1e-9 for t in ms]
                print(f"{head_dim:8} {'yes' if causal else 'no':>6} {seqlen:6}" +
                      "".join(f"{r:7.0f}" for r in rates[:peers]) +
                      "".join(f"{r:7.0f} {r / rates[0]:5.2f} {r / max(rates[:peers]):5.2f}" for r in rates[peers:]),
                      flush=True)


if __name__ == "__main__":
    main()
