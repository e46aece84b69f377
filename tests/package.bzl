"""The tests of a folder, and what they share."""

load("@rules_python//python:py_library.bzl", "py_library")
load("@rules_python//python:py_test.bzl", "py_test")

def test_package(name, deps = [], data = [], **kwargs):
    """Defines a library of a folder's helpers and a test of its tests.

    The library has the name given, the test `NAME_test`. pytest runs the tests,
    as in bin/test without the slow ones; with --test_arg=-m
    --test_arg="slow or not slow" they run, too.

    Args:
      name: Name of the folder.
      deps: What its files import in addition to tests/*.py and tff_asr.
      data: What they read or start.
      **kwargs: Further attributes of the test.
    """
    if native.package_name() != "tests":
        deps = deps + ["//tests"]
    py_library(
        name = name,
        testonly = True,
        srcs = native.glob(["*.py"], exclude = ["*_test.py"]),
        visibility = ["//tests:__subpackages__"],
        deps = deps,
    )
    py_test(
        name = name + "_test",
        srcs = native.glob(["*_test.py"]) + ["//tests:pytest_main.py"],
        args = [native.package_name()],
        data = data,
        main = "//tests:pytest_main.py",
        deps = deps + [":" + name],
        **kwargs
    )
