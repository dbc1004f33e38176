"""model_worker."""
