"""The one loop that pretrains and fine-tunes."""
