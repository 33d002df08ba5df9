"""The statements that a report of a recording makes, such as atrial fibrillation, under one name for all databases.

Names are the codes of the SCP-ECG standard (EN 1064) as PTB-XL uses them. The table maps SNOMED CT codes, which the
PhysioNet/CinC challenges of 2020 and 2021 write as `Dx:` into headers, to them. Several SNOMED codes mean the same here
where the challenge scores them as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

SUPERCLASSES: tuple[str, ...] = ("NORM", "MI", "STTC", "CD", "HYP")
"""Diagnostic superclasses of PTB-XL: normal, infarct, changes of ST and T, conduction disturbance, hypertrophy."""


class Statement(NamedTuple):
    """A statement of a report.

    Attributes:
        words: what it says.
        superclass: diagnostic superclass of PTB-XL; empty if it is of the rhythm or the form.
        snomed: SNOMED CT codes that state it.
    """

    words: str
    superclass: str = ""
    snomed: tuple[int, ...] = ()


STATEMENTS: dict[str, Statement] = {
    "NORM": Statement("normal ECG", "NORM"),
    "MI": Statement("myocardial infarction", snomed=(164865005,)),
    "STTC": Statement("changes of ST and T"),
    "CD": Statement("conduction disturbance"),
    "HYP": Statement("hypertrophy"),
    # rhythms
    "SR": Statement("sinus rhythm", snomed=(426783006,)),
    "AFIB": Statement("atrial fibrillation", snomed=(164889003,)),
    "AFLT": Statement("atrial flutter", snomed=(164890007,)),
    "SARRH": Statement("sinus arrhythmia", snomed=(427393009,)),
    "SBRAD": Statement("sinus bradycardia", snomed=(426177001,)),
    "STACH": Statement("sinus tachycardia", snomed=(427084000,)),
    "PACE": Statement("paced rhythm", snomed=(10370003, 251266004, 251268003)),
    "SVARR": Statement("supraventricular arrhythmia"),
    "SVTAC": Statement("supraventricular tachycardia", snomed=(426761007,)),
    "PSVT": Statement("paroxysmal supraventricular tachycardia", snomed=(67198005,)),
    "BIGU": Statement("bigeminy"),
    "TRIGU": Statement("trigeminy"),
    # premature beats
    "PVC": Statement("premature ventricular beats", snomed=(427172004, 17338001, 164884008)),
    "PAC": Statement("premature atrial beats", snomed=(284470004, 63593006)),
    "PRC(S)": Statement("premature beats"),
    # conduction
    "1AVB": Statement("first degree AV block", "CD", (270492004,)),
    "2AVB": Statement("second degree AV block", "CD", (195042002,)),
    "3AVB": Statement("third degree AV block", "CD", (27885002,)),
    "LPR": Statement("long PR interval", snomed=(164947007,)),
    "CLBBB": Statement("left bundle branch block", "CD", (733534002, 164909002)),
    "ILBBB": Statement("incomplete left bundle branch block", "CD", (251120003,)),
    "CRBBB": Statement("right bundle branch block", "CD", (713427006, 59118001)),
    "IRBBB": Statement("incomplete right bundle branch block", "CD", (713426002,)),
    "LAFB": Statement("left anterior fascicular block", "CD", (445118002,)),
    "LPFB": Statement("left posterior fascicular block", "CD", (445211001,)),
    "IVCD": Statement("intraventricular conduction disturbance", "CD", (698252002,)),
    "WPW": Statement("Wolff-Parkinson-White syndrome", "CD", (74390002,)),
    # infarcts
    "IMI": Statement("inferior infarct", "MI"),
    "ASMI": Statement("anteroseptal infarct", "MI"),
    "AMI": Statement("anterior infarct", "MI"),
    "ALMI": Statement("anterolateral infarct", "MI"),
    "ILMI": Statement("inferolateral infarct", "MI"),
    "LMI": Statement("lateral infarct", "MI"),
    "IPMI": Statement("inferoposterior infarct", "MI"),
    "IPLMI": Statement("inferoposterolateral infarct", "MI"),
    "PMI": Statement("posterior infarct", "MI"),
    "INJAS": Statement("subendocardial injury, anteroseptal", "MI"),
    "INJAL": Statement("subendocardial injury, anterolateral", "MI"),
    "INJIN": Statement("subendocardial injury, inferior", "MI"),
    "INJLA": Statement("subendocardial injury, lateral", "MI"),
    "INJIL": Statement("subendocardial injury, inferolateral", "MI"),
    "QWAVE": Statement("abnormal Q waves", snomed=(164917005,)),
    # ST and T
    "ISC_": Statement("ischaemia", "STTC"),
    "ISCAL": Statement("ischaemia, anterolateral", "STTC"),
    "ISCAN": Statement("ischaemia, anterior", "STTC", (426434006,)),
    "ISCAS": Statement("ischaemia, anteroseptal", "STTC"),
    "ISCIL": Statement("ischaemia, inferolateral", "STTC"),
    "ISCIN": Statement("ischaemia, inferior", "STTC", (425419005,)),
    "ISCLA": Statement("ischaemia, lateral", "STTC", (425623009,)),
    "NDT": Statement("T changes, not diagnostic", "STTC"),
    "NST_": Statement("ST changes, not specific", "STTC"),
    "DIG": Statement("digitalis effect", "STTC"),
    "LNGQT": Statement("long QT interval", "STTC", (111975006,)),
    "ANEUR": Statement("ST and T as with a ventricular aneurysm", "STTC"),
    "EL": Statement("electrolytes or drugs", "STTC"),
    "STD_": Statement("ST depression", snomed=(429622005,)),
    "STE_": Statement("ST elevation", snomed=(164931005,)),
    "NT_": Statement("T changes, not specific"),
    "TAB_": Statement("abnormal T", snomed=(164934002,)),
    "INVT": Statement("inverted T", snomed=(59931005,)),
    "LOWT": Statement("low T"),
    # size
    "LVH": Statement("left ventricular hypertrophy", "HYP", (164873001,)),
    "RVH": Statement("right ventricular hypertrophy", "HYP", (89792004,)),
    "SEHYP": Statement("septal hypertrophy", "HYP"),
    "LAO/LAE": Statement("left atrial enlargement", "HYP", (67741000119109,)),
    "RAO/RAE": Statement("right atrial enlargement", "HYP", (446358003,)),
    "VCLVH": Statement("voltages of left ventricular hypertrophy"),
    "HVOLT": Statement("high QRS voltages"),
    "LVOLT": Statement("low QRS voltages", snomed=(251146004,)),
    "ABQRS": Statement("abnormal QRS", snomed=(164951009,)),
}
"""Each statement by its name. Superclasses come first, as their statements decide them."""

OF_SNOMED: dict[int, str] = {code: name for name, each in STATEMENTS.items() for code in each.snomed}

DIAGNOSTIC: frozenset[str] = frozenset(name for name, each in STATEMENTS.items() if each.superclass)
"""Statements that decide a superclass."""


def with_superclasses(stated: Mapping[str, bool]) -> dict[str, bool]:
    """Add the superclasses to statements of SCP-ECG, known or not.

    A superclass is present if a diagnostic statement of it is, and absent if a diagnostic statement of another one is
    known and none of its own is present.
    """
    present = {STATEMENTS[name].superclass for name, is_stated in stated.items() if is_stated and name in DIAGNOSTIC}
    known = DIAGNOSTIC & stated.keys()
    return dict(stated) | ({name: name in present for name in SUPERCLASSES} if known else {})


def words_of(names: Iterable[str]) -> list[str]:
    """Return what each statement says; a name that is not in the table says itself."""
    return [STATEMENTS[name].words if name in STATEMENTS else name for name in names]
