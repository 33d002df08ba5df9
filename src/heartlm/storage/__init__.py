"""Files: written atomically, read within limits, values checked against types."""
