"""Entry point of `python -m heartlm`, the same as the command `heartlm`."""

from heartlm.cli.main import run_process

run_process()
