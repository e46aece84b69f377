"""A test file that pytest runs."""

load("@rules_python//python:py_test.bzl", "py_test")

def pytest_test(name, srcs, deps, **kwargs):
    """Defines a py_test of one file, with what every test needs.

    Slow tests are left out, as by bin/test; with --test_arg=-m
    --test_arg="slow or not slow" they run.

    Args:
      name: Name of the target.
      srcs: The file.
      deps: The libraries that it imports.
      **kwargs: Further attributes of py_test.
    """
    py_test(
        name = name,
        srcs = srcs + ["//tests:pytest_main.py"],
        args = ["%s/%s" % (native.package_name(), srcs[0])],
        main = "//tests:pytest_main.py",
        deps = deps + ["//tests:conftest"],
        **kwargs
    )
