"""Varied images out of a few photos: seeded crops, flips and colour changes. No torch here."""

from pathlib import Path

import numpy as np
from PIL import Image

SUFFIXES = {".png", ".jpg", ".jpeg"}


def photos_in(folder):
    """The photos of a folder, by name."""
    folder = Path(folder)
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder.is_dir() else []
    if not found:
        raise SystemExit(f"no photos ({', '.join(sorted(SUFFIXES))}) in {folder}")
    return [Image.open(path).convert("RGB") for path in found]


def varied(photos, count, size, seed):
    """`count` different images of `size` = (height, width): u8, [count, height, width, 3]."""
    rng = np.random.default_rng(seed)
    images = np.stack([_variant(photos[i % len(photos)], size, rng) for i in range(count)])
    distinct = {image.tobytes() for image in images}
    assert len(distinct) == count, "every image has to be different"
    return images


def saved(images, folder):
    """The folder, with u8 images [N, H, W, 3] in it as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:03}.png")
    return folder


def _variant(photo, size, rng):
    height, width = size
    side = int(min(photo.size) * rng.uniform(0.25, 1.0))
    left = int(rng.integers(0, photo.width - side + 1))
    top = int(rng.integers(0, photo.height - side + 1))
    crop = photo.resize((width, height), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    pixels = np.asarray(crop, dtype=np.float32)  # [height, width, 3], 0..255
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    gray = pixels.mean(axis=2, keepdims=True)
    pixels = gray + (pixels - gray) * rng.uniform(0.2, 1.8)  # saturation
    pixels = pixels * rng.uniform(0.7, 1.3, size=3)  # white balance
    pixels = (pixels - 128.0) * rng.uniform(0.6, 1.4) + 128.0 + rng.uniform(-40.0, 40.0)  # contrast, brightness
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
