"""Models of the Hugging Face hub, by name: `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`.

`huggingface_hub` is imported, and the hub asked, only when such a name is used. What was downloaded stays in its cache.
"""

from __future__ import annotations

import re
from pathlib import Path

from heartlm.errors import HeartlmError, needs
from heartlm.system.progress import is_shown

PREFIX = "hf:"
FILES = ("README.md", "*.json", "model.safetensors", "tokenizer/*.json", "tokenizer/*.safetensors")
"""What is downloaded of a repository; it may hold other files, such as pickles."""
_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def fetch(name: str) -> Path:
    """Download the model `name` if the cache does not have it, and return its folder, which is only read.

    Raises:
        HeartlmError: `name` is misspelt, there is no such model, the hub cannot be reached and the cache does not have
            the model, or `huggingface_hub` is not installed.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise HeartlmError(f"{name}: hf:OWNER/NAME or hf:OWNER/NAME@REVISION expected")
    with needs("hub"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError
        from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hidden = not is_shown() and not are_progress_bars_disabled()
    if hidden:
        disable_progress_bars()
    try:
        folder = Path(snapshot_download(match[1], revision=match[2], allow_patterns=list(FILES)))
    except (RepositoryNotFoundError, GatedRepoError, HFValidationError) as error:
        raise HeartlmError(f"{name}: no such model, or it is not public (then log in with  hf auth login)") from error
    except HfHubHTTPError as error:
        raise HeartlmError(f"{name}: the hub refused it: {str(error).strip().splitlines()[-1]}") from error
    except OSError as error:
        why = (
            "the hub cannot be reached (no network, or HF_HUB_OFFLINE is set): check name and revision, go online once"
        )
        raise HeartlmError(f"{name}: not complete in the cache, and {why}") from error
    finally:
        if hidden:
            enable_progress_bars()
    if not (folder / "run.json").is_file():
        raise HeartlmError(f"{name}: no run.json, so no model that Model.save_pretrained has written")
    return folder
