"""The models that both sides run: made once with fair random weights, kept as a folder that trefoil opens too.

Untrained networks are no test as they come: batch norms that do nothing, activations that die out or explode, logits
that barely depend on the image. `make` draws every affine parameter at random and takes the batch-norm statistics
from the network's own activations on varied images.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
# Normalisation and centre crop of each architecture; `timm` says where its module comes from.
ARCHITECTURES = {
    "resnet18": {**IMAGENET, "crop_pct": 0.875, "timm": False},
    "resnet34": {**IMAGENET, "crop_pct": 0.875, "timm": False},
    "resnet50": {**IMAGENET, "crop_pct": 0.875, "timm": False},
    "resnet101": {**IMAGENET, "crop_pct": 0.875, "timm": False},
    "resnet152": {**IMAGENET, "crop_pct": 0.875, "timm": False},
    "googlenet": {**IMAGENET, "crop_pct": 0.875, "timm": False},
    "tf_efficientnet_lite0": {"mean": [127 / 255] * 3, "std": [128 / 255] * 3, "crop_pct": 0.875, "timm": True},
}
SIZE = (224, 224)
CLASSES = 1000
CALIBRATION_IMAGES = 64


@dataclass
class Loaded:
    """A model folder, opened."""

    folder: Path
    architecture: str
    module: nn.Module  # fp32, eval mode, on the CPU
    size: tuple[int, int]
    mean: list[float]
    std: list[float]

    def normalised(self, images, device):
        """u8 [N, H, W, 3] → fp32 [N, 3, H, W] as the network wants it: (x / 255 - mean) / std."""
        x = torch.from_numpy(np.ascontiguousarray(images)).to(device).permute(0, 3, 1, 2).float() / 255
        mean = torch.tensor(self.mean, device=device).view(1, 3, 1, 1)
        std = torch.tensor(self.std, device=device).view(1, 3, 1, 1)
        return (x - mean) / std


def exact_fp32():
    """fp32 that is fp32: no TF32 in convolutions or matrix products, the same result in each run."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def create(architecture, classes=CLASSES):
    """The architecture's module with the library's own random initialisation."""
    known = ARCHITECTURES.get(architecture)
    if known is None:
        raise SystemExit(f"unknown architecture `{architecture}`; known: {', '.join(ARCHITECTURES)}")
    if known["timm"]:
        import timm

        return timm.create_model(architecture, pretrained=False, num_classes=classes)
    import torchvision

    # Of GoogLeNet without what is there for training alone.
    options = {"aux_logits": False, "init_weights": False} if architecture == "googlenet" else {}
    return getattr(torchvision.models, architecture)(weights=None, num_classes=classes, **options)


def make(architecture, folder, images, device, seed=0):
    """Makes a model with fair weights (see the module's doc) and writes it to `folder`."""
    torch.manual_seed(seed)
    module = create(architecture)
    known = ARCHITECTURES[architecture]
    config = {
        "architecture": architecture,
        "num_classes": CLASSES,
        "pretrained_cfg": {
            "input_size": [3, *SIZE],
            "mean": known["mean"],
            "std": known["std"],
            "crop_pct": known["crop_pct"],
            "interpolation": "bilinear",
        },
    }
    folder = Path(folder)
    loaded = Loaded(folder, architecture, module, SIZE, known["mean"], known["std"])
    _randomise(module)
    module.to(device)
    x = loaded.normalised(images, device)
    _calibrate_norms(module, x)
    _scale_classifier(module, x)
    module.cpu()
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().contiguous() for name, tensor in module.state_dict().items()}
    save_file(state, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return load(folder)


def load(folder):
    """Opens a model folder. The tensors have to be exactly the architecture's."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    pretrained = config["pretrained_cfg"]
    module = create(config["architecture"], config["num_classes"])
    state = {k: v.float() if v.is_floating_point() else v for k, v in load_file(folder / "model.safetensors").items()}
    missing, unexpected = module.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise SystemExit(f"{folder}: tensors missing {missing}, unexpected {unexpected}")
    size = tuple(pretrained["input_size"][1:])
    return Loaded(folder, config["architecture"], module.eval(), size, pretrained["mean"], pretrained["std"])


@torch.no_grad()
def _randomise(module):
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.uniform_(0.5, 1.5)
            layer.bias.normal_(0.0, 0.1)
        elif isinstance(layer, nn.Conv2d) and layer.bias is not None:
            layer.bias.normal_(0.0, 0.1)
        elif isinstance(layer, nn.Linear):
            layer.weight.normal_(0.0, layer.in_features**-0.5)
            layer.bias.normal_(0.0, 0.5)


@torch.no_grad()
def _calibrate_norms(module, x):
    """One train-mode forward with momentum 1: the running statistics become those of this batch."""
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    module.train()
    module(x)
    module.eval()
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


@torch.no_grad()
def _scale_classifier(module, x):
    """Scales the classifier so that logits differ from image to image by about 1."""
    (classifier,) = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    logits = module(x)
    classifier.weight /= (logits - logits.mean(dim=0)).std()
