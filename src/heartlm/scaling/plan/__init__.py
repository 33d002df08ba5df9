"""Plans: sharing GPUs among the experiments of a campaign."""
