"""Runs in upstream's tree behind the stand-in: argument lists through upstream's own parser, validate_args, micro-batch
calculator and TransformerConfig, in one process. ``python validate_worker.py REQUEST RESULT`` (JSON lists)."""

import contextlib
import io
import json
import os
import sys
import traceback

sys.path.insert(0, os.getcwd())


def main(request: str, result: str) -> None:
    with open(request) as file:
        cases = json.load(file)
    sys.argv = ["pretrain_gpt.py"]
    import megatron.training.arguments as arguments
    import pretrain_gpt  # noqa: F401 patches Megatron
    from megatron.core import num_microbatches_calculator as batches
    from megatron.training import global_vars
    from mindspeed_llm.training.arguments import parse_args_decorator

    parse = parse_args_decorator(arguments.parse_args)
    out = []
    for case in cases:
        os.environ.update(case["env"], WORLD_SIZE=str(case["world"]), RANK="0", LOCAL_RANK="0")
        for name in ("CUDA_DEVICE_MAX_CONNECTIONS",):
            if name not in case["env"]:
                os.environ.pop(name, None)
        sys.argv = ["pretrain_gpt.py", *case["argv"]]
        phase, said, row = "parse", io.StringIO(), {}
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                args = parse(None, False)
                before = {k: repr(v) for k, v in vars(args).items()}
                phase = "validate_args"
                arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
                phase = "microbatches"
                batches._GLOBAL_NUM_MICROBATCHES_CALCULATOR = None
                batches.init_num_microbatches_calculator(args.rank, args.rampup_batch_size, args.global_batch_size,
                                                         args.micro_batch_size, args.data_parallel_size)
                phase = "TransformerConfig"
                global_vars._GLOBAL_ARGS = args
                arguments.core_transformer_config_from_args(args)
                row["changes"] = {k: repr(v) for k, v in vars(args).items() if k in before and repr(v) != before[k]}
        except (Exception, SystemExit) as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(os.getcwd())]
            where = f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
            row = {"error": f"{type(error).__name__}: {error}", "phase": phase, "at": where,
                   "said": said.getvalue()[-300:]}
        out.append(row)
    with open(result, "w") as file:
        json.dump(out, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
