"""A fine-tuned model over a recording, a corpus or a stream of windows."""
