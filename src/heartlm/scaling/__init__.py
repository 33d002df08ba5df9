"""How time changes with the number of processes: studies, what follows from them, prediction and planning.

    STUDY.yaml ─► cells ─► trainings ─► measurements ─► speedup, efficiency, overhead ─► figures, tables
                                             │
                                             └─► prediction ─► plan of an allocation

A study calls training and launch from outside; what it measures is read from files that training wrote.
"""
