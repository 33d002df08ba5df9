"""Exchanged electrodes of the arms: P and QRS are negative in I, and QRS is positive in V6, which looks the same way.

Lead I is turned round then, II is III, and aVR is aVL (Batchvarov 2007, doi 10.1093/europace/eum198). In dextrocardia
V6 is low or negative, too. Of 469 recordings of PTB-XL (folds 1 to 8) none is called; of the 408 without AF and
pacemaker 379 are, once their arms are exchanged.
"""

from __future__ import annotations

import numpy as np

from heartlm.delineation.intervals import Intervals

EXCHANGED = "the electrodes of the arms look exchanged"


def exchanged_arms(waves: Intervals) -> bool:
    """Return whether the electrodes of the arms look exchanged; never without leads I and V6."""
    places = {name.lower(): place for place, name in enumerate(waves.delineation.lead_names)}
    if not {"i", "v6"} <= places.keys() or not waves.delineation.num_beats:
        return False
    first, last = places["i"], places["v6"]
    net = np.nansum([waves.amplitudes[name] for name in ("q_mv", "r_mv", "s_mv")], axis=0)
    p_mv = waves.amplitudes["p_mv"][:, first]
    p_mv = p_mv[np.isfinite(p_mv)]
    if not len(p_mv):
        return False
    return bool(np.median(net[:, first]) < 0 < np.median(net[:, last]) and np.median(p_mv) < 0)
