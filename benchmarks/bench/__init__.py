"""What this machine can do, and whether heartlm's way pays on it: rivals side by side, in turns, in one run."""
