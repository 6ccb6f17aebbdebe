"""Stand-in for torchair: upstream imports its graph converters at start-up and registers them; none ever runs here."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types


class _Anything:
    """Accepts every attribute and call; as a decorator it returns the function."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self._name}.{name}")

    def __call__(self, *args, **kwargs):
        return lambda function: function


class _Module(types.ModuleType):
    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith("torchair."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module) -> None:
        pass


sys.meta_path.append(_Finder())


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything(f"torchair.{name}")
