"""Features: waveforms to the frames that a model takes; augmentation."""
