"""heartlm: heart language models, transformers that read an ECG as a sentence of heartbeats.

The public interface is that of `heartlm.api`; names are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from heartlm.api import (
        Annotations as Annotations,
    )
    from heartlm.api import (
        Corpus as Corpus,
    )
    from heartlm.api import (
        HeartlmError as HeartlmError,
    )
    from heartlm.api import (
        Model as Model,
    )
    from heartlm.api import (
        Recording as Recording,
    )
    from heartlm.api import (
        Scores as Scores,
    )
    from heartlm.api import (
        detect_beats as detect_beats,
    )
    from heartlm.api import (
        evaluate as evaluate,
    )
    from heartlm.api import (
        finetune as finetune,
    )
    from heartlm.api import (
        load_model as load_model,
    )
    from heartlm.api import (
        open_corpus as open_corpus,
    )
    from heartlm.api import (
        open_recording as open_recording,
    )
    from heartlm.api import (
        pretrain as pretrain,
    )
    from heartlm.api import (
        show_progress as show_progress,
    )
    from heartlm.api import (
        tokenize as tokenize,
    )


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from importlib import import_module

    api = import_module("heartlm.api")
    if name not in api.__all__:
        raise AttributeError(f"module 'heartlm' has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    from importlib import import_module

    return [*globals(), *import_module("heartlm.api").__all__]
