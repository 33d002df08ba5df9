"""`python -m heartlm` is the command `heartlm`."""

import sys

from heartlm.cli.main import main

sys.exit(main())
