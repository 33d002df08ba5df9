"""Simulated electrocardiograms: patients, their hearts, the waves they make, what electrodes add, and WFDB files.

    config ─► patients ─► heart + rhythms ─► synthesis (morphology) ─► write

Everything is a pure function of the seed and the patient's index.
"""
