"""What was published about the scaling of heart language models: reference marks, not measurements of this project.

HLM on HPC: Mileski, Petrovski, Gusev, MIPRO 2025, arXiv 2503.21033; one MeluXina node, four A100 of 40 GB. The speedups
and efficiencies stand here as the paper states them; the best efficiency on 2 GPUs is not half of the speedup it gives.
"""

SOURCE = "published: Mileski et al., MIPRO 2025, arXiv 2503.21033, A100"

SPEEDUP = {1: 1.0, 2: 1.6, 4: 1.9}
"""By number of GPUs."""

EFFICIENCY = {2: 0.75, 4: 0.5}
"""Best of all runs, by number of GPUs; that of 4 is "about"."""
