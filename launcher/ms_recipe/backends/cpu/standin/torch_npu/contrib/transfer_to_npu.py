"""``from torch_npu.contrib import transfer_to_npu``: importing torch_npu has done it already."""
