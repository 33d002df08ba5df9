"""Tokenizers: encode ECG leads as tokens and decode them."""
