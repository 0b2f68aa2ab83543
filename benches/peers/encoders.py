#!/usr/bin/env python3
"""Are trefoil's f16 and bf16 of encoders as exact as torch's? ViT and BERT, against torch in f32.

    python3 benches/peers/encoders.py --trefoil target/release/trefoil
    python3 benches/peers/encoders.py --layers 4 --precisions bf16 --record encoders.json

The error of a row is ‖out − ref‖ / ‖ref − mean of the reference outputs‖; the worst row counts. trefoil passes with at
most 1.5 times the error of torch in the same type in the same run, and, as a check of the comparison, with at most 1e-4 in
f32. Weights are random, and keep the size of what goes through them. Exit code 0: everything passed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

from errors import errors, markdown

LIMIT, LIMIT_F32 = 1.5, 1e-4
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def main():
    options = parse()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    table, record, passed = [], {"torch": torch.__version__, "limit": LIMIT, "rows": options.rows}, True
    for name, case in [("ViT-B/16", vit), ("BERT-base, 128 tokens", bert)]:
        with tempfile.TemporaryDirectory() as work:
            model, inputs, run = case(options, Path(work))
            reference = run(torch.float32)
            exact = worst(of_trefoil(options, Path(work), model, inputs, "f32"), reference)
            passed &= exact <= LIMIT_F32
            row = {"f32": exact}
            for precision in options.precisions:
                theirs = worst(run(TYPES[precision]), reference)
                ours = worst(of_trefoil(options, Path(work), model, inputs, precision), reference)
                row[precision] = {"torch": theirs, "trefoil": ours, "ratio": ours / theirs}
                passed &= ours <= LIMIT * theirs
                table.append([name, precision, f"{exact:.1e}", f"{theirs:.5f}", f"{ours:.5f}", f"{ours / theirs:.3f}"])
        record[name] = row
    print(markdown(["encoder", "type", "trefoil f32", "torch", "trefoil", "ratio"], table))
    if options.record:
        options.record.write_text(json.dumps({**record, "passed": bool(passed)}, indent=1) + "\n")
    print("PASS" if passed else f"FAIL: a ratio above {LIMIT}, or an error of f32 above {LIMIT_F32}")
    return 0 if passed else 1


def vit(options, work):
    """A vision transformer on pictures of coarse and fine noise; the vector is the first token."""
    config = ViTConfig(num_hidden_layers=options.layers, attn_implementation="sdpa")
    model = prepared(ViTModel(config, add_pooling_layer=False), options, work)
    (work / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    coarse = torch.nn.functional.interpolate(torch.rand(options.rows, 3, 7, 7), size=(224, 224))
    pixels = ((0.8 * coarse + 0.2 * torch.rand(options.rows, 3, 224, 224)) * 255).to(torch.uint8)

    def run(dtype):
        normalised = ((pixels.float() / 255 - 0.5) / 0.5).to(options.device, dtype)
        return vectors(model, dtype, lambda of: of(pixel_values=normalised).last_hidden_state[:, 0])

    return work, {"pixels": pixels.permute(0, 2, 3, 1).contiguous().numpy()}, run


def bert(options, work):
    """A text encoder on texts of different lengths; the vector is the mean of the tokens."""
    config = BertConfig(num_hidden_layers=options.layers, attn_implementation="sdpa")
    model = prepared(BertModel(config, add_pooling_layer=False), options, work)
    ids = torch.randint(1000, config.vocab_size, (options.rows, 128))
    lengths = torch.randint(5, 129, (options.rows, 1))
    mask = (torch.arange(128) < lengths).long()
    inputs = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}

    def run(dtype):
        on_device = {name: value.to(options.device) for name, value in inputs.items()}

        def mean(of):
            tokens = of(**on_device).last_hidden_state.float()
            weight = on_device["attention_mask"][:, :, None].float()
            return (tokens * weight).sum(1) / weight.sum(1)

        return vectors(model, dtype, mean)

    return work, {name: value.numpy() for name, value in inputs.items()}, run


def prepared(model, options, work):
    """With weights that keep the size of what goes through them, and kept in a folder."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embeddings" in name and parameter.dim() >= 2 and "projection" not in name and "patch" not in name:
                parameter.normal_(0, 0.5)
            elif parameter.dim() >= 2:
                parameter.normal_(0, (parameter.numel() / parameter.shape[0]) ** -0.5)
            elif "norm" in name.lower() and name.endswith("weight"):
                parameter.normal_(1, 0.2)
            else:
                parameter.normal_(0, 0.1)
    model.eval()
    model.save_pretrained(work)
    return model.to(options.device)


def vectors(model, dtype, run):
    """What `run` makes of the model in a type, as f64; the model is in f32 again behind it, with its weights as they were."""
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        result = run(model.to(dtype)).double().cpu().numpy()
    model.to(torch.float32).load_state_dict(kept)
    return result


def of_trefoil(options, work, folder, inputs, precision):
    """The same of trefoil."""
    arrays = []
    for name, value in inputs.items():
        np.save(work / f"{name}.npy", value)
        arrays += ["--input", f"{name}={work / name}.npy"]
    command = [options.trefoil, "run", folder, "--device", options.target, "--precision", precision, *arrays]
    size = ["--size", "sequence=128"] if "input_ids" in inputs else []
    done = subprocess.run([*command, *size, "--output", work / "out.npz"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"trefoil run: {done.stderr}")
    return np.load(work / "out.npz")["embedding"].astype(np.float64)


def worst(outputs, reference):
    return float(errors(outputs, reference).max())


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trefoil", default="target/release/trefoil", help="the program")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--precisions", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--device", default="cuda", help="torch's")
    parser.add_argument("--target", default="cuda:0", help="trefoil's")
    parser.add_argument("--record", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
