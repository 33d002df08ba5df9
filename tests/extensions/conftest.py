"""What tests of the extensions share: a SLURM of this machine."""

from __future__ import annotations

import pytest

from tests.extensions.cluster.slurm import slurm  # noqa: F401  a fixture, known to all tests here


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever starts a SLURM is slow."""
    for item in items:
        if "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
