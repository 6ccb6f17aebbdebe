"""Small scripts of the shapes that people have, with what is special about each."""

PRETRAIN = r'''#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
export HCCL_CONNECT_TIMEOUT=${HCCL_CONNECT_TIMEOUT:-1800}

NPUS_PER_NODE=8
MASTER_ADDR=localhost
MASTER_PORT=6007
NNODES=1
NODE_RANK=0
WORLD_SIZE=$(($NPUS_PER_NODE*$NNODES))

CKPT_LOAD_DIR="./weights/my model"
CKPT_SAVE_DIR="./ckpt/mine"
DATA_PATH="./dataset/wiki_text_document"
TOKENIZER_PATH=./hf

TP=1
PP=1
SEQ_LENGTH=4096

DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \
    --nnodes $NNODES \
    --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR \
    --master_port $MASTER_PORT
"

GPT_ARGS="
    --use-mcore-models \
    --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --kv-channels 128 \
    --qk-layernorm \
    --num-layers 28 \
    --hidden-size 1024 \
    --num-attention-heads 16 \
    --ffn-hidden-size 3072 \
    --max-position-embeddings 32768 \
    --seq-length ${SEQ_LENGTH} \
    --make-vocab-size-divisible-by 1 \
    --padded-vocab-size 151936 \
    --rotary-base 1000000 \
    --disable-bias-linear \
    --swiglu \
    --tokenizer-type PretrainedFromHF \
    --tokenizer-name-or-path ${TOKENIZER_PATH} \
    --normalization RMSNorm \
    --position-embedding-type rope \
    --norm-epsilon 1e-6 \
    --no-gradient-accumulation-fusion \
    --attention-softmax-in-fp32 \
    --group-query-attention \
    --num-query-groups 8 \
    --micro-batch-size 1 \
    --global-batch-size $((NPUS_PER_NODE * 2)) \
    --lr 2e-5 \
    --train-iters 100 \
    --seed 42 \
    --bf16 \
    --no-load-optim \
    --no-load-rng
"

torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    $GPT_ARGS \
    --data-path $DATA_PATH \
    --seed 42 \
    --distributed-backend nccl \
    --load ${CKPT_LOAD_DIR} \
    --save ${CKPT_SAVE_DIR} \
    | tee logs/train.log
'''

CONVERT = r'''source /usr/local/Ascend/ascend-toolkit/set_env.sh
python convert_ckpt.py \
    --use-mcore-models \
    --model-type GPT \
    --load-model-type hf \
    --save-model-type mg \
    --target-tensor-parallel-size 1 \
    --target-pipeline-parallel-size 2 \
    --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec \
    --load-dir ./hf/ \
    --save-dir "./weights/my model" \
    --tokenizer-model ./hf/tokenizer.json \
    --params-dtype bf16 \
    --model-type-hf qwen3
'''

#: name -> (script, the notes' kinds that it must bring). All run under bash as they are.
SHELL = {
    "defaults": ('X=${A:-a b}\nY="${B:-c d}"\npython x.py $X "$Y" ${C:-e} ${C:=f} $C ${C:+g} ${D+h}\n', []),
    "default quotes": ('A=("a b" c)\npython x.py ${A[@]+"${A[@]}"} ${Z:-"d e" f} ${Z:-g\\ h i} ${A[0]:+$A} "${Z-j k}"\n', []),
    "arithmetic": ("N=8\npython x.py $(($N*2+1)) $((N/3)) $((N%3)) $(( (N-1)<<2 )) $((-N/3)) $((N>3))\n", []),
    "arrays": ('A=(--x "a b" c)\nA+=("$Z" d)\npython x.py "${A[@]}" ${A[1]} ${#A[@]} "${A[-1]}" ${!A[@]}\n', ["undefined"]),
    "quotes": ("python x.py 'a  b' \"c  d\" e\\ f $'g\\th' \"\" '' \"\\$x \\\\ \\a\" \\\\ a\"b\"'c'\n", []),
    "continuation": ("B=\"\n  --x 1 \\\n  --y\\\n 2\n\"\npython x.py $B \\\n  --z \\\n", []),
    "strip": ("F=a/b.tar.gz\npython x.py ${F##*/} ${F%.gz} ${F%%.*} ${F#a/} ${F/b/c} ${F:2:3} ${#F} ${F^^}\n", []),
    "functions": ('run() {\n  local n=$1; shift\n  python x.py "$n" "$@" $#\n}\nrun 1 "a b" c\nrun 2\n', []),
    "loops": ("for i in 1 2 'x y'; do\n  [ \"$i\" == 2 ] && continue\n  python x.py $i\ndone\n", []),
    "while": ("i=0\nwhile [ $i -lt 3 ]; do i=$((i+1)); done\npython x.py $i\n", []),
    "case": ("M=8b\ncase $M in\n  0.6b) N=28;;\n  8b|9b) N=36;;\n  *) N=0;;\nesac\npython x.py $N\n", []),
    "if": ("T=2\nif [[ $T -gt 1 && -z \"$Q\" ]]; then S=--sp; elif true; then S=no; else S=; fi\npython x.py $S\n", ["undefined"]),
    "prefix": ("A=1 B='2 3' python x.py a\nexport E=5 F\nF=6\nenv G=7 true\npython x.py b\nunset E\npython x.py c\n", []),
    "pipes": ("python x.py a 2>&1 | tee -a log.txt > /dev/null\npython x.py b >> out.txt 2>&1\n", []),
    "guards": ('[[ -f /etc/passwd ]] || { echo no; exit 2; }\nif [ ! -d /etc ]; then exit 3; fi\npython x.py ok\n', []),
    "comment": ("python x.py a # not this\n# python x.py b\npython x.py '#c' d#e\n", []),
    "orphan": ("python x.py --a \\\n  --b\n  --c 1\n", []),
    "subshell": ("X=1\n(X=2; python x.py $X)\npython x.py $X\n", []),
    "dirname": ('python x.py "$(dirname a/b/c.sh)" $(basename a/b/c.sh .sh) `echo x y`\n', []),
    "exit": ("python x.py a\nexit 0\npython x.py b\n", []),
}  # fmt: skip
