#!/usr/bin/python3
"""Measures a GGUF file of export_gguf.py on the held-out text of prepare.py, in float32."""
import argparse
import math
import pathlib

import numpy as np
import torch
from torch.nn import functional as F

import gguf
from export_gguf import tensor_names
from model import Config, Model
from prepare import BOS

BATCH = 8


def load(path):
    metadata, tensors = gguf.read(path)
    config = Config(
        vocab_size=metadata["llama.vocab_size"],
        context_length=metadata["llama.context_length"],
        dim=metadata["llama.embedding_length"],
        block_count=metadata["llama.block_count"],
        ffn_dim=metadata["llama.feed_forward_length"],
        head_count=metadata["llama.attention.head_count"],
        kv_head_count=metadata["llama.attention.head_count_kv"],
        rope_base=metadata["llama.rope.freq_base"],
        norm_epsilon=metadata["llama.attention.layer_norm_rms_epsilon"])
    model = Model(config)
    model.load_state_dict({name: torch.from_numpy(tensors[gguf_name].astype(np.float32))
                           for gguf_name, name in tensor_names(config).items()})
    return model


def hot_share(frequency):
    """The share of the neurons that, most frequent first, make 80 % of the activations."""
    cumulative = frequency.sort(descending=True).values.cumsum(0)
    return (cumulative < 0.8 * cumulative[-1]).float().mean().item()


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="output of prepare.py")
    parser.add_argument("--model", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent / "sample.gguf")
    args = parser.parse_args()

    model = load(args.model)
    length = model.config.context_length
    tokens = torch.from_numpy(np.fromfile(args.data / "heldout.bin", np.uint16).astype(np.int64))
    targets = tokens[:len(tokens) // length * length].view(-1, length)
    loss, active = 0.0, torch.zeros(model.config.block_count, model.config.ffn_dim)
    for rows in targets.split(BATCH):
        logits, activations = model(F.pad(rows[:, :-1], (1, 0), value=BOS))
        loss += F.cross_entropy(logits.flatten(0, 1), rows.flatten(), reduction="sum").item()
        active += torch.stack([(a > 0).sum((0, 1)) for a in activations])

    bytes_per_token = (args.data / "heldout.txt").stat().st_size / len(tokens)
    per_token = loss / targets.numel()
    print(f"{targets.numel()} tokens in windows of {length}, {bytes_per_token:.3f} bytes a token")
    for unit, value in (("token", per_token), ("byte", per_token / bytes_per_token)):
        print(f"per {unit}: loss {value:.4f} nats, {value / math.log(2):.4f} bits, "
              f"perplexity {math.exp(value):.3f}")
    frequency = active / targets.numel()
    print("block  zero %  never active %  hot % (make 80 % of the activations)")
    for block, f in enumerate(frequency):
        print(f"{block:5}  {100 * (1 - f.mean()):6.2f}  {100 * (f == 0).float().mean():14.2f}  "
              f"{100 * hot_share(f):5.1f}")
    print(f" mean  {100 * (1 - frequency.mean()):6.2f}")


if __name__ == "__main__":
    main()
