"""Byte-pair encoding of amplitude levels: heartlm's trainer and encoder, Hugging Face tokenizers and tiktoken.

    python benchmarks/bpe.py FOLDER_OF_MITDB

All learn from the same levels (the first leads of DS1, cut at every second, no run longer than 32) and encode the same
(DS2), on one core. Levels become characters, and seconds strings, before the clock starts. tokenizers is used in the
fastest way found: a second a string, no pre-tokenizer, no cache, encode_batch_fast, codes not copied into Python lists.
tiktoken has no trainer: it encodes with the runs that tokenizers learnt, into lists (encode_ordinary) and into arrays
(encode_to_numpy, which also looks for special tokens). Before anything counts, every rival has to give back the levels
it was given. Takes about two minutes.
"""

from __future__ import annotations

import os

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
import tokenizers
from bench.measure import Table, interleaved, per, pin, rates
from bench.output import write_results
from numpy.typing import NDArray

from heartlm.ecg.database import open_database
from heartlm.kernels import bpe as kernels
from heartlm.kernels.amplitude import NUM_LEVELS
from heartlm.kernels.library import using, variants
from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.bpe import LONGEST_RUN, SECOND, Runs
from heartlm.tokenizers.merges import learn_runs, with_breaks
from heartlm.tokenizers.sample import SampleTokenizer

Levels = NDArray[np.uint16]

NUM_CODES = 1024
SIZES = (256, 512, 1024, 2048, 4096)
FIRST_CHARACTER = 0x100
"""Of the alphabet for Hugging Face: no white space, no control characters."""


def levels_of(folder: Path, split: str) -> list[Levels]:
    """Levels of the first lead of every recording of `split`."""
    database, parts = open_database(folder), []
    for name in database.record_ids:
        if database.split_of(name) == split:
            annotations = database.annotations(name)
            assert annotations is not None
            parts.append(SampleTokenizer().encode(Lead.read(database.recording(name), annotations)).codes[:, 0].copy())
    return parts


def strings(parts: list[Levels]) -> list[str]:
    """A string a second."""
    texts = ["".join(map(chr, (part.astype(int) + FIRST_CHARACTER).tolist())) for part in parts]
    return [text[begin : begin + SECOND] for text in texts for begin in range(0, len(text), SECOND)]


def learn(parts: list[Levels], num_codes: int = NUM_CODES) -> Runs:
    symbols = with_breaks(parts, SECOND)
    runs = learn_runs(symbols, num_symbols=NUM_LEVELS, num_codes=num_codes, longest=LONGEST_RUN)
    return Runs(tuple(runs), NUM_LEVELS)


def learn_by_tokenizers(texts: list[str]) -> tokenizers.Tokenizer:
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=NUM_CODES,
        max_token_length=LONGEST_RUN,
        initial_alphabet=[chr(FIRST_CHARACTER + level) for level in range(NUM_LEVELS)],
        show_progress=False,
    )
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.train_from_iterator(texts, trainer)
    model = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    return tokenizers.Tokenizer(tokenizers.models.BPE(vocab=model["vocab"], merges=merges, cache_capacity=0))


def by_tiktoken(runs: list[bytes]) -> tiktoken.Encoding:
    """Merges in order, the earliest learnt first, a second at a time."""
    ranks = {run: code for code, run in enumerate(runs)}
    ranks |= {bytes([byte]): len(runs) + byte for byte in range(NUM_LEVELS, 256)}
    return tiktoken.Encoding("levels", pat_str=rf"[\s\S]{{1,{SECOND}}}", mergeable_ranks=ranks, special_tokens={})


def runs_of(model: tokenizers.Tokenizer) -> list[bytes]:
    """The runs that Hugging Face learnt, in their order."""
    vocabulary = sorted(model.get_vocab().items(), key=lambda entry: entry[1])
    return [bytes(ord(character) - FIRST_CHARACTER for character in run) for run, _ in vocabulary]


def check(parts: list[Levels], runs: Runs, model: tokenizers.Tokenizer, tik: tiktoken.Encoding) -> None:
    """Check that every method decodes to the original levels."""
    for part in parts:
        assert np.array_equal(runs.decode(runs.encode(part, SECOND)), part)
        learnt, codes = runs_of(model), [encoded.ids for encoded in model.encode_batch_fast(strings([part]))]
        assert b"".join(learnt[code] for each in codes for code in each) == part.astype(np.uint8).tobytes()
        in_order = [code for each in codes for code in each]
        assert tik.encode_ordinary(plain(part)) == in_order == tik.encode_to_numpy(plain(part)).tolist()


def plain(part: Levels) -> str:
    return part.astype(np.uint8).tobytes().decode("latin-1")


def training(train: list[Levels], rounds: int) -> Table:
    table = Table(
        f"Training: seconds for {NUM_CODES} runs from {sum(map(len, train)) / 1e6:.2f} M levels (median of {rounds})",
        ("trainer", "seconds", "times Hugging Face"),
    )
    texts = strings(train)
    rivals: dict[str, Callable[[], Any]] = {
        "heartlm": lambda: learn(train),
        "Hugging Face tokenizers": lambda: learn_by_tokenizers(texts),
    }
    taken = {name: per(times) for name, times in interleaved(rivals, rounds, warm_up=False).items()}
    for name, found in taken.items():
        table.add(name, found, taken["Hugging Face tokenizers"].median / found.median)
    table.close()
    return table


def encoding(test: list[Levels], runs: Runs, model: tokenizers.Tokenizer, tik: tiktoken.Encoding, rounds: int) -> Table:
    table = Table(
        f"Encoding: levels a second on one core, {sum(map(len, test)) / 1e6:.2f} M levels (median of {rounds})",
        ("encoder", "M levels/s", "times the fastest rival", "levels a token"),
    )
    texts, whole, trie = strings(test), [plain(part) for part in test], runs.trie

    def ours(variant: str) -> int:
        with using(variant):
            return sum(len(kernels.encode_runs(part, trie, SECOND)) for part in test)

    peers: dict[str, Callable[[], int]] = {
        "Hugging Face tokenizers": lambda: sum(map(len, model.encode_batch_fast(texts))),
        "tiktoken, encode_ordinary": lambda: sum(len(tik.encode_ordinary(text)) for text in whole),
        "tiktoken, encode_to_numpy": lambda: sum(len(tik.encode_to_numpy(text)) for text in whole),
    }
    rivals = peers | {f"heartlm, {variant}": (lambda variant=variant: ours(variant)) for variant in variants()}
    num_levels = dict.fromkeys(rivals, sum(map(len, test)))
    num_tokens = {name: encode() for name, encode in rivals.items()}
    times = interleaved(rivals, rounds)
    found = {name: rates(taken, num_levels[name] / 1e6) for name, taken in times.items()}
    fastest = max(found[name].median for name in peers)
    for name, rate in found.items():
        table.add(name, rate, rate.median / fastest, f"{num_levels[name] / num_tokens[name]:.3f}")
    table.close()
    return table


def compression(train: list[Levels], test: list[Levels]) -> Table:
    table = Table(
        "Levels a token on DS2, by the size of the vocabulary: the longest match, merges replayed in order with the "
        "same runs, and the longest match not cut at seconds",
        ("codes", "longest match", "merge order", "longest match, uncut", "trie KiB"),
    )
    num_levels = sum(map(len, test))
    for size in SIZES:
        runs = learn(train, size)
        in_order = by_tiktoken(list(runs.symbols))
        counts = (
            sum(len(runs.encode(part, SECOND)) for part in test),
            sum(len(in_order.encode_ordinary(plain(part))) for part in test),
            sum(len(runs.encode(part, len(part))) for part in test),
        )
        ratios = (f"{num_levels / count:.3f}" for count in counts)
        table.add(len(runs.symbols), *ratios, runs.trie.next.nbytes >> 10)
    table.close()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="mitdb")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    pin(0)
    train, test = levels_of(options.folder, "train"), levels_of(options.folder, "test")
    runs, model = learn(train), learn_by_tokenizers(strings(train))
    tik = by_tiktoken(runs_of(model))
    check(test[:3], runs, model, tik)
    shared = len(set(runs.symbols) & set(runs_of(model)))
    print(f"{shared} of {NUM_CODES} runs are those that Hugging Face learns")
    tables = [
        encoding(test, runs, model, tik, options.rounds),
        training(train, min(options.rounds, 3)),
        compression(train, test),
    ]
    versions = {"tokenizers": tokenizers.__version__, "tiktoken": tiktoken.__version__}
    write_results(
        "bpe", "Byte-pair encoding of amplitude levels", tables, versions | {"runs_shared_with_tokenizers": shared}
    )


if __name__ == "__main__":
    main()
