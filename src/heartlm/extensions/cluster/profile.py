"""Site profiles: small YAML files, shipped with heartlm or written by the user."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from heartlm.errors import HeartlmError
from heartlm.storage.reading import read_yaml
from heartlm.storage.typed import typed

_SHIPPED = files("heartlm.extensions.cluster") / "profiles"


@dataclass(frozen=True)
class SiteOptions:
    """Options that override a site profile.

    Attributes:
        account: account to charge.
        partition: partition of the cluster.
        qos: quality of service.
        image: container image, if the profile uses a container.
    """

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    image: str | None = None


@dataclass(frozen=True, kw_only=True)
class SiteProfile(SiteOptions):
    """Site profile.

    Attributes:
        name: name of the profile; by default the file name without its ending.
        description: one-line description.
        required: options that a job must set, among account, partition, qos and image.
        gpus_per_node: number of GPUs of a node, and the default number of a job.
        cpus_per_node: number of hardware threads of a node; None if unknown.
        whole_nodes: whether a job always gets whole nodes.
        gpu_option: sbatch option that requests GPUs; {gpus} stands for the number per node.
        header: additional sbatch options.
        modules: modules to load first.
        container: apptainer or none.
        python: Python interpreter with heartlm; by default that of the container, or the one that submits.
        binds: folders to mount in the container, in addition to the working folder.
        environment: environment variables to set.
        signal_before_s: time in seconds before the time limit at which a run is asked to stop.
    """

    name: str
    description: str = ""
    required: list[Literal["account", "partition", "qos", "image"]] = field(default_factory=list)
    gpus_per_node: int = 0
    cpus_per_node: int | None = None
    whole_nodes: bool = False
    gpu_option: str = "--gpus-per-node={gpus}"
    header: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    container: Literal["apptainer", "none"] = "none"
    python: str = sys.executable
    binds: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    signal_before_s: int = 120

    def check(self) -> None:
        """Raise a HeartlmError that names the first invalid or missing field."""
        for name in self.required:
            if not getattr(self, name):
                raise HeartlmError(f"{name}: nothing found, but {self.name} wants one: give --{name} NAME")
        if self.container != "none" and not self.image:
            raise self._error("image: nothing found, the image of the container expected: give --image FILE")
        if set("{}") & set(self.gpu_option.replace("{gpus}", "")):
            raise self._error(f"gpu_option: {self.gpu_option!r} found, {{gpus}} is all that may stand in braces")
        if self.signal_before_s < 1:
            raise self._error(f"signal_before_s: {self.signal_before_s} found, at least 1 expected")

    def _error(self, text: str) -> HeartlmError:
        return HeartlmError(f"profile {self.name}: {text}")


def profile_names() -> list[str]:
    """Return the names of the shipped profiles."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def load_profile(name_or_path: str) -> SiteProfile:
    """Load a profile by name or from a YAML file.

    Raises:
        HeartlmError: the profile does not exist, or the file is not a profile.
    """
    is_path = name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path
    if not is_path and name_or_path not in profile_names():
        raise HeartlmError(
            f"profile: {name_or_path!r} found, one of {', '.join(profile_names())} or a YAML file expected"
        )
    source = Path(name_or_path) if is_path else _SHIPPED / f"{name_or_path}.yaml"
    content = read_yaml(Path(str(source)), "the YAML file of a site's profile")
    return profile_of(content or {}, Path(name_or_path).stem)


def load_site(name_or_path: str, options: SiteOptions) -> SiteProfile:
    """Return a profile with the given options applied.

    Raises:
        HeartlmError: the profile does not exist, or is incomplete.
    """
    given = {each.name: getattr(options, each.name) for each in fields(SiteOptions)}
    profile = replace(load_profile(name_or_path), **{name: value for name, value in given.items() if value is not None})
    profile.check()
    return profile


def profile_of(content: Any, name: str) -> SiteProfile:
    """Return the profile with the fields of `content`.

    Raises:
        HeartlmError: `content` is not a mapping, or a field is unknown or of the wrong type.
    """
    where = f"profile {name}"
    values = {key: value for key, value in typed(dict[str, Any], content, where).items() if value is not None}
    if isinstance(values.get("environment"), dict):  # numbers are converted to text
        values["environment"] = {key: str(value) for key, value in values["environment"].items()}
    if values.get("container", "none") != "none":
        values = {"python": "python"} | values
    profile = typed(SiteProfile, {"name": name} | values, where)
    if strange := [key for key in profile.environment if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key)]:
        raise HeartlmError(f"{where}: environment: {strange[0]!r} found, the name of a variable expected")
    return profile
