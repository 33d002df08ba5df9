"""`heartlm image`: build the Apptainer image for clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import parse
from heartlm.cli.subcommands import run_subcommand
from heartlm.cluster.image.image import BASE


@dataclass(frozen=True)
class BuildOptions:
    """Options of `heartlm image build`.

    Attributes:
        out: output file of the image.
        source: source tree of heartlm; by default the one from which this heartlm was installed.
        base: base image; by default Ubuntu with the CUDA libraries.
        definition: print the definition file instead of building, to build it elsewhere.
    """

    out: Path = Path("heartlm.sif")
    source: Path | None = None
    base: str = BASE
    definition: bool = False


def run(argv: Sequence[str]) -> int:
    """Run one subcommand of `heartlm image` and return the exit status."""
    return run_subcommand("image", SUBCOMMANDS, argv)


def run_build(argv: Sequence[str]) -> int:
    """Build the image with Apptainer: CUDA, PyTorch and heartlm at pinned versions.

    Examples:
        heartlm image build --out heartlm.sif
        heartlm image build --definition > heartlm.def
    """
    options = parse(BuildOptions, argv, "image build", run_build)
    from heartlm.cluster.image.image import build, checkout, definition, pinned_torch

    source = checkout(options.source)
    if options.definition:
        print(definition(source, pinned_torch(source), options.base), end="")
        return 0
    build(source, options.out, options.base)
    print(options.out)
    return 0


SUBCOMMANDS = {
    "build": ("heartlm.cli.image:run_build", "build it with Apptainer, or print its definition"),
}
