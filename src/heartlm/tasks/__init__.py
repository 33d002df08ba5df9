"""What a model with a head answers: labels, windows and classes of each task."""
