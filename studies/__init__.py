"""How often answers of heartlm are right: see README.md."""
