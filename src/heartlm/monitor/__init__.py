"""Live streams in, alarms out."""
