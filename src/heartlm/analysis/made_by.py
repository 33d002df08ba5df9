"""What findings depend on in addition to recording and limits."""

from __future__ import annotations

from collections.abc import Mapping

from heartlm.databases.each_recording import build
from heartlm.models.pretrained import model_files
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import digest_of_files


def made_by_models(models: Mapping[str, RunFolder]) -> dict[str, str]:
    """Return `build`, and a digest of each model by its name; the models need not be loaded."""
    digests = {name: digest_of_files(*model_files(run.model("last"))) for name, run in models.items()}
    return build() | {f"model {name}": digest for name, digest in digests.items()}
