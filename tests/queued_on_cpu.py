"""`python -m tests.queued_on_cpu` is `heartlm` with the queue of steps of a GPU, on a CPU."""

from heartlm.cli.main import run_process
from heartlm.training import learner


def run() -> None:
    learner.QUEUED_DEVICES.add("cpu")
    run_process()


if __name__ == "__main__":
    run()
