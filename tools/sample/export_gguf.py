#!/usr/bin/python3
"""Writes a checkpoint of train.py and the tokenizer of prepare.py as a GGUF file."""
import argparse
import pathlib

import numpy as np
import sentencepiece
import torch

import gguf
from model import Config

# GGUF's token types.
NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6
FILE_TYPE_MOSTLY_F16 = 1

BLOCK_TENSORS = {
    "attn_norm": "attn_norm", "attn_q": "attn.q", "attn_k": "attn.k", "attn_v": "attn.v",
    "attn_output": "attn.output", "ffn_norm": "ffn_norm", "ffn_gate": "ffn.gate",
    "ffn_up": "ffn.up", "ffn_down": "ffn.down",
}


def tensor_names(config):
    """From GGUF's names to the model's. There is no output.weight: it is tied."""
    names = {"token_embd.weight": "token_embd.weight"}
    for block in range(config.block_count):
        for gguf_name, name in BLOCK_TENSORS.items():
            names[f"blk.{block}.{gguf_name}.weight"] = f"blocks.{block}.{name}.weight"
    names["output_norm.weight"] = "output_norm.weight"
    return names


def token_type(tokenizer, token):
    if tokenizer.is_unknown(token):
        return UNKNOWN
    if tokenizer.is_control(token):
        return CONTROL
    if tokenizer.is_unused(token):
        return UNUSED
    if tokenizer.is_byte(token):
        return BYTE
    return NORMAL


def model_metadata(config):
    return [
        ("general.architecture", gguf.STRING, "llama"),
        ("general.name", gguf.STRING, "Sluice sample"),
        ("general.license", gguf.STRING, "apache-2.0"),
        ("general.alignment", gguf.UINT32, gguf.ALIGNMENT),
        ("general.file_type", gguf.UINT32, FILE_TYPE_MOSTLY_F16),
        ("llama.vocab_size", gguf.UINT32, config.vocab_size),
        ("llama.context_length", gguf.UINT32, config.context_length),
        ("llama.embedding_length", gguf.UINT32, config.dim),
        ("llama.block_count", gguf.UINT32, config.block_count),
        ("llama.feed_forward_length", gguf.UINT32, config.ffn_dim),
        ("llama.attention.head_count", gguf.UINT32, config.head_count),
        ("llama.attention.head_count_kv", gguf.UINT32, config.kv_head_count),
        ("llama.attention.layer_norm_rms_epsilon", gguf.FLOAT32, config.norm_epsilon),
        ("llama.rope.dimension_count", gguf.UINT32, config.head_dim),
        ("llama.rope.freq_base", gguf.FLOAT32, config.rope_base),
        ("sluice.activation", gguf.STRING, "relu"),
    ]


def tokenizer_metadata(tokenizer):
    tokens = range(tokenizer.vocab_size())
    return [
        ("tokenizer.ggml.model", gguf.STRING, "llama"),
        ("tokenizer.ggml.pre", gguf.STRING, "default"),
        ("tokenizer.ggml.tokens", gguf.STRING, [tokenizer.id_to_piece(t) for t in tokens]),
        ("tokenizer.ggml.scores", gguf.FLOAT32, [tokenizer.get_score(t) for t in tokens]),
        ("tokenizer.ggml.token_type", gguf.INT32, [token_type(tokenizer, t) for t in tokens]),
        ("tokenizer.ggml.bos_token_id", gguf.UINT32, tokenizer.bos_id()),
        ("tokenizer.ggml.eos_token_id", gguf.UINT32, tokenizer.eos_id()),
        ("tokenizer.ggml.unknown_token_id", gguf.UINT32, tokenizer.unk_id()),
        ("tokenizer.ggml.add_bos_token", gguf.BOOL, True),
        ("tokenizer.ggml.add_eos_token", gguf.BOOL, False),
        ("tokenizer.ggml.add_space_prefix", gguf.BOOL, True),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="tokenizer.model")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()

    saved = torch.load(args.checkpoint)
    config = Config(**saved["config"])
    tensors = {}
    for gguf_name, name in tensor_names(config).items():
        array = saved["model"][name].numpy()
        tensors[gguf_name] = array.astype(np.float16) if array.ndim == 2 else array
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(args.tokenizer))
    gguf.write(args.out, model_metadata(config) + tokenizer_metadata(tokenizer), tensors)


if __name__ == "__main__":
    main()
