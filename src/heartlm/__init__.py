"""heartlm: heart language models, transformers that read an ECG as a sentence of heartbeats."""

__version__ = "0.1.0"
