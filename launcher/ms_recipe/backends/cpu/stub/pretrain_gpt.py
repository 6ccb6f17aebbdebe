"""Stub of MindSpeed-LLM's pretrain_gpt.py: dense Qwen3 on megatron-core 0.8.0."""

from stub_upstream.train import main

if __name__ == "__main__":
    main()
