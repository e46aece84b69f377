"""Encoders as specs of weights and pure functions, and the CTC model on top."""
