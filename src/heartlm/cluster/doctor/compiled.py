"""The compiled kernels: whether there are any, and which variant this processor runs."""

from __future__ import annotations

import os
import shutil

from heartlm.cluster.doctor.section import Advice, Context, Section
from heartlm.kernels.library import VARIANTS, library, variants


def check_kernels(context: Context) -> Section:
    """Say which kernels are used, and what keeps better ones away."""
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    setting = os.environ.get("HEARTLM_KERNELS", "")
    facts = {"setting": setting or None, "variants": list(variants()), "compiler": compiler}
    if setting == "numpy":
        return Section(["NumPy does their work, as HEARTLM_KERNELS=numpy says"], facts)
    if library() is None:
        first = "" if compiler else "install a C compiler (for example: apt install gcc), then  "
        how = f"{first}pip install --force-reinstall --no-deps heartlm"
        because = "no compiled kernels, so NumPy and torch do their work, slower"
        return Section([because], facts, [Advice("build the compiled kernels", how, None, because)])
    best = setting if setting in VARIANTS else variants()[-1]
    line = f"compiled, {best} is used; this processor runs {', '.join(variants())}"
    return Section([line + (f" (HEARTLM_KERNELS={setting})" if setting else "")], facts)
