"""The error that parity is judged by. No torch here."""

import numpy as np


def errors(outputs, reference, mean_of=None):
    """‖out − ref‖ / ‖ref − mean‖ for each image; `mean` is that of the first `mean_of` references (default: all).

    The mean is what all images share: an output that ignored its image would have an error of about 1.
    Anything that is not finite has an infinite error.
    """
    if outputs.shape != reference.shape:
        raise ValueError(f"outputs {outputs.shape}, reference {reference.shape}")
    rows = len(reference)
    ref = reference.reshape(rows, -1).astype(np.float64)
    out = outputs.reshape(rows, -1).astype(np.float64)
    signal = np.linalg.norm(ref - ref[:mean_of].mean(axis=0), axis=1)
    if not np.isfinite(signal).all() or (signal == 0).any():
        raise ValueError("the reference is not finite, or an image does not differ from the mean of all")
    with np.errstate(invalid="ignore"):
        error = np.linalg.norm(out - ref, axis=1) / signal
    return np.where(np.isfinite(error), error, np.inf)


def markdown(header, rows):
    """A table; numbers as they come, columns padded so that it reads well as plain text too."""
    cells = [[str(c) for c in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
