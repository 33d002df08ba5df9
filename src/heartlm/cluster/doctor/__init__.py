"""What a machine or an allocation can do, and what is worth changing; one file a group of checks."""
