"""Batch scripts, site profiles, job submission, campaigns, the container image and the doctor."""

COMMANDS = {
    "campaign": (
        "heartlm.extensions.cluster.commands.campaign:run",
        "run many dependent experiments, on SLURM or on this machine",
    ),
    "image": (
        "heartlm.extensions.cluster.commands.image:run",
        "print the definition of the Apptainer image that clusters run",
    ),
    "doctor": (
        "heartlm.extensions.cluster.commands.doctor:run",
        "report what this machine can do and which settings to change first",
    ),
    "watch": ("heartlm.extensions.cluster.commands.watch:run", "show the progress of a run in the terminal"),
    "launch": (
        "heartlm.extensions.cluster.commands.launch:run",
        "run a command on a cluster, without writing a script",
    ),
}
"""Location and summary of each command, which `heartlm` finds by an entry point of heartlm.extensions."""
