"""`heartlm image`: print the definition of the Apptainer image for clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import parse
from heartlm.extensions.cluster.image.image import BASE, definition


@dataclass(frozen=True)
class ImageOptions:
    """Options of `heartlm image`.

    Attributes:
        source: source tree of heartlm; by default that of this heartlm, or what is installed if it came as a wheel,
            which is packed into the cache of heartlm.
        base: base image; by default Ubuntu with the CUDA libraries.
    """

    source: Path | None = None
    base: str = BASE


def run(argv: Sequence[str]) -> int:
    """Print the definition of an image with CUDA, PyTorch and heartlm at pinned versions, which Apptainer builds.

    Examples:
        heartlm image > heartlm.def && apptainer build heartlm.sif heartlm.def
    """
    options = parse(ImageOptions, argv, "image", run)
    print(definition(options.source and options.source.resolve(), options.base), end="")
    return 0
