"""Trained models in use: transcribing files, and exporting."""
