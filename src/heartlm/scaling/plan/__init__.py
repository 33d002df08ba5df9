"""Plans: assignment of GPUs to the experiments of a campaign."""
