"""Published scaling results of heart language models, for reference; they are not measurements of this project.

HLM on HPC: Mileski, Petrovski, Gusev, MIPRO 2025, arXiv 2503.21033; one MeluXina node, four A100 of 40 GB. The speedups
and efficiencies are as stated in the paper; its best efficiency on 2 GPUs is not half of its speedup.
"""

SOURCE = "published: Mileski et al., MIPRO 2025, arXiv 2503.21033, A100"

SPEEDUP = {1: 1.0, 2: 1.6, 4: 1.9}
"""Speedup by number of GPUs."""

EFFICIENCY = {2: 0.75, 4: 0.5}
"""Best efficiency of all runs, by number of GPUs; the paper states that for 4 GPUs as "about"."""
