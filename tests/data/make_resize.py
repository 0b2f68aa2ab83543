#!/usr/bin/env python3
"""Makes resize/: what Pillow's bilinear resize and a centre crop give.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install pillow==13.0.0
    /tmp/venv/bin/python tests/data/make_resize.py

Every case: decode to RGB, cut out a rectangle, resize so that the shorter side is
256 and the longer one round(long * 256 / short), ties up, with antialiased
bilinear filtering (Image.BILINEAR), then crop 224 x 224 from the centre, offsets
rounded down. Each result is NAME.rgb.gz: 224 * 224 * 3 bytes, rows first, RGB.
cases.txt lists them.
"""

import gzip
import io
from pathlib import Path

from PIL import Image

OUT = Path(__file__).resolve().parent / "resize"
PHOTOS = OUT.parents[2] / "weights" / "photos"
SHORT, CROP = 256, 224

# name, decoded picture, rectangle (x, y, width, height) or None for all of it.
# JPEG decoders differ, so the rocket is kept as its decoded pixels.
CASES = [
    ("chelsea", "weights/photos/chelsea.png", None),
    ("coffee", "weights/photos/coffee.png", None),
    ("rocket", "tests/data/resize/rocket-decoded.png", None),
    ("coffee-457x301", "weights/photos/coffee.png", (71, 53, 457, 301)),
    ("coffee-203x397", "weights/photos/coffee.png", (211, 2, 203, 397)),
    ("chelsea-131x117", "weights/photos/chelsea.png", (149, 61, 131, 117)),
]


def main():
    OUT.mkdir(exist_ok=True)
    keep_decoded(PHOTOS / "rocket.jpg", OUT / "rocket-decoded.png")
    lines = ["# name picture x y width height: the rectangle of the picture that is resized"]
    for name, picture, box in CASES:
        image = Image.open(OUT.parents[2] / picture).convert("RGB")
        x, y, width, height = box or (0, 0, *image.size)
        part = image.crop((x, y, x + width, y + height))
        write_gzip(OUT / f"{name}.rgb.gz", resize_and_crop(part).tobytes())
        lines.append(f"{name} {picture} {x} {y} {width} {height}")
    (OUT / "cases.txt").write_text("\n".join(lines) + "\n")


def resize_and_crop(image):
    short, long = min(image.size), max(image.size)
    scaled = (2 * long * SHORT + short) // (2 * short)
    size = (SHORT, scaled) if image.width < image.height else (scaled, SHORT)
    image = image.resize(size, Image.BILINEAR)
    left, top = (image.width - CROP) // 2, (image.height - CROP) // 2
    return image.crop((left, top, left + CROP, top + CROP))


def keep_decoded(source, target):
    png = io.BytesIO()
    image = Image.open(source).convert("RGB")
    bare = Image.frombytes("RGB", image.size, image.tobytes())  # no metadata
    bare.save(png, "PNG", optimize=True)
    target.write_bytes(png.getvalue())


def write_gzip(path, data):
    path.write_bytes(gzip.compress(data, 9, mtime=0))


if __name__ == "__main__":
    main()
