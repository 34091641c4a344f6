"""Pictures and figures of what a model does: attention, encodings, features, curves."""
