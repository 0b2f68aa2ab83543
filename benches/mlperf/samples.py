#!/usr/bin/env python3
"""What a run on a GPU starts from, made with torch:

    python3 benches/mlperf/samples.py FOLDER

ResNet-50 with fair random weights (FOLDER/resnet50), 1024 images varied from the photos (images.npy), what torch says of
them in fp32 (labels.npy), and other images to calibrate on (photos/). Prints how often torch in fp16 says the same: such weights leave the first two
classes close to each other, so that rounding alone changes some answers.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import models  # noqa: E402
from images import photos_in, varied  # noqa: E402

IMAGES, BATCH = 1024, 128
CALIBRATION_PHOTOS, CALIBRATION_SIZE = 64, (256, 256)
device = torch.device("cuda:0")


def main():
    folder = Path(sys.argv[1])
    photos = photos_in(HERE.parent.parent / "weights/photos")
    model = folder / "resnet50"
    if not (model / "model.safetensors").exists():
        models.make("resnet50", model, varied(photos, models.CALIBRATION_IMAGES, models.SIZE, seed=1), device)
    loaded, images = models.load(model), varied(photos, IMAGES, models.SIZE, seed=7)
    models.exact_fp32()
    labels, half = classes(loaded, images, torch.float32), classes(loaded, images, torch.float16)
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    (folder / "photos").mkdir(exist_ok=True)
    for number, photo in enumerate(varied(photos, CALIBRATION_PHOTOS, CALIBRATION_SIZE, seed=3)):
        Image.fromarray(photo).save(folder / f"photos/{number:02}.png")
    print(f"{len(set(labels))} classes; torch in fp16 agrees with fp32 on {(labels == half).sum()} of {IMAGES} images")


@torch.no_grad()
def classes(loaded, images, dtype):
    module = loaded.module.to(device, dtype)
    batches = (loaded.normalised(images[first : first + BATCH], device) for first in range(0, IMAGES, BATCH))
    return torch.cat([module(x.to(dtype)).argmax(1) for x in batches]).cpu().numpy().astype(np.uint32)


if __name__ == "__main__":
    main()
