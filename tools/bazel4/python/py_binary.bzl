"""The rule that Bazel 7 and older have built in."""

py_binary = native.py_binary
