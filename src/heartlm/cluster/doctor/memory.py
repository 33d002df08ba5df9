"""Memory of a pretraining step, compared with the memory of a rank on this machine."""

from __future__ import annotations

from heartlm.cluster.doctor.section import Context, Section

DEPTHS, WINDOW, WINDOWS = (4, 8, 16), 512, 16
"""Depths of the planned models, window length, and windows per rank."""


def check_memory(context: Context) -> Section:
    """Plan training steps of several depths and report which of them fit."""
    gpus = context.fact("devices", "gpus", [])
    if gpus:
        has_bytes, where = min(gpu["memory_bytes"] for gpu in gpus), "a GPU here"
    else:
        limit = context.fact("processors", "memory_limit_bytes") or context.fact("processors", "memory_bytes", 0)
        has_bytes, where = limit / max(1, context.fact("processors", "usable_cores", 1)), "a core's share of the memory"
    if context.quick:
        return Section(["steps of training: not planned, heartlm doctor without --quick does it"])
    from heartlm.models.pretrained import FOLDER
    from heartlm.tokenizers.base import load_tokenizer
    from heartlm.training.config import PretrainConfig
    from heartlm.training.dry_run import step_memory

    tokenizer, needed = load_tokenizer(FOLDER / "foundation" / "tokenizer"), dict[int, int]()
    for depth in DEPTHS:
        config = PretrainConfig(depth=depth, window=WINDOW, batch_size=WINDOWS)
        needed[depth] = step_memory(config, tokenizer, 1, "ddp").peak
    fitting = [depth for depth, size in needed.items() if size <= has_bytes]
    steps = ", ".join(f"{size / 1e9:.1f} GB at depth {depth}" for depth, size in needed.items())
    fits = f"up to depth {fitting[-1]} fits" if fitting else "none of them fits"
    lines = [
        f"a step of {WINDOWS} windows of {WINDOW} tokens needs {steps}",
        f"{where} is {has_bytes / 1e9:.1f} GB: {fits}; heartlm plan memory plans other settings",
    ]
    return Section(lines, {"rank_bytes": has_bytes, "step_bytes": {str(depth): size for depth, size in needed.items()}})
