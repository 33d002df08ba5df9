"""`python -m heartlm` is the command `heartlm`."""

from heartlm.cli.main import run_process

run_process()
