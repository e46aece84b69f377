"""The folder of a run: states, model, metrics, as files with checksums."""
