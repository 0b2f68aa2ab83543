"""Makes encoders/: small random encoders of the libraries transformers and timm, and what they compute.

Needs: torch 2.15, transformers 5.23, timm 1.0.31 (pip install torch transformers timm).

A file has the configuration as the library writes it, the names and dimensions of its tensors, and for three inputs what
the model computes in f64, with the root mean square of what it is computed of. Weights and inputs are numbers of a
formula, which tests/support/random.rs has too, so that none need be kept.
"""

import json
import math
import pathlib
import sys
import tempfile

import numpy as np
import timm
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent / "encoders"
ROWS = 3
WORDS = 60
MASK = (1 << 64) - 1


class Random:
    """`Random` of tests/support/random.rs."""

    def __init__(self, name):
        state = 0xCBF29CE484222325
        for byte in name.encode():
            state = ((state ^ byte) * 0x100000001B3) & MASK
        self.state = state | 1

    def bits(self):
        x = self.state
        x ^= x >> 12
        x = (x ^ (x << 25)) & MASK
        x ^= x >> 27
        self.state = x
        return ((x * 0x2545F4914F6CDD1D) & MASK) >> 11

    def between(self, low, high):
        return low + self.bits() % (high - low + 1)

    def singles(self, count, scale):
        return [float(np.float32((self.bits() / (1 << 52) - 1.0) * scale)) for _ in range(count)]


def tensor(name, dims):
    """A matrix keeps the size of what goes through it; norms have factors near 1; other values are from -0.5 to 0.5."""
    count = math.prod(dims)
    if len(dims) >= 2 and dims[0] > 1:
        values = Random(name).singles(count, math.sqrt(3.0 / math.prod(dims[1:])))
    elif "norm" in name.lower() and name.endswith("weight"):
        values = [float(np.float32(1.0) + np.float32(x)) for x in Random(name).singles(count, 0.5)]
    else:
        values = Random(name).singles(count, 0.5)
    return torch.tensor(values, dtype=torch.float64).reshape(dims)


def fill(model):
    """Gives a model the formula's weights, by the names that it has in a file; returns these."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        stored = load_file(f"{folder}/model.safetensors")
        config = json.loads(pathlib.Path(f"{folder}/config.json").read_text())
        dims = {name: list(value.shape) for name, value in stored.items()}
        save_file({name: tensor(name, of) for name, of in dims.items()}, f"{folder}/model.safetensors", {"format": "pt"})
        model = type(model).from_pretrained(folder, dtype=torch.float64)
    return model.double().eval(), config, dims


def pixels(name, height, width, mean, std):
    rows = []
    for row in range(ROWS):
        random = Random(f"{name} {row}")
        values = [random.between(0, 255) for _ in range(height * width * 3)]
        rows.append(values)
    x = torch.tensor(rows, dtype=torch.float64).reshape(ROWS, height, width, 3).permute(0, 3, 1, 2) / 255
    of = [torch.tensor(v, dtype=torch.float64).reshape(1, 3, 1, 1) for v in (mean, std)]
    return (x - of[0]) / of[1]


def texts(name, tokens):
    ids, masks = [], []
    for row in range(ROWS):
        random = Random(f"{name} {row}")
        seen = tokens if row == 1 else random.between(3, tokens - 1)
        line = [random.between(0, WORDS - 2) for _ in range(tokens)]
        line[seen - 1] = WORDS - 1
        ids.append(line)
        masks.append([int(token < seen) for token in range(tokens)])
    return torch.tensor(ids), torch.tensor(masks)


def sounds(name, mels, frames):
    rows = [Random(f"{name} {row}").singles(mels * frames, 1.0) for row in range(ROWS)]
    return torch.tensor(rows, dtype=torch.float64).reshape(ROWS, mels, frames)


def size(x):
    return [float(row.square().mean().sqrt()) for row in x]


def keep(name, config, dims, shape, layers, scale, ports, asked=None):
    rows = [
        {"scale": scale[row], "ports": {port: [float(f"{float(v):.8g}") for v in of[row].flatten()] for port, of in ports.items()}}
        for row in range(ROWS)
    ]
    config.pop("transformers_version", None)
    kept = {"config": config, "asked": asked or {}, "shape": shape, "layers": layers, "tensors": dims, "rows": rows}
    (HERE / f"{name.replace(' ', '-')}.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n")


HALF = ([0.5] * 3, [0.5] * 3)
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
SMALL = dict(hidden_size=64, num_attention_heads=2, num_hidden_layers=2, intermediate_size=96)
IMAGE = dict(image_size=32, patch_size=8)


def image(height, width):
    return {"image": [height, width]}


@torch.no_grad()
def siglip():
    vision = dict(SMALL, image_size=36, patch_size=8)
    text = dict(SMALL, vocab_size=WORDS, max_position_embeddings=16, projection_size=64)
    model, config, dims = fill(hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config=vision)))
    out = model.vision_model(pixels("siglip images", 36, 36, *HALF))
    keep("siglip images", config, dims, image(36, 36), 2, size(out.last_hidden_state), {"embedding": out.pooler_output})
    out = model.vision_model(pixels("siglip larger", 40, 48, *HALF), interpolate_pos_encoding=True)
    keep("siglip larger", config, dims, image(40, 48), 2, size(out.last_hidden_state), {"embedding": out.pooler_output}, {"image": [40, 48]})
    ids, _ = texts("siglip texts", 16)
    out = model.text_model(input_ids=ids)
    keep("siglip texts", config, dims, {"text": 16, "mask": False}, 2, size(out.last_hidden_state), {"embedding": out.pooler_output}, {"tower": "texts"})


@torch.no_grad()
def clip():
    vision = dict(SMALL, **IMAGE)
    text = dict(SMALL, vocab_size=WORDS, max_position_embeddings=16, eos_token_id=WORDS - 1, bos_token_id=0)
    model, config, dims = fill(hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)))
    x = pixels("clip images", 32, 32, *CLIP)
    out = model.vision_model(x)
    keep("clip images", config, dims, image(32, 32), 2, size(out.last_hidden_state), {"embedding": model.visual_projection(out.pooler_output)})
    ids, mask = texts("clip texts", 16)
    out = model.text_model(input_ids=ids, attention_mask=mask)
    keep("clip texts", config, dims, {"text": 16, "mask": True}, 2, size(out.last_hidden_state), {"embedding": model.text_projection(out.pooler_output)}, {"tower": "texts"})


def of_images(name, model, sides, norm, layers=2, asked=None):
    model, config, dims = fill(model)
    out = model(pixels(name, *sides, *norm))
    keep(name, config, dims, image(*sides), layers, size(out.last_hidden_state), {"embedding": out.last_hidden_state[:, 0]}, asked)


@torch.no_grad()
def dino():
    registers = hf.Dinov2WithRegistersConfig(**SMALL, **IMAGE, mlp_ratio=2, num_register_tokens=4)
    of_images("dinov2 registers", hf.Dinov2WithRegistersModel(registers), (32, 32), HALF)
    gated = hf.Dinov2Config(**SMALL, **IMAGE, mlp_ratio=2, use_swiglu_ffn=True)
    of_images("dinov2 gated", hf.Dinov2Model(gated), (32, 32), HALF)
    plain = hf.DINOv3ViTConfig(**SMALL, **IMAGE, num_register_tokens=4)
    of_images("dinov3", hf.DINOv3ViTModel(plain), (32, 32), IMAGENET)
    of_images("dinov3 wider", hf.DINOv3ViTModel(plain), (24, 40), IMAGENET, asked={"image": [24, 40]})
    gated = hf.DINOv3ViTConfig(**SMALL, **IMAGE, num_register_tokens=0, use_gated_mlp=True, hidden_act="silu", key_bias=True)
    of_images("dinov3 gated", hf.DINOv3ViTModel(gated), (32, 32), IMAGENET)


@torch.no_grad()
def of_modernbert(name, said=None, **rope):
    special = dict(pad_token_id=0, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
    of = dict(SMALL, num_hidden_layers=4)
    config = hf.ModernBertConfig(vocab_size=WORDS, max_position_embeddings=64, local_attention=8, **special, **of, **rope)
    model, config, dims = fill(hf.ModernBertModel(config))
    if said:
        del config["rope_parameters"]
        config.update(said)
    ids, mask = texts(name, 24)
    out = model(input_ids=ids, attention_mask=mask).last_hidden_state
    mean = (out * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    asked = {"sequence": 24}
    keep(name, config, dims, {"text": 24, "mask": True}, 4, size(out), {"embedding": mean}, asked)


def modernbert():
    of_modernbert("modernbert")
    # Until transformers 4 null was the base of the layers that see all; 5 has no such models.
    null = {"global_rope_theta": 20000.0, "local_rope_theta": None}
    of_modernbert("modernbert null", null, global_rope_theta=20000.0, local_rope_theta=20000.0)


@torch.no_grad()
def whisper():
    of = dict(d_model=64, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=96, num_mel_bins=16)
    decoder = dict(decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=64, vocab_size=WORDS, max_target_positions=4)
    special = dict(pad_token_id=1, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1)
    config = hf.WhisperConfig(max_source_positions=12, **of, **decoder, **special)
    model, config, dims = fill(hf.WhisperModel(config))
    out = model.encoder(sounds("whisper", 16, 24)).last_hidden_state
    keep("whisper", config, dims, {"sound": [16, 24]}, 2, size(out), {"tokens": out})


def of_classes(name, model, side, layers, norm=IMAGENET):
    model, config, dims = fill(model)
    x = pixels(name, side, side, *norm)
    base = next(getattr(model, part) for part in ("swin", "convnext") if hasattr(model, part))
    out = base(x)
    ports = {"embedding": out.pooler_output, "logits": model.classifier(out.pooler_output)}
    keep(name, config, dims, image(side, side), layers, size(out.last_hidden_state), ports)


@torch.no_grad()
def stages():
    swin = hf.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[1, 2], window_size=4, num_labels=5)
    of_classes("swin", hf.SwinForImageClassification(swin), 32, 4)
    convnext = hf.ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 2], num_stages=2, num_labels=5, image_size=64, layer_norm_eps=1e-6)
    of_classes("convnext", hf.ConvNextForImageClassification(convnext), 64, 3)


@torch.no_grad()
def of_timm(name, architecture, sides, layers, norm=IMAGENET, classes=5, **args):
    model = timm.create_model(architecture, num_classes=classes, **args)
    dims = {key: list(value.shape) for key, value in model.state_dict().items()}
    model.load_state_dict({key: tensor(key, of).to(torch.float64) for key, of in dims.items()})
    model = model.double().eval()
    cfg = {"mean": list(norm[0]), "std": list(norm[1]), "input_size": [3, *sides], "crop_pct": 0.9, "interpolation": "bicubic"}
    config = {"architecture": architecture, "num_classes": classes, "model_args": args, "pretrained_cfg": cfg}
    if hasattr(model, "global_pool"):
        config["global_pool"] = model.global_pool
    features = model.forward_features(pixels(name, *sides, *norm))
    ports = {"embedding": model.forward_head(features, pre_logits=True)}
    if classes:
        ports["logits"] = model.forward_head(features)
    keep(name, config, dims, image(*sides), layers, size(features), ports)


def timms():
    swin = dict(patch_size=2, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(1, 2))
    of_timm("timm swin", "swin_tiny_patch4_window7_224", (32, 32), 4, img_size=32, **swin)
    of_timm("timm swin lower", "swin_tiny_patch4_window7_224", (16, 32), 4, img_size=(16, 32), **swin)
    of_timm("timm swin narrower", "swin_tiny_patch4_window7_224", (48, 16), 4, img_size=(48, 16), **swin)
    convnext = dict(depths=(1, 1, 2, 1), dims=(8, 16, 24, 32))
    of_timm("timm convnext", "convnext_tiny", (64, 64), 5, **convnext)
    of_timm("timm convnext of filters", "convnext_nano", (64, 64), 5, **convnext)


def timm_transformers():
    small = dict(embed_dim=64, depth=2, num_heads=2, img_size=32, patch_size=8)
    of_timm("timm dinov3", "vit_small_patch16_dinov3", (32, 32), 2, classes=0, **small)
    of_timm("timm dinov3 biased", "vit_small_patch16_dinov3_qkvb", (32, 32), 2, classes=0, global_pool="token", **small)
    of_timm("timm dinov3 gated", "vit_small_plus_patch16_dinov3", (32, 32), 2, **small)
    of_timm("timm siglip", "vit_base_patch16_siglip_224", (32, 32), 2, HALF, classes=0, **small)
    of_timm("timm siglip tanh", "vit_so400m_patch16_siglip_256", (32, 32), 2, HALF, **small)
    of_timm("timm siglip mean", "vit_base_patch16_siglip_gap_224", (32, 32), 2, HALF, classes=0, **small)


if __name__ == "__main__":
    hf.logging.set_verbosity_error()
    HERE.mkdir(exist_ok=True)
    for make in (siglip, clip, dino, modernbert, whisper, stages, timms, timm_transformers):
        if len(sys.argv) < 2 or make.__name__ in sys.argv[1:]:
            make()
