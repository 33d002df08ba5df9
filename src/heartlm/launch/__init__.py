"""How many processes, and where: what the machine can do, scripts for it, and watching what runs."""
