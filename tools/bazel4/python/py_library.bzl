"""The rule that Bazel 7 and older have built in."""

py_library = native.py_library
