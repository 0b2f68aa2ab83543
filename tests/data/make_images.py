#!/usr/bin/env python3
"""Makes images/: one small picture in many formats, and what each decodes to.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install pillow==13.0.0
    /tmp/venv/bin/python tests/data/make_images.py

The picture is a 48 x 40 cut of chelsea.png. cases.txt lists each file with the
size it decodes to and `exact`, `lossy` (JPEG: decoders may differ by a little) or
`error` (cut off in the middle). The pixels are in FILE.rgb.gz: rows first, RGB,
after turning by the EXIF orientation; alpha is dropped, not blended.

They are Pillow's `ImageOps.exif_transpose` and `convert("RGB")`, but for 16-bit
gray, which Pillow clips, and for dnl.jpg, which it does not read: that one is rgb.jpg
with its height behind the picture. The 16-bit files hold samples that become the same byte
whether a decoder keeps the high byte or rounds x / 257.
"""

import gzip
import io
import struct
import zlib
from pathlib import Path

from PIL import Image, ImageOps

OUT = Path(__file__).resolve().parent / "images"
PHOTO = OUT.parents[2] / "weights" / "photos" / "chelsea.png"
BOX = (200, 90, 248, 130)
EXIF_ORIENTATION = 0x0112
# For each EXIF orientation what makes the stored picture out of the upright one.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
GRAY, RGB = 0, 2  # PNG colour types


def main():
    OUT.mkdir(exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    picture = without_metadata(Image.open(PHOTO).convert("RGB").crop(BOX))
    gray = picture.convert("L")
    files = {**pngs(picture, gray), **jpegs(picture, gray)}
    lines = ["# file width height exact|lossy|error"]
    for name, data in files.items():
        decoded = data if name != "dnl.jpg" else files["rgb.jpg"]
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(decoded)))
        pixels = (gray if name == "gray16.png" else image).convert("RGB")
        if name.endswith(".png"):
            assert pixels.tobytes() == upright(name, picture, gray).tobytes(), name
        add(name, data)
        add(f"{name}.rgb.gz", gzip.compress(pixels.tobytes(), 9, mtime=0))
        kind = "exact" if name.endswith(".png") else "lossy"
        lines.append(f"{name} {pixels.width} {pixels.height} {kind}")
    for name, whole in (("truncated.png", "rgb.png"), ("truncated.jpg", "rgb.jpg")):
        add(name, files[whole][: len(files[whole]) * 6 // 10])
        lines.append(f"{name} {picture.width} {picture.height} error")
    add("cases.txt", ("\n".join(lines) + "\n").encode())


def without_metadata(image):
    return Image.frombytes(image.mode, image.size, image.tobytes())


def add(name, data):
    assert len(data) < 10_000, name
    (OUT / name).write_bytes(data)


def upright(name, picture, gray):
    """What a lossless file must decode to, found without decoding it."""
    if name == "palette.png":
        return paletted(picture).convert("RGB")
    if name == "mono1.png":
        return gray.convert("1").convert("RGB")
    return gray.convert("RGB") if name.startswith("gray") else picture


# ---- PNG ---------------------------------------------------------------------


def pngs(picture, gray):
    alpha = Image.linear_gradient("L").resize(picture.size)
    with_alpha, gray_alpha = picture.copy(), gray.copy()
    with_alpha.putalpha(alpha)
    gray_alpha.putalpha(alpha)
    deep_rgb = [deep(v) for v in picture.tobytes()]
    deep_gray = [deep(v) for v in gray.tobytes()]
    return {
        "rgb.png": encode(picture, "PNG"),
        "rgba.png": encode(with_alpha, "PNG"),
        "gray.png": encode(gray, "PNG"),
        "gray_alpha.png": encode(gray_alpha, "PNG"),
        "palette.png": encode(paletted(picture), "PNG"),
        "mono1.png": encode(gray.convert("1"), "PNG"),
        "interlaced.png": png(picture.size, 8, RGB, adam7(picture), interlaced=True),
        "rgb16.png": png(picture.size, 16, RGB, rows(deep_rgb, picture.width * 3)),
        "gray16.png": png(picture.size, 16, GRAY, rows(deep_gray, picture.width)),
    }


def paletted(picture):
    return picture.quantize(16, dither=Image.Dither.NONE)


def deep(v):
    """A 16-bit sample (two bytes, big-endian) with v as high byte and as x / 257."""
    low = v + 77 if v < 128 else v - 77
    assert (2 * (v << 8 | low) + 257) // 514 == v
    return bytes((v, low))


def rows(samples, per_row):
    return [b"".join(samples[i : i + per_row]) for i in range(0, len(samples), per_row)]


def adam7(picture):
    """The rows of the seven reduced pictures, one after the other."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4)]
    passes += [(1, 0, 2, 2), (0, 1, 1, 2)]
    return [
        b"".join(bytes(picture.getpixel((x, y))) for x in range(x0, picture.width, dx))
        for x0, y0, dx, dy in passes
        for y in range(y0, picture.height, dy)
    ]


def png(size, bits, colour, lines, interlaced=False):
    """A PNG file of unfiltered rows."""

    def chunk(kind, data):
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", *size, bits, colour, 0, 0, interlaced)
    data = zlib.compress(b"".join(b"\0" + line for line in lines), 9)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


# ---- JPEG --------------------------------------------------------------------


# 4:4:4: no chroma to upsample.
SHARP = {"quality": 95, "subsampling": 0}


def jpegs(picture, gray):
    full = SHARP
    files = {
        "rgb.jpg": encode(picture, "JPEG", **full),
        "chroma420.jpg": encode(picture, "JPEG", quality=95, subsampling=2),
        "progressive.jpg": encode(picture, "JPEG", progressive=True, **full),
        "gray.jpg": encode(gray, "JPEG", quality=95),
        "cmyk.jpg": encode(cmyk(picture), "JPEG", **full),
    }
    for orientation, turn in STORED.items():
        exif = Image.Exif()
        exif[EXIF_ORIENTATION] = orientation
        stored = picture if turn is None else picture.transpose(turn)
        assert orientation == 1 or stored.tobytes() != picture.tobytes()
        data = encode(stored, "JPEG", exif=exif, **full)
        files[f"orientation_{orientation}.jpg"] = data
    stored = picture.transpose(STORED[6])
    files["orientation_long.jpg"] = encode(stored, "JPEG", exif=LONG_6, **full)
    return {**files, **odd_jpegs(files, picture)}


# An EXIF block with one tag, the orientation 6 as LONG.
LONG_6 = b"Exif\0\0II*\0" + struct.pack("<IHHHIII", 8, 1, EXIF_ORIENTATION, 4, 1, 6, 0)


def odd_jpegs(files, picture):
    """Files as few programs write them, or as others rewrite them."""
    rgb, inks = files["rgb.jpg"], files["cmyk.jpg"]
    half = {"quality": 95, "subsampling": 2}
    end = rgb.rindex(b"\xff\xd9")
    behind = b"\xff\xdc" + struct.pack(">HH", 4, picture.height) + rgb[end:]
    frame = rgb.index(b"\xff\xc0") + 5
    assert inks[2:4] == b"\xff\xee" and inks[17] == 0
    return {
        "restarts.jpg": encode(picture, "JPEG", restart_marker_blocks=4, **SHARP),
        "chroma420_progressive.jpg": encode(
            picture, "JPEG", progressive=True, restart_marker_blocks=2, **half
        ),
        "no_tables.jpg": without_tables(encode(picture, "JPEG", **SHARP)),
        "dnl.jpg": rgb[:frame] + b"\0\0" + rgb[frame + 2 : end] + behind,
        "trailing.jpg": rgb[:end] + b"\0\0\xff\xff" + rgb[end:] + b"\xff\xd8 more",
        "jfif_adobe0.jpg": rgb[:20] + b"\xff\xee\0\x0eAdobe\0d" + bytes(5) + rgb[20:],
        "four_adobe1.jpg": inks[:17] + b"\1" + inks[18:],
        "four_plain.jpg": inks[:2] + inks[18:],
    }


def without_tables(data):
    """The file without Huffman tables, as a frame of motion JPEG."""
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
        kept += b"" if data[at + 1] == 0xC4 else data[at:end]
        at = end
    return kept + data[at:]


def cmyk(picture):
    """The picture in four inks, half of its gray moved into black."""
    samples = []
    for pixel in zip(*[iter(picture.tobytes())] * 3):
        inks = [255 - v for v in pixel]
        black = min(inks) // 2
        samples += [(ink - black) * 255 // (255 - black) for ink in inks] + [black]
    return Image.frombytes("CMYK", picture.size, bytes(samples))


def encode(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


if __name__ == "__main__":
    main()
