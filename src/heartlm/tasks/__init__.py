"""What is learnt, one file for each task; fine-tuning, scoring and annotation by any of them."""
