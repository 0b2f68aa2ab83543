"""Attention alone in PyTorch, on the sizes of examples/attention_times.rs: microseconds by cuDNN, on queries, keys and
values that lie side by side as one layer writes them and on contiguous ones, and by FlashAttention-2.

usage: attention.py [ROUNDS]

Operands are random and rotate over more memory than a GPU's L2 cache has; 12 launches in a CUDA graph, the median of
rounds in which all run in turn.
"""

import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SIZES = [(1, 12, 197, 64), (32, 12, 197, 64), (128, 12, 197, 64), (64, 16, 257, 64), (32, 16, 384, 64), (8, 12, 1500, 64),
         (16, 16, 577, 128)]
LAUNCHES = 12


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for images, heads, rows, dims in SIZES:
        copies = min(max(2, (200 << 20) // (8 * images * heads * rows * dims)), LAUNCHES)
        packed = [torch.randn(images, rows, 3, heads, dims, device="cuda", dtype=torch.half) for _ in range(copies)]
        packed = [[one[:, :, i].transpose(1, 2) for i in range(3)] for one in packed]
        contiguous = [[x.contiguous() for x in one] for one in packed]
        ways = {
            "cuDNN side by side": graph(SDPBackend.CUDNN_ATTENTION, packed),
            "cuDNN contiguous": graph(SDPBackend.CUDNN_ATTENTION, contiguous),
            "FlashAttention-2": graph(SDPBackend.FLASH_ATTENTION, contiguous),
        }
        times = {name: [] for name in ways}
        for _ in range(rounds):
            for name, one in ways.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                one.replay()
                start.record()
                one.replay()
                end.record()
                end.synchronize()
                times[name].append(start.elapsed_time(end) * 1000 / LAUNCHES)
        told = "; ".join(f"{name} {statistics.median(t):.1f}" for name, t in times.items())
        print(f"{images:4} x {heads} x {rows} x {dims}: {told}", flush=True)


def graph(backend, operands):
    """A graph of launches on one copy of the operands after the other."""

    def launch(i):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*operands[i % len(operands)])

    launch(0)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for i in range(LAUNCHES):
            launch(i)
    return captured


main()
