"""The model worker: weights, the device pool, the batch scheduler and the forward passes of one model replica."""
