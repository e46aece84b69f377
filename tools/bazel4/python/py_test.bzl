"""The rule that Bazel 7 and older have built in."""

py_test = native.py_test
