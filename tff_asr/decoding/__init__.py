"""Decoding: token scores to text, greedily or by beam search."""
