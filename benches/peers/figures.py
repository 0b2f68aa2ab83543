"""The figures of `beside.py`: what is asked for, and the rows of tables. No torch or numpy here."""

from dataclasses import dataclass

OURS = "trefoil"
WORST = 3  # kinds of steps that are shown
DIFFERS = 3.0  # an error of more than so many times torch's own, and of more than
LEAST_ERROR = 1e-2


@dataclass(frozen=True)
class Asked:
    """What trefoil is asked for beside the best peer: so many times as fast, or at most so many milliseconds."""

    times: float = 0.0
    ms: float = 0.0

    def __str__(self):
        return f"{self.times:g}x" if self.times else f"{self.ms:g} ms" if self.ms else "-"

    def is_met(self, ours, theirs):
        return theirs >= self.times * ours and (not self.ms or ours <= self.ms)


def of_rooflines(figure):
    """The sum of step times over the sum of rooflines."""
    steps = figure.get("steps", [])
    return sum(s["us"] for s in steps) / sum(s["roofline_us"] for s in steps) if steps else None


HEADER = ["network", "rows", "trefoil ms", "torch ms", "", "ratio", "asked", "met", "error", "torch's", "of rooflines"]


def cells(figure):
    best, found = figure["best"], figure.get("errors", {})
    ours, theirs = found.get(OURS), found.get(best)
    differs = "!" if ours and theirs and ours > max(LEAST_ERROR, DIFFERS * theirs) else ""
    number = lambda value, how: format(value, how) if value is not None else "-"
    return [
        figure["network"],
        figure["rows"],
        number(figure["medians"][OURS], ".4f"),
        number(figure["medians"].get(best), ".4f"),
        best or "-",
        number(figure.get("ratio"), ".2f"),
        figure["asked"],
        {True: "yes", False: "no", None: "-"}[figure.get("is_met")],
        number(ours, ".1e") + differs,
        number(theirs, ".1e"),
        number(of_rooflines(figure), ".2f"),
    ]


def line(figure):
    return "  ".join(map(str, cells(figure)))


def misses(figures):
    """Of each figure that is not what is asked, the kinds of steps that take the most beyond their rooflines."""
    lines = []
    for figure in figures:
        if figure.get("is_met") or not figure.get("steps"):
            continue
        kinds = {}
        for step in figure["steps"]:
            kind = kinds.setdefault((step["operation"], step["kernel"]), [0, 0.0, 0.0])
            kind[0], kind[1], kind[2] = kind[0] + 1, kind[1] + step["us"], kind[2] + step["roofline_us"]
        worst = sorted(kinds.items(), key=lambda kind: kind[1][2] - kind[1][1])[:WORST]
        told = [f"{n} x {operation}, {kernel}: {us:.0f} us ({least:.0f})" for (operation, kernel), (n, us, least) in worst]
        lines.append(f"- {figure['network']}, {figure['rows']} ({figure['graph_us']:.0f} us): " + "; ".join(told))
    return "\n".join(lines)
