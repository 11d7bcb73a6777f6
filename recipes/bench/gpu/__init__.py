"""The engine on a GPU, measured beside the reference: `python -m recipes.bench.gpu --help`."""

import importlib.util
import sys
import types

if importlib.util.find_spec("av") is None:
    # A GPU machine may be bare of what only reads a client's recording, and no benchmark sends
    # one. Empty classes keep the imports whole.
    for _name, _classes in {
        "av": (),
        "av.container": ("InputContainer",),
        "av.filter": ("Graph",),
    }.items():
        _module = sys.modules[_name] = types.ModuleType(_name)
        _module.__dict__.update({_class: type(_class, (), {}) for _class in _classes})
