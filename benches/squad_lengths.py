#!/usr/bin/env python3
"""Writes benches/data/squad_lengths.txt: lengths of texts like those of SQuAD, from a seed.

    python3 benches/squad_lengths.py

They are not lengths of SQuAD itself. What is known of that, cut at 384 tokens as benchmarks of BERT do it, is its mean of
177 tokens; the rest is an assumption: lengths are lognormal with a deviation of 0.36 of their logarithms, at least 32 and
at most 384. The median is moved until the mean of the list is 177 within half a token.
"""

import random
from pathlib import Path

COUNT, MEAN, LEAST, MOST, DEVIATION, SEED = 2048, 177, 32, 384, 0.36, 17


def lengths(median):
    """All lengths, by the same random numbers whatever the median is."""
    draw = random.Random(SEED)
    return [min(max(round(median * 2.718281828459045 ** draw.gauss(0, DEVIATION)), LEAST), MOST) for _ in range(COUNT)]


def main():
    found = next(of for of in map(lengths, range(LEAST, MOST)) if sum(of) >= (MEAN - 0.5) * COUNT)
    assert abs(sum(found) / COUNT - MEAN) <= 0.5
    file = Path(__file__).resolve().parent / "data" / "squad_lengths.txt"
    note = "# Lengths like those of SQuAD, at most 384 tokens, 177 in the mean: written by benches/squad_lengths.py\n"
    lines = [" ".join(map(str, found[at : at + 16])) for at in range(0, COUNT, 16)]
    file.write_text(note + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
