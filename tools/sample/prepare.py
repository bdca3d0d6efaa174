#!/usr/bin/python3
"""Makes the training text, the held-out text and the tokenizer of the sample model.

Sources, both out of copyright: the King James Bible (Debian packages bible-kjv and
bible-kjv-text) and Jane Austen's six novels (Debian package r-cran-janeaustenr).
A document is a chapter. Within a chapter the paragraphs are separated by a newline.
"""
import argparse
import pathlib
import re
import struct
import subprocess
import zlib

import numpy as np
import sentencepiece

NOVELS = "/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
HELD_OUT_EVERY = 25  # one chapter in 25 is held out
VOCAB_SIZE = 2048
BOS, EOS = 1, 2


def bible_chapters():
    """One paragraph per chapter, the verses joined by spaces."""
    out = subprocess.run(["bible", "-f", "-l9999", "gen1:1-rev22:21"],
                         check=True, capture_output=True, text=True).stdout
    chapters = {}
    for line in out.splitlines():
        reference, verse = line.split(" ", 1)
        chapters.setdefault(reference.split(":")[0], []).append(verse.strip())
    return [" ".join(verses) for verses in chapters.values()]


def read_r_strings(path):
    """The character vectors of an R lazy-load database, each a list of lines."""
    data = path.read_bytes()
    vectors = []
    while data:
        blob = zlib.decompressobj()
        vector = blob.decompress(data[4:])  # 4 bytes: length once decompressed
        data = blob.unused_data
        encoding_bytes = struct.unpack_from(">i", vector, 14)[0]
        position = 18 + encoding_bytes + 4  # header, encoding name, type of the vector
        count = struct.unpack_from(">i", vector, position)[0]
        position += 4
        lines = []
        for _ in range(count):
            length = struct.unpack_from(">i", vector, position + 4)[0]
            position += 8
            lines.append(vector[position:position + length].decode("utf-8"))
            position += length
        vectors.append(lines)
    return vectors


def novel_chapters(path):
    chapters = []
    for lines in read_r_strings(path):
        text = "\n".join(line.strip() for line in lines)
        # What precedes the first heading is the title page.
        for chapter in re.split(r"(?im)^chapter\s+[ivxlc0-9]+\.?$", text)[1:]:
            paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", chapter)]
            paragraphs = [p.replace("_", "") for p in paragraphs
                          if re.search("[a-z]", p)]  # leaves out VOLUME II, FINIS
            chapters.append("\n".join(paragraphs))
    return chapters


def write_tokens(chapters, tokenizer, path):
    ids = []
    for chapter in chapters:
        ids += [BOS, *tokenizer.encode(chapter), EOS]
    np.array(ids, dtype=np.uint16).tofile(path)
    size = sum(len(c.encode()) for c in chapters)
    print(f"{path.name}: {len(chapters)} chapters, {size} bytes, {len(ids)} tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--novels", type=pathlib.Path, default=pathlib.Path(NOVELS),
                        help="Rdata.rdb of r-cran-janeaustenr")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    chapters = bible_chapters() + novel_chapters(args.novels)
    held_out = chapters[HELD_OUT_EVERY // 2::HELD_OUT_EVERY]
    train = [c for i, c in enumerate(chapters) if i % HELD_OUT_EVERY != HELD_OUT_EVERY // 2]
    train_text = args.out / "train.txt"
    train_text.write_text("\n".join(train) + "\n")
    (args.out / "heldout.txt").write_text("\n".join(held_out) + "\n")

    sentencepiece.SentencePieceTrainer.train(
        input=str(train_text), model_prefix=str(args.out / "tokenizer"),
        model_type="bpe", vocab_size=VOCAB_SIZE, byte_fallback=True,
        character_coverage=0.9999, normalization_rule_name="identity",
        remove_extra_whitespaces=False, split_digits=True, max_sentence_length=100000,
        num_threads=1, unk_id=0, bos_id=BOS, eos_id=EOS, minloglevel=1)
    tokenizer = sentencepiece.SentencePieceProcessor(
        model_file=str(args.out / "tokenizer.model"))
    write_tokens(train, tokenizer, args.out / "train.bin")
    write_tokens(held_out, tokenizer, args.out / "heldout.bin")


if __name__ == "__main__":
    main()
