"""A torch-free tree with upstream's entry points, files and log lines, and the faults that tests ask it for.

``logs/faults`` in the tree (one word a line) makes an entry point fail as upstream does.
"""

from __future__ import annotations

from pathlib import Path

COMMON = '''
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import fake_files
HERE = Path(__file__).resolve().parent / "logs"  # a folder that belongs to no pin
faults = (HERE / "faults").read_text().split() if (HERE / "faults").exists() else []
def arg(flag, default=None, many=False):
    if flag not in sys.argv: return default
    at = sys.argv.index(flag) + 1
    out = []
    while at < len(sys.argv) and not sys.argv[at].startswith("--"):
        out.append(sys.argv[at]); at += 1
    return out if many else (out[0] if out else True)
with open(HERE / "calls", "a") as f: f.write(Path(sys.argv[0]).name + " " + " ".join(sys.argv[1:]) + "\\n")
CFG = dict(num_hidden_layers=4, hidden_size=64, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
           vocab_size=640, tie_word_embeddings=True, model_type="qwen3", rms_norm_eps=1e-6, rope_theta=1000000)
'''

CONVERT = '''
if arg("--save-model-type") == "mg":
    tp, pp = int(arg("--target-tensor-parallel-size")), int(arg("--target-pipeline-parallel-size"))
    save = Path(arg("--save-dir"))
    if 4 % pp:
        fake_files.mcore_checkpoint(save, tp=tp, pp=pp, stored_layers=4, skip=((0, pp - 1),), num_layers=4)
        print('ERROR:root:Unexpected message. Expecting "final norm" but got "transformer layer 3". Exiting saver.')
        sys.exit(0)
    fake_files.mcore_checkpoint(save, tp=tp, pp=pp, stored_layers=4, num_layers=4)
    if "saver-killed" in faults:
        last = sorted(save.rglob("model_optim_rng.pt"))[-1]
        last.write_bytes(last.read_bytes()[:200])
        sys.exit(0)
    print("INFO:root:Done!")
else:
    save = Path(arg("--save-dir"))
    assert (save / "config.json").exists()
    fake_files.hf_folder(save / "mg2hf", CFG, tokenizer=False)
    if "half-hf" in faults:
        next((save / "mg2hf").glob("*.safetensors")).write_bytes(b"short")
    print("INFO:root:Done!")
'''

PREPROCESS = '''
prefix = arg("--output-prefix") + "_text_document"
fake_files.indexed_dataset(Path(prefix), [] if "no-documents" in faults else [[1, 2, 3], list(range(20)) * 50])
if "half-data" in faults:
    Path(prefix + ".bin").write_bytes(b"xx")
'''

PRETRAIN = '''
save, load = Path(arg("--save")), Path(arg("--load"))
iters, every = int(arg("--train-iters")), int(arg("--save-interval"))
tracker = load / "latest_checkpointed_iteration.txt"
if "checkpoint-vanishes" in faults:
    print(f"WARNING: could not find the metadata file {tracker}")
    print("    will not load any checkpoints and will start from random", flush=True)
    import time
    time.sleep(300)  # it is stopped long before
    iteration = 0
else:
    iteration = int(tracker.read_text())
while iteration < iters:
    iteration += 1
    print(f" [2026-11-30 21:31:06] iteration {iteration:8d}/{iters:8d} | consumed samples: {iteration * 8:12d} | elapsed time per iteration (ms): 100.0 "
          f"| learning rate: 1.250000E-03 | global batch size:     8 | lm loss: {5.0 / iteration:.6E} | loss scale: 1.0 | grad norm: 0.457 "
          f"| number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)
    if f"die-at-{iteration}" in faults:
        (HERE / "faults").write_text("parts" if "parts" in faults else "")
        print("RuntimeError: something broke", file=sys.stderr, flush=True)
        sys.exit(7)
    if f"sleep-at-{iteration}" in faults:
        (HERE / "sleeping").touch()
        time.sleep(600)
    if iteration % every == 0 and "parts" in faults:
        # Disks of their own: every node writes its pipeline stage, node 0 the tracker when all have.
        mine, pp = int(os.environ["NODE_RANK"]), int(arg("--pipeline-model-parallel-size"))
        fake_files.mcore_checkpoint(save, iteration=iteration, pp=pp, training=True, num_layers=4, stored_layers=4, tracker="",
                                    skip=tuple((0, p) for p in range(pp) if p != mine))
        if f"tear-{iteration}-{mine}" in faults:
            last = sorted((save / f"iter_{iteration:07d}").rglob("model_optim_rng.pt"))[-1]
            last.write_bytes(last.read_bytes()[:100])
        mark = os.environ["MS_RECIPE_RUN"].split("/")[0]
        (HERE / f"saved-{mark}-{iteration}-{mine}").touch()
        while len(list(HERE.glob(f"saved-{mark}-{iteration}-*"))) < pp: time.sleep(0.01)
        if mine == 0:
            (save / "latest_checkpointed_iteration.txt").write_text(str(iteration))
            print(f"  successfully saved checkpoint from iteration {iteration:7d} to {save}", flush=True)
    elif iteration % every == 0 and os.environ.get("NODE_RANK", "0") == "0":
        if f"torn-at-{iteration}" in faults:
            fake_files.mcore_checkpoint(save, iteration=iteration, training=True, num_layers=4, stored_layers=4, tracker=str(iteration - every) if iteration > every else None)
            last = sorted((save / f"iter_{iteration:07d}").rglob("*.pt"))[-1]
            last.write_bytes(last.read_bytes()[:100])
            (HERE / "faults").write_text("parts" if "parts" in faults else "")
            sys.exit(9)
        fake_files.mcore_checkpoint(save, iteration=iteration, training=True, num_layers=4, stored_layers=4)
        print(f"  successfully saved checkpoint from iteration {iteration:7d} to {save}", flush=True)
'''

INFERENCE = '''
if arg("--task") == "chat":
    history = ""
    while True:
        if not history:
            print("INFO:root:1. If you want to quit, please entry one of [q, quit, exit]")
        prompt = input("\\n\\nYou >> ")
        if prompt in ("q", "exit", "quit"): break
        if prompt in ("new", "clear"): history = ""; continue
        sys.stdout.write("\\nMindSpeed-LLM:\\n")
        history += prompt
        sys.stdout.write(f"answer to {history} with top-k {arg('--top-k')}")
        sys.stdout.flush()
elif "silent" not in faults:
    print("INFO:root:\\n=============== Greedy Search ================")
    print("INFO:root:\\nYou:\\nhow are you?\\n\\nMindSpeed-LLM:\\n fine, thank you\\nand you?")
    print("INFO:root:==============================================")
    print("INFO:root:\\nElapsed: 0.21s")
'''

TORCHRUN = '''#!/bin/bash
while [[ "$1" == --* ]]; do shift 2; done
exec python "$@"
'''


def make(folder: Path, python: str) -> Path:
    """The tree; ``bin/`` beside it has torchrun and python."""
    tree = folder / "up" / "MindSpeed-LLM"
    (tree / "logs").mkdir(parents=True)
    head = COMMON.replace("{tests!r}", repr(str(Path(__file__).resolve().parents[1])))
    for name, body in (("convert_ckpt.py", CONVERT), ("preprocess_data.py", PREPROCESS), ("pretrain_gpt.py", PRETRAIN), ("inference.py", INFERENCE)):
        (tree / name).write_text(head + body)
    # What the checks before a start want to come from the tree.
    for name in ("MindSpeed-LLM/megatron/core", "MindSpeed-LLM/megatron/training", "MindSpeed-LLM/mindspeed_llm", "MindSpeed/mindspeed"):
        (folder / "up" / name).mkdir(parents=True)
        (folder / "up" / name / "__init__.py").touch()
    bin_folder = folder / "up" / "bin"
    bin_folder.mkdir()
    (bin_folder / "torchrun").write_text(TORCHRUN)
    (bin_folder / "torchrun").chmod(0o755)
    # Not a link: through one, the interpreter would not find its virtual environment.
    (bin_folder / "python").write_text(f'#!/bin/bash\nexec "{python}" "$@"\n')
    (bin_folder / "python").chmod(0o755)
    return tree
