"""The Hugging Face tokenizer of a folder, with what Megatron's datasets ask of one."""

from __future__ import annotations

from megatron.core.datasets.megatron_tokenizer import MegatronTokenizer
from transformers import AutoTokenizer


def load(path: str, fast: bool = True):
    """transformers' own tokenizer of a local folder."""
    return AutoTokenizer.from_pretrained(path, use_fast=fast, trust_remote_code=False, local_files_only=True)


class Tokenizer(MegatronTokenizer):
    """What GPTDataset needs: the end-of-document id and a stable description."""

    def __init__(self, path: str, fast: bool = True) -> None:
        super().__init__(path)
        self.hf = load(path, fast)

    def tokenize(self, text: str):
        return self.hf(text)["input_ids"]

    @property
    def vocab(self):
        return self.hf.get_vocab()

    @property
    def inv_vocab(self):
        return {v: k for k, v in self.vocab.items()}

    @property
    def vocab_size(self) -> int:
        return len(self.hf)

    @property
    def eod(self) -> int:
        return self.hf.eos_token_id
