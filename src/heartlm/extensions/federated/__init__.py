"""Training without moving recordings: clients train on their own patients, only what they learnt is added up."""
