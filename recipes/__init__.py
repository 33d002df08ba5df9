"""How the shipped models and constants are made: see README.md."""
