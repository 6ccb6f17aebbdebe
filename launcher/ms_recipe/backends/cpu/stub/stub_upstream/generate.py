"""Text generation: greedy, sampling, beam search over a fixed prompt, and chat on standard input."""

from __future__ import annotations

import logging
import sys
import time

import torch
import torch.distributed as dist
from stub_upstream import arguments, checkpoint, model  # isort: skip  (the stand-in before megatron)
from megatron.core import parallel_state as mpu
from megatron.core.pipeline_parallel import p2p_communication as p2p

from stub_upstream.logs import print_rank_0
from stub_upstream.tokenizer import load as load_tokenizer

PROMPT = "how are you?"
_RULES = {"greedy": ("=============== Greedy Search ================", "=" * 46),
          "do_sample": ("================ Do Sample =================", "=" * 44),
          "beam_search": ("=============== Beam Search =================", "=" * 45),
          "beam_search_with_sampling": ("======== Beam Search with sampling ==========", "=" * 45)}  # fmt: skip


class Generator:
    """Next-token scores of the whole model, whatever its layout; every rank gets them."""

    def __init__(self, args, part, tokenizer) -> None:
        self.args, self.part, self.tokenizer = args, part, tokenizer
        part.eval()

    @torch.no_grad()
    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [batch, tokens] of int64 -> scores [batch, vocabulary] of the next token, fp32."""
        batch, length = rows.shape
        config = self.part.config
        shape = (length, batch, config.hidden_size)
        if not mpu.is_pipeline_first_stage():
            self.part.set_input_tensor([p2p.recv_forward(shape, config)])
        positions = torch.arange(length).expand(batch, -1)
        output = self.part(rows, positions, None)
        if not mpu.is_pipeline_last_stage():
            p2p.send_forward(output, config)
            scores = torch.empty(batch, self.args.padded_vocab_size)
        else:
            last = output[:, -1].float().contiguous()
            parts = [torch.empty_like(last) for _ in range(mpu.get_tensor_model_parallel_world_size())]
            dist.all_gather(parts, last, group=mpu.get_tensor_model_parallel_group())
            scores = torch.cat(parts, dim=-1)
        if mpu.get_pipeline_model_parallel_world_size() > 1:
            dist.broadcast(scores, mpu.get_pipeline_model_parallel_last_rank(), mpu.get_pipeline_model_parallel_group())
        return scores[:, : len(self.tokenizer)]

    def _pick(self, scores: torch.Tensor, sample: bool) -> torch.Tensor:
        if not sample:
            return scores.argmax(-1)
        args = self.args
        scores = scores / max(args.temperature, 1e-6)
        if args.top_k:
            kept = scores.topk(min(args.top_k, scores.shape[-1])).values[:, -1:]
            scores = scores.masked_fill(scores < kept, float("-inf"))
        probabilities = scores.softmax(-1)
        if 0 < args.top_p < 1:
            values, order = probabilities.sort(descending=True)
            cut = values.cumsum(-1) - values > args.top_p
            probabilities = probabilities.scatter(-1, order, values.masked_fill(cut, 0.0))
        chosen = torch.multinomial(probabilities, 1).squeeze(-1)
        # The ranks of a model draw alike only if one of them decides.
        dist.broadcast(chosen, mpu.get_tensor_model_parallel_src_rank(), mpu.get_tensor_model_parallel_group())
        if mpu.get_pipeline_model_parallel_world_size() > 1:
            dist.broadcast(chosen, mpu.get_pipeline_model_parallel_first_rank(), mpu.get_pipeline_model_parallel_group())
        return chosen

    def _room(self, ids: list[int]) -> int:
        return max(0, min(self.args.max_new_tokens, self.args.max_position_embeddings - len(ids)))

    def tokens(self, prompt: str, sample: bool):
        """Token ids one after the other, until the end of text or the limit."""
        ids = self.tokenizer(prompt)["input_ids"]
        for _ in range(self._room(ids)):
            token = int(self._pick(self.logits(torch.tensor([ids])), sample)[0])
            if token == self.tokenizer.eos_token_id:
                return
            ids.append(token)
            yield token

    def text(self, prompt: str, sample: bool = False) -> str:
        return self.tokenizer.decode(list(self.tokens(prompt, sample)), skip_special_tokens=True)

    def beams(self, prompt: str, sample: bool, width: int = 2) -> str:
        start = self.tokenizer(prompt)["input_ids"]
        beams = [(0.0, list(start), False)]
        for _ in range(self._room(start)):
            grown = []
            for score, ids, done in beams:
                if done:
                    grown.append((score, ids, True))
                    continue
                logs = self.logits(torch.tensor([ids])).log_softmax(-1)[0]
                picks = logs.topk(width).indices.tolist()
                if sample:
                    picks[-1] = int(self._pick(logs[None], True)[0])
                grown += [(score + float(logs[t]), [*ids, t], t == self.tokenizer.eos_token_id) for t in dict.fromkeys(picks)]
            beams = sorted(grown, key=lambda b: b[0] / (len(b[1]) - len(start)), reverse=True)[:width]
            if all(done for _, _, done in beams):
                break
        return self.tokenizer.decode(beams[0][1][len(start) :], skip_special_tokens=True)


def fixed(generator: Generator, task: str) -> None:
    began = time.time()
    sample = task in ("do_sample", "beam_search_with_sampling")
    answer = generator.beams(PROMPT, sample) if task.startswith("beam") else generator.text(PROMPT, sample)
    if dist.get_rank() == 0:
        top, bottom = _RULES[task]
        logging.info("\n%s", top)
        logging.info("\nYou:\n%s\n\nMindSpeed-LLM:\n%s", PROMPT, answer)
        logging.info(bottom)
        logging.info("\nElapsed: %ss", round(time.time() - began, 2))
    dist.barrier()


def chat(generator: Generator) -> None:
    """Rounds on rank 0's standard input: q ends, new clears; always sampling, as upstream."""
    history = ""
    while True:
        box: list = [None]
        if dist.get_rank() == 0:
            if not history:
                rule = "=" * 59
                logging.info(rule)
                logging.info("1. If you want to quit, please entry one of [q, quit, exit]")
                logging.info("2. To create new title, please entry one of [clear, new]")
                logging.info(rule)
            prompt = input("\n\nYou >> ").strip("\n")
            if prompt.strip() in ("clear", "new"):
                history = ""
                continue
            if not prompt.strip():
                continue
            box[0] = None if prompt.strip() in ("q", "exit", "quit") else history + prompt
        dist.broadcast_object_list(box, 0)
        if box[0] is None:
            return
        if dist.get_rank() == 0:
            sys.stdout.write("\nMindSpeed-LLM:\n")
        ids: list[int] = []
        shown = ""
        for token in generator.tokens(box[0], sample=True):
            ids.append(token)
            text = generator.tokenizer.decode(ids, skip_special_tokens=True).replace("�", "")
            if dist.get_rank() == 0:
                sys.stdout.write(text[len(shown) :])
                sys.stdout.flush()
            shown = text
        history = box[0] + shown


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", stream=sys.stdout)
    logging.getLogger("megatron").setLevel(logging.WARNING)
    args = arguments.parse("inference.py")
    tasks = args.task or [*_RULES, "chat"]
    unknown = [t for t in tasks if t not in (*_RULES, "chat")]
    if unknown:
        raise ValueError("Task name incorrect.")
    args.sequence_parallel = False
    model.validate(args)
    model.initialize(args)
    print_rank_0("building GPT model ...")
    part = model.build(args)
    if args.bf16:
        part = part.bfloat16()
    args.finetune = False
    checkpoint.load(args, part)
    generator = Generator(args, part, load_tokenizer(args.tokenizer_name_or_path, args.tokenizer_not_use_fast))
    for task in tasks:
        if task == "chat":
            chat(generator)
        else:
            fixed(generator, task)
    dist.barrier()
    dist.destroy_process_group()

