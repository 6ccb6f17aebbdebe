"""The stages: which entry point each runs, where its flags come from, and how its script is laid out."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Flags whose values are paths: relative ones resolve against the caller's folder at render.
PATH_FLAGS = frozenset(
    (
        "--load", "--save", "--load-dir", "--save-dir", "--data-path", "--train-data-path", "--valid-data-path",
        "--test-data-path", "--data-cache-path", "--tokenizer-name-or-path", "--tokenizer-model", "--input",
        "--output-prefix", "--tensorboard-dir", "--wandb-save-dir", "--lora-load", "--task-data-path", "--vocab-file",
        "--merge-file", "--profile-save-path", "--pretrained-checkpoint",
    )
)  # fmt: skip

#: torchrun's own names, allowed in a stage that torchrun starts: they replace the cluster's values for it.
LAUNCHER_KEYS = ("nproc_per_node", "nnodes", "master_addr", "master_port")

_TRAINING = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "max_position_embeddings",
             "seq_length", "micro_batch_size", "padded_vocab_size", "tokenizer_type", "spec")  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """One upstream step.

    ``sections`` are recipe sections laid over each other; ``derived`` maps a flag's snake_case name to the paths or
    parallel key its value comes from unless a section sets it; ``variables`` the flags that get a shell variable on
    top of the script; ``model`` limits what is taken from the section of that name; ``borrowed`` flags come from another
    stage's section unless this one sets them.
    """

    id: str
    entry: str
    launcher: str
    template: str
    script: str
    log: str
    sections: tuple[str, ...]
    required: tuple[str, ...]
    derived: dict[str, str] = field(default_factory=dict)
    parallel: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    model: tuple[str, ...] | None = None
    variant: str = ""
    borrowed: dict[str, str] = field(default_factory=dict)


_LAYOUT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "vpp": "num_layers_per_virtual_pipeline_stage",
}
_LAYOUT_VARIABLES = {
    "--tensor-model-parallel-size": "TP",
    "--pipeline-model-parallel-size": "PP",
    "--context-parallel-size": "CP",
}
_TRAIN_VARIABLES = {
    **_LAYOUT_VARIABLES,
    "--micro-batch-size": "MBS",
    "--global-batch-size": "GBS",
    "--seq-length": "SEQ_LENGTH",
    "--train-iters": "TRAIN_ITERS",
    "--tokenizer-name-or-path": "TOKENIZER_PATH",
}



def _tune(kind: str) -> Stage:
    return Stage(
        id=f"tune_{kind}",
        entry="posttrain_gpt.py",
        launcher="torchrun",
        template="pretrain_ptd.sh.j2",
        script=f"tune_{{slug}}_{{seq}}_{kind}_ptd.sh",
        log=f"tune_{{slug}}_{kind}",
        sections=("tune", f"tune.{kind}"),
        required=(*_TRAINING, "train_iters", "lr", "stage", *(("lora_r",) if kind == "lora" else ())),
        derived={
            "data_path": "instruction_data",
            "tokenizer_name_or_path": "tokenizer",
            "load": "mcore",
            "save": "lora_save" if kind == "lora" else "tune_save",
        },
        parallel=_LAYOUT,
        variables={
            **_TRAIN_VARIABLES,
            "--data-path": "DATA_PATH",
            "--load": "CKPT_LOAD_DIR",
            "--save": "CKPT_SAVE_DIR",
        },
    )


STAGES: dict[str, Stage] = {
    stage.id: stage
    for stage in (
        Stage(
            id="hf2mcore",
            entry="convert_ckpt.py",
            launcher="python",
            template="ckpt_convert_hf2mcore.sh.j2",
            script="ckpt_convert_{slug}_hf2mcore.sh",
            log="ckpt_convert_{slug}_hf2mcore",
            sections=("ckpt_convert", "ckpt_convert.hf2mcore"),
            required=("model_type", "load_model_type", "save_model_type", "model_type_hf", "params_dtype", "spec"),
            derived={"load_dir": "hf", "save_dir": "mcore", "tokenizer_model": "hf/tokenizer.json"},
            parallel={
                "tp": "target_tensor_parallel_size",
                "pp": "target_pipeline_parallel_size",
                "vpp": "num_layers_per_virtual_pipeline_stage",
            },
            variables={
                "--target-tensor-parallel-size": "TP",
                "--target-pipeline-parallel-size": "PP",
                "--load-dir": "HF_DIR",
                "--save-dir": "SAVE_DIR",
            },
            model=("use_mcore_models", "spec"),
            variant="hf",
        ),
        Stage(
            id="data_convert",
            entry="preprocess_data.py",
            launcher="python",
            template="data_convert.sh.j2",
            script="data_convert_{slug}_pretrain.sh",
            log="data_convert_{slug}_pretrain",
            sections=("data_convert", "data_convert.pretrain"),
            required=("tokenizer_type", "handler_name", "json_keys"),
            derived={"input": "raw_data", "tokenizer_name_or_path": "tokenizer", "output_prefix": "data"},
            variables={
                "--input": "INPUT",
                "--tokenizer-name-or-path": "TOKENIZER_PATH",
                "--output-prefix": "OUTPUT_PREFIX",
            },
            model=(),
        ),
        Stage(
            id="pretrain",
            entry="pretrain_gpt.py",
            launcher="torchrun",
            template="pretrain_ptd.sh.j2",
            script="pretrain_{slug}_{seq}_ptd.sh",
            log="train_mcore_{slug}",
            sections=("pretrain",),
            required=(*_TRAINING, "train_iters", "lr"),
            derived={"data_path": "data", "tokenizer_name_or_path": "tokenizer", "load": "mcore", "save": "save"},
            parallel=_LAYOUT,
            variables={
                **_TRAIN_VARIABLES,
                "--data-path": "DATA_PATH",
                "--load": "CKPT_LOAD_DIR",
                "--save": "CKPT_SAVE_DIR",
            },
        ),
        Stage(
            id="mcore2hf",
            entry="convert_ckpt.py",
            launcher="python",
            template="ckpt_convert_mcore2hf.sh.j2",
            script="ckpt_convert_{slug}_mcore2hf.sh",
            log="ckpt_convert_{slug}_mcore2hf",
            sections=("ckpt_convert", "ckpt_convert.mcore2hf"),
            required=("model_type", "load_model_type", "save_model_type", "model_type_hf", "params_dtype", "spec"),
            derived={"load_dir": "save", "save_dir": "hf_out"},
            variables={"--load-dir": "LOAD_DIR", "--save-dir": "WORK_DIR"},
            model=("use_mcore_models", "spec"),
            variant="mg",
        ),
        Stage(
            id="generate",
            entry="inference.py",
            launcher="torchrun",
            template="generate_ptd.sh.j2",
            script="generate_{slug}_ptd.sh",
            log="generate_mcore_{slug}",
            sections=("generate",),
            required=(*_TRAINING, "max_new_tokens"),
            derived={"tokenizer_name_or_path": "tokenizer", "load": "save"},
            parallel={k: v for k, v in _LAYOUT.items() if k in ("tp", "pp")},
            variables={
                **_LAYOUT_VARIABLES,
                "--seq-length": "SEQ_LENGTH",
                "--tokenizer-name-or-path": "TOKENIZER_PATH",
                "--load": "CHECKPOINT",
            },
        ),
        Stage(
            id="data_convert_instruction",
            entry="preprocess_data.py",
            launcher="python",
            template="data_convert.sh.j2",
            script="data_convert_{slug}_instruction.sh",
            log="data_convert_{slug}_instruction",
            sections=("data_convert", "data_convert.instruction"),
            required=("tokenizer_type", "handler_name"),
            derived={
                "input": "raw_instruction_data",
                "tokenizer_name_or_path": "tokenizer",
                "output_prefix": "instruction_data",
            },
            variables={
                "--input": "INPUT",
                "--tokenizer-name-or-path": "TOKENIZER_PATH",
                "--output-prefix": "OUTPUT_PREFIX",
            },
            model=(),
        ),
        _tune("full"),
        _tune("lora"),
        Stage(
            id="mcore2hf_lora",
            entry="convert_ckpt.py",
            launcher="python",
            template="ckpt_convert_mcore2hf.sh.j2",
            script="ckpt_convert_{slug}_mcore2hf_lora.sh",
            log="ckpt_convert_{slug}_mcore2hf_lora",
            sections=("ckpt_convert", "ckpt_convert.mcore2hf_lora"),
            required=("model_type", "load_model_type", "save_model_type", "model_type_hf", "params_dtype", "spec",
                      "lora_r", "lora_alpha", "lora_target_modules"),
            derived={"load_dir": "mcore", "lora_load": "lora_save", "save_dir": "lora_hf_out"},
            variables={"--load-dir": "LOAD_DIR", "--lora-load": "LORA_DIR", "--save-dir": "WORK_DIR"},
            model=("use_mcore_models", "spec"),
            variant="mg",
            # Upstream trains with r 16, alpha 32 and merges with r 8, alpha 16 (D11): one fact, one place.
            borrowed={name: f"tune.lora.{name}" for name in ("lora_r", "lora_alpha", "lora_target_modules")},
        ),
        Stage(
            id="evaluate",
            entry="evaluation.py",
            launcher="torchrun",
            template="evaluate_ptd.sh.j2",
            script="evaluate_{slug}_ptd.sh",
            log="evaluate_{slug}",
            sections=("evaluate",),
            required=(*_TRAINING, "max_new_tokens", "task"),
            derived={"task_data_path": "evaluation_data", "tokenizer_name_or_path": "tokenizer", "load": "save"},
            parallel={k: v for k, v in _LAYOUT.items() if k in ("tp", "pp")},
            variables={
                **_LAYOUT_VARIABLES,
                "--seq-length": "SEQ_LENGTH",
                "--tokenizer-name-or-path": "TOKENIZER_PATH",
                "--load": "CHECKPOINT",
                "--task-data-path": "DATA_PATH",
                "--task": "TASK",
            },
        ),
    )
}

#: The section whose presence in a recipe asks for a stage beyond those of ``run all``.
OPTIONAL = {
    "data_convert_instruction": "data_convert.instruction",
    "tune_full": "tune.full",
    "tune_lora": "tune.lora",
    "mcore2hf_lora": "ckpt_convert.mcore2hf_lora",
    "evaluate": "evaluate",
}

#: What ``run all`` does, in order.
ALL = ("hf2mcore", "data_convert", "pretrain", "mcore2hf", "generate")

#: Groups of a training script's arguments, as upstream's scripts have them. What no set names goes with TRAIN_ARGS.
OPTIMIZE = frozenset(
    (
        "--use-flash-attn", "--use-fused-rotary-pos-emb", "--use-rotary-position-embeddings", "--use-fused-swiglu",
        "--use-fused-rmsnorm", "--no-masked-softmax-fusion", "--use-distributed-optimizer", "--overlap-grad-reduce",
        "--overlap-param-gather", "--recompute-granularity", "--recompute-method", "--recompute-num-layers",
        "--recompute-activation-function", "--recompute-norm", "--swap-attention", "--reuse-fp32-param",
    )
)  # fmt: skip
DATA = frozenset(("--data-path", "--split", "--data-cache-path", "--dataloader-type", "--num-workers"))
OUTPUT = frozenset(
    (
        "--save",
        "--log-interval", "--save-interval", "--eval-interval", "--eval-iters", "--log-throughput", "--tensorboard-dir",
        "--distributed-backend", "--exit-on-missing-checkpoint", "--no-load-optim", "--no-load-rng",
    )
)  # fmt: skip
