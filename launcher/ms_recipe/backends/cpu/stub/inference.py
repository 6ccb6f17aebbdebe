"""Stub of MindSpeed-LLM's inference.py: its four tasks and chat, dense Qwen3."""

from stub_upstream.generate import main

if __name__ == "__main__":
    main()
