"""Scaling with the number of processes: studies, results, prediction.

    STUDY.yaml ─► cells ─► trainings ─► measurements ─► speedup, efficiency, overhead ─► figures, tables
                                             │
                                             └─► prediction of other numbers of ranks and nodes

A study runs training and launch as commands; it reads its measurements from files that training wrote.
"""

COMMANDS = {
    "scale": (
        "heartlm.extensions.scaling.commands.scale:run",
        "how training time changes with ranks and nodes: measure, report, predict",
    ),
}
"""Location and summary of each command, which `heartlm` finds by an entry point of heartlm.extensions."""
