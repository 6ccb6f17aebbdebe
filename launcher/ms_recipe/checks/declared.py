"""The checks on files: their rows in the table; the rules are in files.py and corpora.py."""

from __future__ import annotations

from ms_recipe.checks.agreement import declare

HF_MISSING = declare(
    "path-hf", "error", "L convert_ckpt.py; transformers from_pretrained",
    "takes a missing folder for a name on the hub: 'Repo id must be in the form ...'",
    "paths.hf ./mdoel_from_hf/Qwen3-0.6B", "The HF folder exists. Relative paths start from the caller's folder.")
HF_CONFIG = declare(
    "hf-config", "error", "L mindspeed_llm/tasks/checkpoint/models.py", "stops in the converter",
    "config.json missing, or model_type qwen2", "config.json is readable JSON of a Qwen3 model.")
HF_WEIGHTS = declare(
    "hf-weights", "error", "transformers AutoModelForCausalLM.from_pretrained", "stops in the converter, or loads noise",
    "a shard of the index missing or cut short", "Every weight file of the index is there, whole by its header, and holds "
    "the tensors that config.json means.")
HF_TOKENIZER = declare(
    "hf-tokenizer", "error", "L preprocess_data.py, M megatron/training/tokenizer", "stops in every stage but mcore2hf",
    "tokenizer.json missing", "tokenizer.json and tokenizer_config.json are in the tokenizer's folder.")
HF_SHAPE = declare(
    "hf-shape", "error", "M megatron/training/checkpointing.py (load_state_dict)",
    "stops at loading with mismatched shapes, or trains another model", "kv_channels 64, head_dim 128",
    "Each field of config.json against the recipe's model: layers, widths, heads, epsilon, rope theta, vocabulary.")
HF_TIED = declare(
    "hf-tied", "error", "M megatron/core/models/gpt/gpt_model.py; D: only 8B has the flag",
    "stops at loading, or trains a random output layer", "untie_embeddings_and_output_weights on 0.6B",
    "untie_embeddings_and_output_weights is the opposite of config.json's tie_word_embeddings.")
HF_POSITIONS = declare(
    "hf-positions", "warning", "HF config.json", "trains beyond the positions the weights have seen",
    "seq_length 65536, HF 32768", "seq_length against the HF model's max_position_embeddings.")
CKPT = declare(
    "ckpt-load", "error", "L mindspeed_llm/training/checkpointing.py",
    "starts from random weights, or exits 0", "no latest_checkpointed_iteration.txt, a torn rank file",
    "The checkpoint to be loaded: tracker, iteration, every rank's file whole, every layer.")
CKPT_LAYOUT = declare(
    "ckpt-layout", "error", "M megatron/training/checkpointing.py:56-98",
    "stops, or exits 0 with 'could not load the checkpoint'", "checkpoint TP2 PP1, recipe TP1 PP4",
    "The checkpoint's tensor and pipeline parallel sizes are the recipe's.")
CKPT_SHAPE = declare(
    "ckpt-shape", "error", "M megatron/training/checkpointing.py:56-98", "stops at loading",
    "num_layers 36 stored, 28 in the recipe", "Arguments stored in the checkpoint against the recipe's model.")
CONVERT_OVER = declare(
    "convert-overwrites", "error", "this project", "writes into a training's checkpoints and sets their tracker back",
    "paths.mcore holds iteration 2000", "hf2mcore's folder holds nothing, or an earlier conversion (iteration 1, no optimizer).")
SAVE_OTHER = declare(
    "save-other", "error", "this project", "resumes from, or overwrites, another training's checkpoints",
    "paths.save holds a TP2 checkpoint, the recipe is TP1", "The save folder holds nothing, or checkpoints of this layout "
    "and shape: a run resumes from a complete checkpoint in it.")
SAVE_DONE = declare(
    "save-done", "note", "this project", "has nothing left to train", "iteration 2000 of 2000 is saved",
    "The save folder already holds the last iteration.")
SAVE_TORN = declare(
    "save-torn", "warning", "this project", "would load a torn checkpoint",
    "iter_0000500 with a cut file", "The save folder's newest checkpoint is not whole; run goes on from an older one.")
SAVE_LOAD = declare(
    "save-load", "warning", "this project", "writes into the converted checkpoint's folder", "paths.save = paths.mcore",
    "Training and conversion write to different folders.")
DATA_PREFIX = declare(
    "data-prefix", "error", "M megatron/core/datasets/indexed_dataset.py:569",
    "stops: one or both of the .idx and .bin files cannot be found", "paths.data ./dataset/enwiki",
    "paths.data is the prefix of a .bin and an .idx file, with _text_document and without an extension.")
DATA_TORN = declare(
    "data-torn", "error", "M megatron/core/datasets/indexed_dataset.py:34-300", "stops, or reads beyond the end",
    "a .bin shorter than its index", "The index has its magic and its size, the .bin the size that it speaks of.")
DATA_VOCAB = declare(
    "data-vocab", "error", "M megatron/core/tensor_parallel/layers.py", "fails on the NPU, or trains noise",
    "token 151643 with padded_vocab_size 640", "Token ids, sampled over the file, are below the padded vocabulary.")
DATA_SHORT = declare(
    "data-tokens", "warning", "M megatron/core/datasets/gpt_dataset.py", "repeats the data as often as needed",
    "1 M tokens for 8.4 G", "Tokens of the data against train_iters x global_batch_size x seq_length.")
DATA_EMPTY = declare(
    "data-empty", "error", "L pretrain_gpt.py", "stops: no data loaded", "fewer tokens than one sequence",
    "The data hold at least one sequence.")
RAW_MISSING = declare(
    "raw-missing", "error", "L mindspeed_llm/tasks/preprocess/data_handler.py:1043-1077",
    "takes it for a data set's name on the hub", "input ./datset/train.jsonl, or a.jsonl,b.jsonl, or *.jsonl",
    "The raw data are one file or one folder; a comma list or a wildcard is neither.")
RAW_FORMAT = declare(
    "raw-format", "error", "L mindspeed_llm/tasks/preprocess/data_handler.py:986-1006", "stops: unknown local data!",
    "corpus.jsonl.gz, corpus.JSONL, corpus", "The text after the last dot says the format, in lower case.")
RAW_KEY = declare(
    "raw-key", "error", "L mindspeed_llm/tasks/preprocess/data_handler.py", "stops with a KeyError in a worker",
    "json_keys text, records have content, id", "The first records have every key of json_keys.")
RAW_EMPTY = declare(
    "raw-empty", "note", "L mindspeed_llm/tasks/preprocess/data_handler.py", "skips empty documents", "1 of 3 is empty",
    "Documents without text among the first 1000.")
RAW_NONE = declare(
    "raw-none", "error", "L mindspeed_llm/tasks/preprocess/data_handler.py", "writes an empty data set",
    "all documents empty", "At least one document has text.")
PACKED = declare(
    "data-packed", "error", "L mindspeed_llm/tasks/preprocess/mtf_dataset.py:65", "finds no data and stops",
    "tune's data_path ./finetune_dataset/alpaca_packed_input_ids_document",
    "tune's data_path is the prefix before _packed_input_ids_document; input_ids, attention_mask and labels are there.")
TASKS = declare(
    "path-evaluation", "error", "L evaluation.py", "logs an error for each task and exits 0", "paths.evaluation_data missing",
    "The evaluation tasks' data are there.")
PREFIX = declare(
    "data-output", "error", "L preprocess_data.py (validate_args)", "stops: is not a directory, or writes ._text_document",
    "output_prefix out/new/", "data_convert's output prefix ends in a name; its folder is made.")
WRITE = declare(
    "out-writable", "error", "this project", "fails at its end, when it saves", "paths.save below a read-only folder",
    "Every output's folder exists or can be made, and is writable.")
SPACE = declare(
    "out-space", "error", "this project", "fails when it saves", "16 GiB free, a checkpoint takes 107 GiB",
    "The file system holds at least one checkpoint of each kind that goes there.")
SPACE_ALL = declare(
    "out-space-all", "warning", "this project", "fails at a later save", "room for 2 of 20 checkpoints",
    "The file system holds all checkpoints of the run (run.keep_last limits them).")
