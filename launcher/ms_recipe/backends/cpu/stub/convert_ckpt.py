"""Stub of MindSpeed-LLM's convert_ckpt.py: HF folder <-> Megatron core checkpoint, dense Qwen3."""

from stub_upstream.convert import main

if __name__ == "__main__":
    main()
