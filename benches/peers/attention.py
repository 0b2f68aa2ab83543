"""Attention alone in PyTorch, on the sizes of examples/attention_times.rs: microseconds by cuDNN, on queries, keys and
values that lie side by side as one layer writes them and on contiguous ones, and by FlashAttention-2.

usage: attention.py [ROUNDS]

Operands are random and rotate over more memory than a GPU's L2 cache has; 12 launches in a CUDA graph, the median of
rounds in which all run in turn.
"""

import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import alone

SIZES = [(1, 12, 197, 64), (32, 12, 197, 64), (128, 12, 197, 64), (64, 16, 257, 64), (32, 16, 384, 64), (8, 12, 1500, 64),
         (16, 16, 577, 128)]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for images, heads, rows, dims in SIZES:
        copies = alone.copies(8 * images * heads * rows * dims)
        packed = [torch.randn(images, rows, 3, heads, dims, device="cuda", dtype=torch.half) for _ in range(copies)]
        packed = [[one[:, :, i].transpose(1, 2) for i in range(3)] for one in packed]
        contiguous = [[x.contiguous() for x in one] for one in packed]
        ways = {
            "cuDNN side by side": (by(SDPBackend.CUDNN_ATTENTION), packed),
            "cuDNN contiguous": (by(SDPBackend.CUDNN_ATTENTION), contiguous),
            "FlashAttention-2": (by(SDPBackend.FLASH_ATTENTION), contiguous),
        }
        print(f"{images:4} x {heads} x {rows} x {dims}: {alone.times(ways, rounds)}", flush=True)


def by(backend):
    """Attention by one of PyTorch's libraries."""

    def attention(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v)

    return attention


main()
