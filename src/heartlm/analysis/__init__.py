"""What the shipped models find in a recording: beats and their classes, rhythms, events, signal quality."""
