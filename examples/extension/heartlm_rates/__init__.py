"""Heart rates by the minute, as a command of `heartlm`.

`heartlm --help` imports this module, so it imports nothing.
"""

COMMANDS = {"rates": ("heartlm_rates.command:run", "mean heart rate of each minute of a recording")}
"""Location of the function, as `module:function`, and one line for `heartlm --help`, by the name of the command."""
