"""Training without moving recordings: clients train on their own patients, only what they learnt is added up."""

COMMANDS = {
    "federate": (
        "heartlm.extensions.federated.commands.federate:run",
        "train across clients that keep their recordings",
    ),
}
"""Location and summary of each command, which `heartlm` finds by an entry point of heartlm.extensions."""
