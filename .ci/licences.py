"""Checks that the licence of each dependency is one that deny.toml allows, and that each comes from crates.io."""

import json
import re
import subprocess
import sys

REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def allowed():
    """The list in deny.toml; read as text, because older Pythons know no TOML."""
    with open("deny.toml") as file:
        found = re.search(r"^allow = \[(.*?)\]", file.read(), re.MULTILINE | re.DOTALL)
    return set(re.findall(r'"([^"]+)"', found.group(1)))


def holds(expression, known):
    """Whether an SPDX expression holds with these licences; OR binds weaker than AND, and `/` is an old OR."""
    text = re.sub(r"\(([^()]*)\)", lambda inner: "yes" if holds(inner.group(1), known) else "no", expression)
    if text != expression:
        return holds(text, known)
    one = lambda name: name.strip() == "yes" or name.strip() in known
    return any(all(one(name) for name in part.split(" AND ")) for part in re.split(r" OR |/", text))


def main():
    known = allowed()
    assert holds("(MIT OR GPL-3.0) AND Zlib", known) and not holds("MIT AND GPL-3.0", known) and not holds("", known)
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"], check=True, stdout=subprocess.PIPE
    )
    packages = json.loads(metadata.stdout)["packages"]
    wrong = [f"{p['name']} {p['version']}: licence {p['license']}" for p in packages if not holds(p["license"] or "", known)]
    wrong += [f"{p['name']} {p['version']}: from {p['source']}" for p in packages if p["source"] not in (None, REGISTRY)]
    print(f"{len(packages)} packages, {len(wrong)} that deny.toml does not allow")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
