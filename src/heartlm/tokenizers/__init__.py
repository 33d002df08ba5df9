"""Beats to tokens and back."""
