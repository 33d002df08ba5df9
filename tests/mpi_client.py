"""The client of a test with MPI: items at which processes end, and the results as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from heartlm.system.engine import EngineOptions
from heartlm.system.processes import Lost, run_each
from tests.test_engines import Fragile

if __name__ == "__main__":
    trouble = {3: "dies once", 5: "dies", 8: "hangs"}
    items = [(number, trouble.get(number, "")) for number in range(20)]
    results = run_each(Fragile(Path(sys.argv[1])), items, EngineOptions(engine="mpi", limit_s=1.0), 2)
    print(json.dumps(["Lost" if isinstance(each, Lost) else each for each in results]))
