"""Analysis of recordings with the shipped models: beats and their classes, rhythms, events, signal quality."""
