"""Compares trefoil on the CPU with torch on architectures of timm, exported to ONNX with fair random weights.

    python benches/peers/architectures.py --trefoil target/release/trefoil FOLDER [NAME...]

A line for each architecture: the largest error of two images, as a part of the largest output, of trefoil and of torch in
f32, both against torch in f64; the seconds that opening, building and two runs took; and whether it is recognised as a
classifier of images or runs as a model of values. Or why there is none. Rounding grows in deep networks with random weights,
so that an error may be 1.5 times torch's own where that is more than the tolerance. The files are made in FOLDER, one after
the other, and removed. Exit code 1 if an architecture does not load or is beyond that.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import timm
import torch
from torch import nn

TOLERANCE = 1e-4
# The smallest of each family that timm has, by what they are made of.
ARCHITECTURES = """
    resnet18 resnet26d resnext26ts seresnet18 resnetv2_18 resnest14d res2net50_26w_4s skresnet18 ecaresnext26t_32x4d
    gcresnext26ts resnetblur18 seresnextaa101d_32x8d regnetx_002 regnety_002 regnetz_b16 repvgg_a0 vgg11_bn densenet121
    inception_v3 inception_v4 xception41 dpn48b dla34 hrnet_w18_small selecsls42b cspresnet50 cspdarknet53 darknet17
    vovnet39a ese_vovnet19b_dw hgnet_tiny hgnetv2_b0 efficientnet_b0 efficientnetv2_rw_t tf_efficientnet_lite0
    mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small mnasnet_small fbnetc_100 lcnet_035 tinynet_e
    rexnet_100 ghostnet_050 repghostnet_050 hardcorenas_a mixnet_s convnext_atto convnextv2_atto convmixer_768_32
    inception_next_tiny starnet_s1 mambaout_femto poolformer_s12 edgenext_xx_small mobileone_s0 fastvit_t8 repvit_m0_9
    vit_tiny_patch16_224 deit_tiny_patch16_224 beit_base_patch16_224 cait_xxs24_224 xcit_nano_12_p16_224
    swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 maxvit_rmlp_pico_rw_256 coatnet_pico_rw_224 crossvit_tiny_240
    pit_ti_224 levit_128s visformer_tiny tnt_s_patch16_224 twins_svt_small coat_tiny nest_tiny mobilevit_xxs
    mobilevitv2_050 efficientformer_l1 efficientformerv2_s0 efficientvit_b0 efficientvit_m0 tiny_vit_5m_224
    focalnet_tiny_srf davit_tiny mvitv2_tiny hiera_tiny_224 volo_d1_224 mixer_s32_224 gmixer_24_224 resmlp_12_224
    gmlp_s16_224 eva02_tiny_patch14_224 vit_small_patch16_rope_224 nextvit_small shvit_s1 sequencer2d_s
    halonet26t lambda_resnet26t botnet26t_256
""".split()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trefoil", type=Path, required=True, help="the program")
    parser.add_argument("names", nargs="*", default=ARCHITECTURES)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    bad = [name for name in asked.names if not compare(name, asked.folder, asked.trefoil)]
    print(f"{len(asked.names) - len(bad)} of {len(asked.names)} as torch has them; not: {' '.join(bad) or 'none'}")
    sys.exit(bool(bad))


def compare(name, folder, trefoil):
    """Whether an architecture comes out as torch has it; prints its line."""
    files = {part: folder / f"{name}{part}" for part in [".onnx", ".npy", ".pixels.npy", ".npz"]}
    try:
        exact, of_torch = export(name, files)
    except Exception as error:  # of torch or timm, for which trefoil is not to blame
        print(f"{name:34} not exported: {last_line(str(error))}", flush=True)
        return True
    started = time.monotonic()
    run = trefoil_run(trefoil, files, f"x={files['.npy']}")
    is_classifier = "expected one of `image`" in run.stderr
    if is_classifier:
        run = trefoil_run(trefoil, files, f"image={files['.pixels.npy']}")
    took = time.monotonic() - started
    is_right = False
    if run.returncode == 0:
        [(port, found)] = np.load(files[".npz"]).items()
        if port == "probabilities":
            exact, of_torch = exact.softmax(1), of_torch.softmax(1)
        error, own = off(found.reshape(exact.shape), exact.numpy()), off(of_torch.numpy(), exact.numpy())
        is_right = error <= max(TOLERANCE, 1.5 * own)
        kind = "image" if is_classifier else "values"
        print(f"{name:34} {error:.1e}  torch {own:.1e}  {took:5.1f} s  {kind}", flush=True)
    else:
        print(f"{name:34} refused: {run.stderr.strip()[:600]}", flush=True)
    for file in files.values():
        file.unlink(missing_ok=True)
    return is_right


def off(found, expected):
    """The largest difference, as a part of the largest number that is expected."""
    return np.abs(found - expected).max() / np.abs(expected).max()


def trefoil_run(trefoil, files, given):
    """Runs the file on the CPU. One that is recognised as a classifier of images reads pixels and answers probabilities."""
    command = [trefoil, "run", files[".onnx"], "--device", "cpu", "--size", "batch=1"]
    return subprocess.run([*command, "--input", given, "--output", files[".npz"]], capture_output=True, text=True)


@torch.no_grad()
def export(name, files):
    """Writes the architecture and two images; what torch answers to these, in f64 and in f32."""
    torch.manual_seed(0)
    module = timm.create_model(name, pretrained=False, num_classes=100)
    side = module.default_cfg["input_size"][1:]
    # Patches of colours, different ones in each image, with some noise.
    patches = nn.functional.interpolate(torch.rand(4, 3, 5, 5), side) * 0.9 + torch.rand(4, 3, *side) * 0.1
    pixels = (patches * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    x = pixels.permute(0, 3, 1, 2).float() / 255
    randomise(module)
    calibrate_norms(module, x)
    expected = torch.cat([module(x[:1]), module(x[1:2])])
    if (expected[0] - expected[1]).abs().max() < 1e-2 * expected.abs().max():
        raise ValueError("two images are not told apart")
    np.save(files[".npy"], x[:2].numpy())
    np.save(files[".pixels.npy"], pixels[:2].numpy())
    torch.onnx.export(
        module.eval(),
        (x[:1],),
        str(files[".onnx"]),
        input_names=["x"],
        output_names=["y"],
        opset_version=18,
        dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        dynamo=False,
    )
    exact = module.double()(x[:2].double())
    return exact, expected


def randomise(module):
    """Every affine parameter at random, so that no layer does nothing."""
    for layer in module.modules():
        for part in ["weight", "bias"]:
            value = getattr(layer, part, None)
            if isinstance(value, nn.Parameter) and value.ndim == 1:
                mean = 1.0 if part == "weight" else 0.0
                value.copy_(mean + 0.2 * torch.randn_like(value))
    for key, value in module.named_parameters():
        if value.ndim == 2:  # many of them begin near zero, and some with zeros
            value.normal_(0.0, value.shape[1] ** -0.5)
        if value.ndim == 1 and ("gamma" in key or "scale" in key or "temperature" in key):
            value.uniform_(0.2, 0.8)


def calibrate_norms(module, x):
    """Running statistics become those of these images."""
    norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    module(x)
    module.eval()


def last_line(text):
    """The last line that says something."""
    return (text.strip().splitlines() or ["?"])[-1][:120]


if __name__ == "__main__":
    main()
