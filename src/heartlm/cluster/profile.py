"""What a site is like: a small YAML file, one of those that come with heartlm or one's own."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from heartlm.errors import HeartlmError
from heartlm.files import read_yaml
from heartlm.typed import typed

_SHIPPED = files("heartlm.cluster") / "profiles"


@dataclass(frozen=True)
class SiteOptions:
    """What commands can override of a profile.

    Attributes:
        account: what is charged.
        partition: of the cluster.
        qos: quality of service.
        image: of the container, where the profile wants one.
    """

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    image: str | None = None

    def applied_to(self, profile: SiteProfile) -> SiteProfile:
        """The profile with the options that were given."""
        options = {each.name: getattr(self, each.name) for each in fields(SiteOptions)}
        return replace(profile, **{name: value for name, value in options.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class SiteProfile(SiteOptions):
    """A site.

    Attributes:
        name: by default the file's, without its ending.
        description: one line.
        scheduler: slurm, or none.
        required: which of account, partition, qos and image a job must name.
        gpus_per_node: what a node has, and what a job asks for by default.
        cpus_per_node: hardware threads of a node; None where it is not known.
        memory_gb: of a node, in 10^9 bytes.
        gpu_memory_gb: of a GPU; None where it is not known.
        whole_nodes: a job gets whole nodes, whatever it asks for.
        gpu_option: how GPUs are asked for; {gpus} stands for the number on a node.
        gpu_slices: how one MIG slice is asked for, by how many slices of this size a GPU is divided into.
        header: further options of sbatch.
        modules: loaded before anything else.
        container: apptainer, or none.
        binds: folders that the container sees, besides the working folder.
        environment: variables to set.
        signal_before_s: how long before the time limit a run is asked to stop.
        login: what `ssh` is given to reach the cluster.
    """

    name: str
    description: str = ""
    scheduler: Literal["slurm", "none"] = "slurm"
    required: list[Literal["account", "partition", "qos", "image"]] = field(default_factory=list)
    gpus_per_node: int = 0
    cpus_per_node: int | None = None
    memory_gb: int | None = None
    gpu_memory_gb: float | None = None
    whole_nodes: bool = False
    gpu_option: str = "--gpus-per-node={gpus}"
    gpu_slices: dict[int, str] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    container: Literal["apptainer", "none"] = "none"
    binds: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    signal_before_s: int = 120
    login: str | None = None

    @property
    def python(self) -> str:
        """The interpreter that has heartlm: that of the container, or this one."""
        return "python" if self.container != "none" else sys.executable

    def check(self) -> None:
        """Raise a HeartlmError that names the first impossible or missing field."""
        for name in self.required:
            if not getattr(self, name):
                raise HeartlmError(f"{name}: nothing found, but {self.name} wants one: give --{name} NAME")
        if self.container != "none" and not self.image:
            raise self._error("image: nothing found, the image of the container expected: give --image FILE")
        if set("{}") & set(self.gpu_option.replace("{gpus}", "")):
            raise self._error(f"gpu_option: {self.gpu_option!r} found, {{gpus}} is all that may stand in braces")
        if any(slices < 2 for slices in self.gpu_slices):
            raise self._error(
                f"gpu_slices: {min(self.gpu_slices)} found, at least 2 expected: a GPU has that many slices"
            )
        if self.gpu_slices and self.whole_nodes:
            raise self._error("gpu_slices: found together with whole_nodes, but slices are given one by one")
        if self.signal_before_s < 1:
            raise self._error(f"signal_before_s: {self.signal_before_s} found, at least 1 expected")

    def _error(self, text: str) -> HeartlmError:
        return HeartlmError(f"profile {self.name}: {text}")


def profile_names() -> list[str]:
    """Names of the profiles that come with heartlm."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def load_profile(name_or_path: str) -> SiteProfile:
    """A profile by its name, or of a YAML file.

    Raises:
        HeartlmError: there is none, or the file holds something else.
    """
    is_path = name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path
    if not is_path and name_or_path not in profile_names():
        raise HeartlmError(
            f"profile: {name_or_path!r} found, one of {', '.join(profile_names())} or a YAML file expected"
        )
    source = Path(name_or_path) if is_path else _SHIPPED / f"{name_or_path}.yaml"
    content = read_yaml(Path(str(source)), "the YAML file of a site's profile")
    return profile_of(content or {}, Path(name_or_path).stem)


def load_slurm_profile(name_or_path: str, options: SiteOptions | None = None, field: str = "slurm") -> SiteProfile:
    """The complete profile of a site with SLURM.

    Args:
        name_or_path: of the profile.
        options: in place of its own fields.
        field: what the user calls it, for the error.

    Raises:
        HeartlmError: there is none, it is incomplete, or of a site without SLURM.
    """
    profile = load_profile(name_or_path)
    profile = options.applied_to(profile) if options is not None else profile
    profile.check()
    if profile.scheduler != "slurm":
        raise HeartlmError(f"{field}: {profile.name} found, a profile of a site with SLURM expected")
    return profile


def profile_of(content: Any, name: str) -> SiteProfile:
    """The profile with the fields that `content` has.

    Raises:
        HeartlmError: it is no mapping, or a field is not known or of another kind than expected.
    """
    where = f"profile {name}"
    values = {key: value for key, value in typed(dict[str, Any], content, where).items() if value is not None}
    if isinstance(values.get("environment"), dict):  # numbers are meant as text
        values["environment"] = {key: str(value) for key, value in values["environment"].items()}
    profile = typed(SiteProfile, {"name": name} | values, where)
    if strange := [key for key in profile.environment if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key)]:
        raise HeartlmError(f"{where}: environment: {strange[0]!r} found, the name of a variable expected")
    return profile
