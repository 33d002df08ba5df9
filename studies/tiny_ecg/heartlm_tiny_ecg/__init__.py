"""TinyECG for federated studies of heartlm: the model of the published study ("CrossScale-ECG"), and its beats."""
