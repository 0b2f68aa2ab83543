"""Fails if a locked dependency declares a newer Rust than this crate does."""

import json
import subprocess
import sys


def number(text):
    return tuple(int(part) for part in text.split("."))


metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--locked"]))
own = next(p for p in metadata["packages"] if p["name"] == "trefoil")["rust_version"]
newer = [
    f"{p['name']} {p['version']} needs {p['rust_version']}"
    for p in metadata["packages"]
    if p["rust_version"] and number(p["rust_version"])[:2] > number(own)[:2]
]
if newer:
    sys.exit(f"rust-version is {own}, but " + "; ".join(newer))
print(f"{len(metadata['packages'])} packages, none needs more than Rust {own}")
