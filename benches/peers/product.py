"""Matrix products and LayerNorm alone in PyTorch, those of examples/product_times.rs and row_norm_times.rs: microseconds
of torch.nn.functional.linear, with GELU or a residual addition behind it, of what cuBLASLt does of that in one kernel,
and of torch.nn.functional.layer_norm.

usage: product.py [ROUNDS]

Operands are random and rotate over more memory than a GPU's L2 cache has; 12 launches in a CUDA graph, the median of
rounds in which all run in turn. `one kernel` has GELU by tanh (torch._addmm_activation), or the residual in place of the
bias (torch.addmm).
"""

import sys

import torch
import torch.nn.functional as F

import alone

ROWS = [197, 384, 1576, 6304, 25216]
LAYERS = [(2304, 768, ""), (768, 768, "residual"), (3072, 768, "GELU"), (768, 3072, "residual")]
NORMS = [(197, 768), (1576, 768), (25216, 768), (12288, 1024)]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    for m in ROWS:
        for n, k, epilogue in LAYERS:
            copies = alone.copies(2 * (m * k + n * k + 2 * m * n))
            half = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.half)
            operands = [(half(m, k), half(n, k) * k**-0.5, half(n), half(m, n)) for _ in range(copies)]
            ways = {"linear": lambda x, w, b, r: F.linear(x, w, b)}
            if epilogue == "GELU":
                ways["linear, GELU"] = lambda x, w, b, r: F.gelu(F.linear(x, w, b))
                ways["one kernel"] = lambda x, w, b, r: torch._addmm_activation(b, x, w.t(), use_gelu=True)
            if epilogue == "residual":
                ways["linear, residual"] = lambda x, w, b, r: F.linear(x, w, b) + r
                ways["one kernel"] = lambda x, w, b, r: torch.addmm(r, x, w.t())
            print(f"{m:5} x {n} x {k}: {times(ways, operands, rounds)}", flush=True)
    for rows, columns in NORMS:
        copies = alone.copies(4 * rows * columns)
        operands = [[torch.randn(rows, columns, device="cuda", dtype=torch.half)] for _ in range(copies)]
        weight, bias = (torch.randn(columns, device="cuda", dtype=torch.half) for _ in range(2))
        ways = {"layer_norm": lambda x: F.layer_norm(x, (columns,), weight, bias, 1e-6)}
        print(f"{rows:5} x {columns}: {times(ways, operands, rounds)}", flush=True)


def times(ways, operands, rounds):
    """Medians of the microseconds of each way on the same operands, in words."""
    return alone.times({name: (way, operands) for name, way in ways.items()}, rounds)


with torch.no_grad():
    main()
