"""Check of the memory of pretraining against the memory of each rank, before a job is queued."""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec

from heartlm.cluster.profile import SiteProfile
from heartlm.cluster.topology import Topology
from heartlm.tokenizers.base import load_tokenizer
from heartlm.training.config import PretrainConfig


def memory_warning(config: PretrainConfig, topology: Topology, profile: SiteProfile) -> str | None:
    """Return a warning if a step needs more memory than a rank has; None if it fits or the memory is unknown.

    If a generous estimate exceeds the memory, two dry steps are run (`training.dry_run`); this takes some seconds and
    needs torch.

    Args:
        config: checked settings of pretraining.
        topology: allocation of the run.
        profile: site profile with `gpu_memory_gb`, or with `memory_gb` of a node for ranks on CPUs.
    """
    if topology.gpus_per_node:
        whole_gb, shared_by, of = profile.gpu_memory_gb, topology.runs_per_gpu, "a GPU"
    else:
        whole_gb, shared_by, of = profile.memory_gb, topology.ranks_per_node, "a node"
    if whole_gb is None or config.corpus is None or find_spec("torch") is None:
        return None
    if _at_most_gb(config, topology.world_size) < whole_gb / shared_by:
        return None
    from heartlm.training.dry_run import Sharing, step_memory

    sharing: Sharing = "fsdp" if config.parallel == "fsdp" else "ddp"
    tokenizer = load_tokenizer(config.corpus / "tokenizer")
    needed_gb = step_memory(deepcopy(config), tokenizer, topology.world_size, sharing).peak / 1e9
    if needed_gb <= whole_gb / shared_by:
        return None
    part = f"{whole_gb:g} GB" if shared_by == 1 else f"{whole_gb:g} GB for {shared_by}"
    return (
        f"a rank needs about {needed_gb:.1f} GB in a step, and {of} of {profile.name} has {part}: raise accumulation, "
        "set activation_checkpointing, or use more ranks; heartlm plan memory says what each needs"
    )


def _at_most_gb(config: PretrainConfig, num_ranks: int) -> float:
    """Return an upper bound of the memory of a step, in GB.

    A dry step of depth 16, width 512 and 16 windows of 512 tokens keeps 66 bytes per token, block and unit of width
    (2026-11-23). The bound uses five times that, several times all attention scores, and 64 bytes per weight.
    """
    width = config.width or 32 * config.depth
    assert config.batch_size is not None, "filled in when the settings were checked"
    tokens = config.batch_size * config.window / num_ranks / config.accumulation
    activations = tokens * config.depth * width * (330 + 2 * config.window)
    return (activations + 64 * 13 * config.depth * width**2 + 1e8) / 1e9
