#!/usr/bin/python3
"""Slow, plain generator in numpy float32 from a GGUF file of export_gguf.py.

--expect writes the file that the C++ tests compare with: the prompt; the prompt's ids; the
generated ids; then the generated text and a newline.
"""
import argparse
import pathlib

import numpy as np

import gguf

NORMAL, BYTE = 1, 6  # token types
SPACE = "\u2581"  # how a piece spells a space


class Tokenizer:
    """SentencePiece BPE with byte fallback."""

    def __init__(self, metadata):
        self.tokens = metadata["tokenizer.ggml.tokens"]
        self.scores = metadata["tokenizer.ggml.scores"]
        self.types = metadata["tokenizer.ggml.token_type"]
        self.bos = metadata["tokenizer.ggml.bos_token_id"]
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def encode(self, text):
        """The ids of BOS and the text, which gets a space in front unless it is empty."""
        symbols = list((" " + text if text else "").replace(" ", SPACE))
        while True:
            candidates = [(-self.scores[self.ids[left + right]], i)
                          for i, (left, right) in enumerate(zip(symbols, symbols[1:]))
                          if left + right in self.ids]
            if not candidates:
                break
            _, i = min(candidates)  # the best score, then the leftmost
            symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]
        ids = [self.bos]
        for symbol in symbols:
            if symbol in self.ids:
                ids.append(self.ids[symbol])
            else:
                ids += [self.ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        return ids

    def decode(self, ids):
        """The text of the ids; a space in front of the first word stays."""
        data = b""
        for i in ids:
            if self.types[i] == BYTE:
                data += bytes([int(self.tokens[i][3:5], 16)])
            elif self.types[i] == NORMAL:
                data += self.tokens[i].replace(SPACE, " ").encode()
        return data.decode(errors="replace")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Reference:
    """One token at a time, with a KV cache."""

    def __init__(self, metadata, tensors):
        self.weights = {name: array.astype(np.float32) for name, array in tensors.items()}
        self.block_count = metadata["llama.block_count"]
        self.head_count = metadata["llama.attention.head_count"]
        self.kv_head_count = metadata["llama.attention.head_count_kv"]
        self.epsilon = metadata["llama.attention.layer_norm_rms_epsilon"]
        self.head_dim = metadata["llama.rope.dimension_count"]
        exponent = np.arange(0, self.head_dim, 2) / self.head_dim
        self.frequencies = metadata["llama.rope.freq_base"] ** -exponent
        self.keys = [[] for _ in range(self.block_count)]
        self.values = [[] for _ in range(self.block_count)]

    def norm(self, x, name):
        scale = 1 / np.sqrt(np.mean(x * x) + np.float32(self.epsilon))
        return x * scale * self.weights[name + ".weight"]

    def project(self, x, name):
        return self.weights[name + ".weight"] @ x

    def rope(self, x, position):  # x: [head, head_dim]; rotates the pairs (2i, 2i+1)
        angle = position * self.frequencies
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        y = np.empty_like(x)
        y[:, 0::2] = x[:, 0::2] * cos - x[:, 1::2] * sin
        y[:, 1::2] = x[:, 0::2] * sin + x[:, 1::2] * cos
        return y

    def attention(self, x, block):
        name = f"blk.{block}.attn_"
        position = len(self.keys[block])
        q = self.rope(self.project(x, name + "q").reshape(self.head_count, -1), position)
        k = self.rope(self.project(x, name + "k").reshape(self.kv_head_count, -1), position)
        self.keys[block].append(k)
        self.values[block].append(self.project(x, name + "v").reshape(self.kv_head_count, -1))
        keys, values = np.stack(self.keys[block], 1), np.stack(self.values[block], 1)
        q = q.reshape(self.kv_head_count, -1, self.head_dim)  # [kv_head, group, head_dim]
        weights = softmax(q @ keys.transpose(0, 2, 1) / np.float32(np.sqrt(self.head_dim)))
        return self.project((weights @ values).reshape(-1), name + "output")

    def ffn(self, x, block):
        name = f"blk.{block}.ffn_"
        activation = np.maximum(self.project(x, name + "gate"), 0)
        return self.project(activation * self.project(x, name + "up"), name + "down")

    def step(self, token):
        """The logits of the token that follows."""
        x = self.weights["token_embd.weight"][token]
        for block in range(self.block_count):
            x = x + self.attention(self.norm(x, f"blk.{block}.attn_norm"), block)
            x = x + self.ffn(self.norm(x, f"blk.{block}.ffn_norm"), block)
        return self.weights["token_embd.weight"] @ self.norm(x, "output_norm")


def generate(model, prompt_ids, count, temperature, random):
    """The generated ids, and the smallest gap between the best two logits."""
    for token in prompt_ids:
        logits = model.step(token)
    generated, smallest_gap = [], float("inf")
    for _ in range(count):
        if temperature > 0:
            token = int(random.choice(len(logits), p=softmax(logits.astype(float) / temperature)))
        else:
            token = int(logits.argmax())
        second, best = np.sort(logits)[-2:]
        smallest_gap = min(smallest_gap, float(best - second))
        generated.append(token)
        logits = model.step(token)
    return generated, smallest_gap


def main():
    here = pathlib.Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, default=here / "sample.gguf")
    parser.add_argument("--prompt", default="In the beginning")
    parser.add_argument("--tokens", type=int, default=64, help="how many; EOS does not stop")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--expect", type=pathlib.Path, help="file to write")
    args = parser.parse_args()

    metadata, tensors = gguf.read(args.model)
    tokenizer = Tokenizer(metadata)
    prompt_ids = tokenizer.encode(args.prompt)
    generated, gap = generate(Reference(metadata, tensors), prompt_ids, args.tokens,
                              args.temperature, np.random.default_rng(args.seed))
    text = tokenizer.decode(generated)
    print(args.prompt + text)
    print(f"smallest gap between the best two logits: {gap:.4f}")
    if args.expect:
        lines = [args.prompt, " ".join(map(str, prompt_ids)), " ".join(map(str, generated)), text]
        args.expect.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
