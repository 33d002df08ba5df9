"""Speed of heartlm, next to other packages: see README.md."""
