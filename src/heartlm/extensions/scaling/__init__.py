"""Scaling with the number of processes: studies, results, prediction and planning.

    STUDY.yaml ─► cells ─► trainings ─► measurements ─► speedup, efficiency, overhead ─► figures, tables
                                             │
                                             └─► prediction ─► plan of an allocation

A study runs training and launch as commands; it reads its measurements from files that training wrote.
"""
