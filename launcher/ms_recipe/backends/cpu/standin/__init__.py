"""This folder goes on PYTHONPATH: it holds the modules that exist only on Ascend (torch_npu, acl, torchair, apex)."""
