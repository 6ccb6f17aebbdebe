"""Stub of MindSpeed-LLM's preprocess_data.py: raw text -> indexed dataset, GeneralPretrainHandler."""

from stub_upstream.preprocess import main

if __name__ == "__main__":
    main()
