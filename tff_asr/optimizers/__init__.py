"""Optimizers of TFF and their schedules: LAMB, LARS, Adam, Adagrad."""
